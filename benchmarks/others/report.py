"""The tables of a run: aligned for a terminal, and as Markdown for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from benchmarks.others.candidates import CASES, GET, MEANINGS, PUT, ROUND_TRIP, SINGLE
from benchmarks.others.results import PLACEMENTS, Bound, Figures, Row, Run, candidates_of, find
from oncemq.terminal import table

OURS = "OnceMQ"
_NONE = "-"


class Table(msgspec.Struct, frozen=True):
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: How many columns at the left are text. The others are figures.
    texts: int


def tables(run: Run) -> list[Table]:
    found = []
    for placement in run.placements:
        found += [_one_client(run, placement), _many_clients(run, placement)]
    found.append(_bounds(run))
    return [each for each in found if each.rows and len(each.heads) > each.texts]


def as_text(run: Run) -> str:
    """Return the tables for a terminal."""
    parts = [_setting_text(run)]
    for each in tables(run):
        lines = table(each.heads, each.rows)
        parts.append("\n".join([each.title, "", *lines]))
    return "\n\n".join(parts) + "\n"


def as_markdown(run: Run) -> str:
    """Return the tables for docs/benchmarks.md."""
    parts = [_setting_text(run)]
    for each in tables(run):
        marks = ["---" if number < each.texts else "---:" for number in range(len(each.heads))]
        lines = [f"| {' | '.join(cells)} |" for cells in (each.heads, marks, *each.rows)]
        parts.append("\n".join([f"**{each.title}**", "", *lines]))
    return "\n\n".join(parts) + "\n"


def _setting_text(run: Run) -> str:
    rounds = "One round" if run.rounds == 1 else f"Medians of {run.rounds} rounds, in which all candidates alternate"
    return (
        f"{run.date}, {run.machine}. Messages of {run.message_bytes} bytes. {rounds}, with {run.seconds:g} s for each "
        "measurement."
    )


# The columns that say what a row is.

_NAMES = ("broker", "acknowledged after", "on disk", "transport", "Python client")


def _name_cells(row: Row) -> list[str]:
    return [row.server, row.durability, "yes" if row.is_durable else "no", row.transport, row.client]


class _Column(msgspec.Struct, frozen=True):
    head: str
    case: str
    clients: int
    #: The name of a field of the figures.
    field: str


_ONE_CLIENT = [
    _Column("single put, ms", SINGLE, 1, "p50_ms"),
    _Column("p99", SINGLE, 1, "p99_ms"),
    _Column("round trip, ms", ROUND_TRIP, 1, "p50_ms"),
    _Column("batched put/s", PUT, 1, "rate"),
    _Column("batched get/s", GET, 1, "rate"),
    _Column("server µs/put", SINGLE, 1, "server_us"),
    _Column("client µs/put", SINGLE, 1, "client_us"),
]
_MANY_CLIENTS = [
    _Column("puts/s, 1 client", SINGLE, 1, "rate"),
    _Column("8 clients", SINGLE, 8, "rate"),
    _Column("64 clients", SINGLE, 64, "rate"),
    _Column("ms at 64", SINGLE, 64, "p50_ms"),
    _Column("server µs/put at 64", SINGLE, 64, "server_us"),
    _Column("round trips/s, 8", ROUND_TRIP, 8, "rate"),
    _Column("batched put/s, 8", PUT, 8, "rate"),
    _Column("batched get/s, 8", GET, 8, "rate"),
]


def _one_client(run: Run, placement: str) -> Table:
    return _figure_table(run, placement, f"One client, {placement}: {PLACEMENTS[placement]}", _ONE_CLIENT)


def _many_clients(run: Run, placement: str) -> Table:
    title = f"Several clients, {placement}: {PLACEMENTS[placement]}; 64 clients are 8 processes with 8 connections"
    return _figure_table(run, placement, title, _MANY_CLIENTS)


def _figure_table(run: Run, placement: str, title: str, columns: Sequence[_Column]) -> Table:
    shown = [column for column in columns if find(run.rows, placement, column.case, column.clients)]
    rows = [
        [*_name_cells(row), *(_cell(run, placement, column, row) for column in shown)]
        for row in candidates_of(run, placement)
    ]
    return Table(title, [*_NAMES, *(column.head for column in shown)], rows, len(_NAMES))


def _cell(run: Run, placement: str, column: _Column, row: Row) -> str:
    found = find(run.rows, placement, column.case, column.clients, like=row)
    return figure_text(found[0].figures, column.field) if found else _NONE


def figure_text(figures: Figures, field: str) -> str:
    """
    >>> figures = Figures(rate=2_140_512.3, server_us=91.26, client_us=1234.5, p50_ms=0.8312)
    >>> [figure_text(figures, field) for field in ("rate", "server_us", "client_us", "p50_ms", "p99_ms")]
    ['2,140,000', '91', '1,230', '0.83', '-']
    """
    value = getattr(figures, field)
    if value is None:
        return _NONE
    return f"{value:.2f}" if field.endswith("_ms") else rounded(value)


def rounded(value: float) -> str:
    """Return a number with the three digits that a noisy machine allows.

    >>> rounded(3_084.2), rounded(41.26), rounded(0.523)
    ('3,080', '41', '0.52')
    """
    if value < 10:
        return f"{value:.2f}"
    digits = max(0, len(str(int(value))) - 3)
    return f"{round(value, -digits):,.0f}"


# Bounds.


def _bounds(run: Run) -> Table:
    heads = (
        "transport",
        "processes",
        "sync, ms",
        "echo, ms",
        "sum, ms",
        "echo with sync, ms",
        f"single put of {OURS}, ms",
        "to the sum",
        "to the echo with sync",
    )
    rows = []
    for bound in run.bounds:
        ours_ms = our_single_put_ms(run, bound)
        found = (bound.sync_ms, bound.echo_ms, bound.total_ms, bound.stored_echo_ms)
        texts = [f"{value:.3f}" for value in found]
        ours = [_NONE] * 3
        if ours_ms is not None:
            ratios = (ours_ms / bound.total_ms, ours_ms / bound.stored_echo_ms)
            ours = [f"{ours_ms:.3f}", *(f"{ratio:.2f} ×" for ratio in ratios)]
        rows.append([bound.transport, bound.placement, *texts, *ours])
    title = (
        "Lower bounds of a single put: a raw write and sync, a raw echo between two Python processes, and an echo that "
        "writes and syncs before it answers"
    )
    return Table(title, heads, rows, 2)


def our_single_put_ms(run: Run, bound: Bound) -> float | None:
    """Return the median of this broker over the same kind of transport."""
    for row in find(run.rows, bound.placement, SINGLE, 1):
        if row.broker == OURS and row.is_unix == bound.is_unix:
            return row.figures.p50_ms
    return None


def legend() -> str:
    """Return what the cases mean."""
    return "\n".join(f"  {case:12} {MEANINGS[case]} ({', '.join(map(str, CASES[case]))} clients)" for case in CASES)
