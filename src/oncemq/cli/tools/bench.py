"""`oncemq bench`: measure this machine. Each figure is shown next to the upper bound that it can't exceed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import json_flag
from oncemq.terminal import is_terminal, note, table

if TYPE_CHECKING:
    from oncemq.tools.bench.results import Row


@click.command(
    cls=Documented,
    exits=BROKER_EXITS,
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq bench
        oncemq bench --seconds 10 --url oncemq://127.0.0.1:5554
        oncemq bench --pin --case "put one by one"
        oncemq bench --case put_many --json | jq '.[] | [.case, .value]'
    """,
)
@click.option(
    "--url",
    metavar="URL[,URL...]",
    help="Measure this broker, with the credentials of the "
    "environment (ONCEMQ_TOKEN_FILE, ONCEMQ_TLS, …). [default: start one for the benchmark]",
)
@click.option(
    "--seconds", metavar="N", type=click.FloatRange(min=0.1), default=3.0, show_default=True, help="Time per case."
)
@click.option(
    "--case",
    "cases",
    multiple=True,
    metavar="NAME",
    help="Run only cases whose names start with this. May be repeated. [default: all]",
)
@click.option(
    "--pin",
    is_flag=True,
    help="Run the broker and the servers of the bounds on one CPU, and the clients on another one.",
)
@json_flag("Print all rows as one JSON array.")
def bench(url: str | None, seconds: float, cases: tuple[str, ...], pin: bool, as_json: bool) -> None:
    """Measure a broker next to its upper bounds.

    Each figure is shown next to the upper bound that the disk, the network or Python set on this machine, measured in
    the same run. REACHED is the share of the bound for rates, and a multiple of the bound for times and for several
    clients compared with one. BROKER US and CLIENT US are microseconds of CPU time for each message.

    The bounds of the network use the transport of the measured address. A broker that is not started here can't be
    pinned: with --url, --pin applies to the clients and the bounds.
    """
    from oncemq.testing.broker_process import drop_credentials
    from oncemq.tools import bench as benchmark

    _check_cases(cases)
    if url is None:
        drop_credentials()
    note(_environment_text(url))
    rows = benchmark.run(url, seconds, list(cases), _progress, pin)
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(rows))
        return
    heads = ["CASE", "VALUE", "UNIT", "LIMIT", "LIMIT IS", "REACHED", "P50 MS", "P99 MS", "P99.9 MS"]
    heads += ["BROKER US", "CLIENT US"]
    for line in table(heads, [_cells(row) for row in rows]):
        click.echo(line)


def _check_cases(cases: tuple[str, ...]) -> None:
    from oncemq.protocol.errors import SettingInvalid
    from oncemq.tools.bench.cases import CASES

    for case in cases:
        if not any(name.startswith(case) for name in CASES):
            listed = "".join(f"\n         {name}" for name in CASES)
            raise SettingInvalid(f"no case is named {case!r}; there are:{listed}")


def _environment_text(url: str | None) -> str:
    """Return what is measured, where, and how durable it is."""
    import oncemq

    broker, disk = "own broker", str(Path.cwd())
    if url is not None:
        with oncemq.connect(url) as client:
            broker, disk = f"broker at {url}", client.health().journal
    return f"{broker}, every put is synced (fdatasync) before it is acknowledged, disk {disk}"


def _progress(text: str) -> None:
    if is_terminal():
        click.echo(f"\r\033[K{text}", nl=False, err=True)


def _cells(row: Row) -> tuple[str, ...]:
    spread = (row.p50_ms, row.p99_ms, row.p999_ms, row.broker_us, row.client_us)
    times = ["-" if value_ms is None else f"{value_ms:,.2f}" for value_ms in spread]
    return (row.case, _number(row.value), row.unit, _number(row.limit), row.limit_name, _reached(row), *times)


def _number(value: float) -> str:
    """
    >>> _number(3_210_987.6), _number(0.5213)
    ('3,210,988', '0.52')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _reached(row: Row) -> str:
    """Return a multiple for times, memory and the comparison with one client, otherwise a percentage."""
    if row.unit.startswith(("ms", "MB")) or row.limit_name == "one client":
        return f"{row.ratio:.1f} ×"
    return f"{row.ratio:.0%}"
