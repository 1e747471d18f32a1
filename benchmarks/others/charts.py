"""The charts of a run, each for light and for dark pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.others.candidates import CASES, GET, PUT, SINGLE
from benchmarks.others.report import OURS, rounded
from benchmarks.others.results import PINNED, PLACEMENTS, UNPINNED, Figures, Row, Run, candidates_of, find
from benchmarks.others.svg import Bar, BarGroup, BarRow, Line, Theme, bar_chart, line_chart

_BOUND = "bound"

LIGHT = Theme(
    name="light",
    background="#ffffff",
    text="#1f2328",
    muted="#59636e",
    grid="#d9dee4",
    colours={
        OURS: "#6639ba",
        "PostgreSQL": "#2f6f9f",
        "Redis Streams": "#c4432b",
        "NATS JetStream": "#1a7f5a",
        _BOUND: "#8c959f",
    },
)
DARK = Theme(
    name="dark",
    background="#14171c",
    text="#e6edf3",
    muted="#9aa4af",
    grid="#2f353d",
    colours={
        OURS: "#b08cff",
        "PostgreSQL": "#6cb2e8",
        "Redis Streams": "#ff8f78",
        "NATS JetStream": "#5fd3a4",
        _BOUND: "#7d8590",
    },
)
THEMES = (LIGHT, DARK)

_DURABLE = "On disk before it is acknowledged"
_NOT_DURABLE = "Acknowledged before it is on disk"


def write_charts(run: Run, folder: Path) -> list[Path]:
    """Write all charts for which the run has figures."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in CHARTS.items():
        for theme in THEMES:
            if drawn := draw(run, theme):
                path = folder / f"{name}-{theme.name}.svg"
                path.write_text(drawn, encoding="utf-8")
                written.append(path)
    return written


def single_put(run: Run, theme: Theme) -> str:
    """Median time of a single put, pinned and not, next to the lower bounds."""
    placements = [name for name in run.placements if find(run.rows, name, SINGLE, 1)]
    if not placements:
        return ""

    def bars(row: Row) -> list[Bar | None]:
        return [
            _bar(run, placement, SINGLE, 1, row, lambda figures: [figures.p50_ms or 0.0], _ms)
            for placement in placements
        ]

    bounds = []
    for transport in dict.fromkeys(bound.transport for bound in run.bounds):
        bounds_ms = {bound.placement: bound.stored_echo_ms for bound in run.bounds if bound.transport == transport}
        found = [bounds_ms.get(placement) for placement in placements]
        drawn = [None if bound_ms is None else Bar([bound_ms], _ms([bound_ms])) for bound_ms in found]
        bounds.append(BarRow(f"echo with sync, {transport}", "two Python processes", _BOUND, drawn))
    groups = [*_groups(run, placements[0], bars), BarGroup("Lower bound, without a broker", bounds)]
    panels = [PLACEMENTS[placement] for placement in placements]
    subtitle = f"Median in milliseconds: one client, {run.message_bytes} bytes, each put acknowledged before the next."
    return bar_chart("Single put", subtitle + " Shorter is better.", panels, groups, theme)


def throughput(run: Run, theme: Theme) -> str:
    """Messages per second of one producer, and of one consumer."""
    placement = run.placement(UNPINNED)
    if not any(find(run.rows, placement, case, 1) for case in (PUT, GET)):
        return ""

    def bars(row: Row) -> list[Bar | None]:
        return [
            _bar(run, placement, case, 1, row, lambda figures: [figures.rate], _first_rounded) for case in (PUT, GET)
        ]

    subtitle = f"Messages of {run.message_bytes} bytes per second: one client, {PLACEMENTS[placement]}."
    panels = ["put, all acknowledged", "get, including acks"]
    title = "Throughput in batches"
    return bar_chart(title, subtitle + " Longer is better.", panels, _groups(run, placement, bars), theme)


def cpu(run: Run, theme: Theme) -> str:
    """CPU time of a single put. It varies least if neither process moves between CPUs."""
    placement = run.placement(PINNED)
    if not find(run.rows, placement, SINGLE, 1):
        return ""

    def values(figures: Figures) -> list[float]:
        return [figures.server_us, figures.client_us]

    def bars(row: Row) -> list[Bar | None]:
        return [_bar(run, placement, SINGLE, 1, row, values, _sum_text)]

    subtitle = f"Microseconds for each message: one client, {PLACEMENTS[placement]}. Shorter is better.\n"
    subtitle += "Full colour: the server with its child processes. Pale: the Python client."
    return bar_chart("CPU time of a single put", subtitle, [""], _groups(run, placement, bars), theme)


def clients(run: Run, theme: Theme) -> str:
    """Single puts per second by the number of clients, over TCP."""
    placement = run.placement(UNPINNED)
    counts = [count for count in CASES[SINGLE] if find(run.rows, placement, SINGLE, count)]
    if len(counts) < 2:
        return ""
    lines = []
    for row in candidates_of(run, placement):
        rates = [each.figures.rate for count in counts for each in find(run.rows, placement, SINGLE, count, like=row)]
        if not row.is_unix and len(rates) == len(counts):
            lines.append(_line(row, rates))
    subtitle = f"Puts per second over TCP, {run.message_bytes} bytes, {PLACEMENTS[placement]}. Higher is better.\n"
    subtitle += "Solid: on disk before it is acknowledged. Dashed: acknowledged before it is on disk."
    ticks = [f"{count} client{'s' if count > 1 else ''}" for count in counts]
    return line_chart("Single puts of several clients", subtitle, ticks, lines, _rounded_or_zero, theme)


CHARTS: dict[str, Callable[[Run, Theme], str]] = {
    "single-put": single_put,
    "throughput": throughput,
    "clients": clients,
    "cpu": cpu,
}


def _groups(run: Run, placement: str, bars: Callable[[Row], list[Bar | None]]) -> list[BarGroup]:
    rows = candidates_of(run, placement)
    return [
        BarGroup(title, [_bar_row(row, bars(row)) for row in rows if row.is_durable is is_durable])
        for title, is_durable in ((_DURABLE, True), (_NOT_DURABLE, False))
    ]


def _line(row: Row, rates: Sequence[float]) -> Line:
    return Line(
        label=row.broker,
        note=row.durability,
        colour=row.broker,
        values=rates,
        is_dashed=not row.is_durable,
        is_bold=row.broker == OURS,
    )


def _bar_row(row: Row, bars: Sequence[Bar | None]) -> BarRow:
    return BarRow(
        label=f"{row.broker}, {row.transport}",
        note=row.durability,
        colour=row.broker,
        bars=bars,
        is_striped=not row.is_durable,
        is_bold=row.broker == OURS,
    )


def _bar(
    run: Run,
    placement: str,
    case: str,
    count: int,
    row: Row,
    values: Callable[[Figures], list[float]],
    text: Callable[[Sequence[float]], str],
) -> Bar | None:
    found = find(run.rows, placement, case, count, like=row)
    if not found:
        return None
    shown = values(found[0].figures)
    return Bar(shown, text(shown))


def _ms(values: Sequence[float]) -> str:
    return f"{values[0]:.2f}"


def _first_rounded(values: Sequence[float]) -> str:
    return rounded(values[0])


def _sum_text(values: Sequence[float]) -> str:
    return " + ".join(rounded(value) for value in values)


def _rounded_or_zero(value: float) -> str:
    return rounded(value) if value else "0"
