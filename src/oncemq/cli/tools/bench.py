"""`oncemq bench`: figures of this machine, each beside the limit that it can't exceed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncemq.cli.support.command import BROKER_EXITS, LOOKING_ADVICE, Documented
from oncemq.cli.support.options import remember_json
from oncemq.cli.support.output import is_terminal, note, table

if TYPE_CHECKING:
    from oncemq.tools.bench.results import Row


@click.command(
    cls=Documented,
    exits=BROKER_EXITS,
    advice=LOOKING_ADVICE,
    examples="""
        oncemq bench
        oncemq bench --seconds 10 --url tcp://127.0.0.1:5555
        oncemq bench --case put_many --json | jq '.[] | [.case, .value]'
    """,
)
@click.option("--url", metavar="URL", help="Measure this broker. [default: one that is started for it]")
@click.option(
    "--seconds", metavar="N", type=click.FloatRange(min=0.1), default=3.0, show_default=True, help="Time for each case."
)
@click.option(
    "--case",
    "cases",
    multiple=True,
    metavar="NAME",
    help="Only this one, or those whose names begin so; may be repeated. [default: all]",
)
@click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=remember_json, help="All rows as one JSON array."
)
def bench(url: str | None, seconds: float, cases: tuple[str, ...], as_json: bool) -> None:
    """Measure a broker against its limits.

    Each figure stands beside what the disk, the network or Python allow at the most on this machine. For rates the
    last column is the share of it that is reached; for times, and for many clients beside one, how many times as
    much it is.
    """
    from oncemq.tools import bench as benchmark

    _check_cases(cases)
    note(_ground(url))
    rows = benchmark.run(url, seconds, list(cases), _progress)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(rows))
        return
    heads = ["CASE", "VALUE", "UNIT", "LIMIT", "LIMIT IS", "REACHED", "P50 MS", "P99 MS", "P99.9 MS", "BROKER US"]
    for line in table(heads, [_cells(row) for row in rows]):
        click.echo(line)


def _check_cases(cases: tuple[str, ...]) -> None:
    from oncemq.protocol.errors import SettingInvalid
    from oncemq.tools.bench.cases import CASES

    for case in cases:
        if not any(name.startswith(case) for name in CASES):
            listed = "".join(f"\n         {name}" for name in CASES)
            raise SettingInvalid(f"no case is named {case!r}; there are:{listed}")


def _ground(url: str | None) -> str:
    """What is measured, where, and how durable it is."""
    import oncemq

    broker, disk = "a broker of its own", str(Path.cwd())
    if url is not None:
        with oncemq.connect(url) as client:
            broker, disk = f"broker at {url}", client.health().journal
    return f"{broker}, every put synced (fdatasync) before it is answered, disk {disk}"


def _progress(text: str) -> None:
    if is_terminal():
        click.echo(f"\r\033[K{text}", nl=False, err=True)


def _cells(row: Row) -> tuple[str, ...]:
    spread = (row.p50_ms, row.p99_ms, row.p999_ms, row.broker_us)
    times = ["-" if value_ms is None else f"{value_ms:,.2f}" for value_ms in spread]
    return (row.case, _number(row.value), row.unit, _number(row.limit), row.limit_name, _reached(row), *times)


def _number(value: float) -> str:
    """
    >>> _number(3_210_987.6), _number(0.5213)
    ('3,210,988', '0.52')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _reached(row: Row) -> str:
    """A limit that is a floor, or one client beside several, is a number of times."""
    if row.unit.startswith("ms") or row.limit_name == "one client":
        return f"{row.ratio:.1f} ×"
    return f"{row.ratio:.0%}"
