"""`oncemq bench`: figures of this machine, each beside the limit that it can't exceed."""

from __future__ import annotations

from typing import Any

import click

from oncemq.cli.command import BROKER_EXITS, Documented
from oncemq.cli.options import json_option
from oncemq.cli.output import is_terminal, json_line, table


@click.command(
    cls=Documented,
    exits=BROKER_EXITS,
    examples="""
        oncemq bench
        oncemq bench --seconds 10 --url tcp://127.0.0.1:5555
        oncemq bench --case put --json
    """,
)
@click.option("--url", metavar="URL", help="Measure this broker. [default: one that is started for it]")
@click.option(
    "--seconds", metavar="N", type=click.FloatRange(min=0.1), default=3.0, show_default=True, help="Time for each case."
)
@click.option("--case", "cases", multiple=True, metavar="NAME", help="Only this one; may be repeated. [default: all]")
@json_option
def bench(url: str | None, seconds: float, cases: tuple[str, ...], as_json: bool) -> None:
    """Measure a broker against its limits.

    Each figure stands beside what the disk, the network or Python allow at the most on this machine, and the
    share of it that is reached.
    """
    from oncemq import bench as benchmark

    rows = benchmark.run(url, seconds, list(cases), _progress)
    if as_json:
        for row in rows:
            click.echo(json_line(row))
        return
    heads = ["CASE", "VALUE", "UNIT", "LIMIT", "LIMIT IS", "REACHED"]
    for line in table(heads, [_cells(row) for row in rows]):
        click.echo(line)


def _progress(text: str) -> None:
    if is_terminal():
        click.echo(f"\r\033[K{text}", nl=False, err=True)


def _cells(row: Any) -> tuple[str, ...]:
    reached = f"{row.ratio:.0%}" if row.ratio is not None else "-"
    limit = f"{row.limit:,.6g}" if row.limit else "-"
    return (row.case, f"{row.value:,.6g}", row.unit, limit, row.limit_name, reached)
