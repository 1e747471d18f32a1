"""Draws line charts over time as SVG. The colours come from the style sheet of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape

import msgspec

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 28
_TIME_TICKS = 4
#: The top of an axis, as a multiple of a power of ten, and the number of its intervals: each is a round number.
_SCALES = {1: 5, 2: 4, 2.5: 5, 5: 5, 10: 5}
_COLOURS = 8

#: (milliseconds since 1970, value)
Point = tuple[float, float]


class Line(msgspec.Struct, frozen=True):
    name: str
    points: Sequence[Point]
    #: None = that of its place among the lines.
    colour: int | None = None
    is_dashed: bool = False


def line_chart(lines: Sequence[Line], unit: Callable[[float], str], width_ms: float) -> str:
    """Draw a chart. `unit` formats a value, and `width_ms` is the length of a window."""
    shown = [line for line in lines if line.points]
    if not shown:
        return '<p class="none">No data.</p>'
    frame = _Frame([point for line in shown for point in line.points], width_ms)
    parts = [_axes(frame, unit)]
    styles = [_style(line, number) for number, line in enumerate(shown)]
    for line, style in zip(shown, styles, strict=True):
        parts.append(_line(frame, line, style, unit, width_ms))
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'
    return svg + _legend(shown, styles)


def _style(line: Line, number: int) -> str:
    """The classes of a line in the style sheet."""
    colour = number if line.colour is None else line.colour
    return f"line-{colour % _COLOURS}" + (" dashed" if line.is_dashed else "")


class _Frame:
    """Converts points to coordinates."""

    def __init__(self, points: Sequence[Point], width_ms: float) -> None:
        times = [time for time, _ in points]
        self.first, self.last = min(times), max(times) + width_ms
        self.top, self.intervals = _scale(max(value for _, value in points))

    def x(self, time: float) -> float:
        return _LEFT + (time - self.first) / (self.last - self.first) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.top * (_HEIGHT - _TOP - _BOTTOM)


def _scale(value: float) -> tuple[float, int]:
    """The top of the axis for this highest value, and the number of its intervals."""
    if value <= 0:
        return 1.0, _SCALES[1]
    power = 10.0 ** math.floor(math.log10(value))
    return next((power * step, count) for step, count in _SCALES.items() if power * step >= value * 0.999999)


def _axes(frame: _Frame, unit: Callable[[float], str]) -> str:
    parts = []
    for tick in range(frame.intervals + 1):
        value = frame.top * tick / frame.intervals
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(unit(value))}</text>')
    for tick in range(_TIME_TICKS + 1):
        time = frame.first + (frame.last - frame.first) * tick / _TIME_TICKS
        anchor = "start" if tick == 0 else "end" if tick == _TIME_TICKS else "middle"
        label = time_text(time, frame.last - frame.first)
        parts.append(f'<text x="{frame.x(time):.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{label}</text>')
    return "".join(parts)


def _line(frame: _Frame, line: Line, style: str, unit: Callable[[float], str], width_ms: float) -> str:
    parts = []
    for run in _runs(line.points, width_ms):
        points = " ".join(f"{frame.x(time + width_ms / 2):.1f},{frame.y(value):.1f}" for time, value in run)
        parts.append(f'<polyline class="{style}" points="{points}"/>')
    for time, value in line.points:
        tooltip = f"{line.name}: {unit(value)}, {time_text(time, 0)}"
        parts.append(
            f'<circle class="{style}" cx="{frame.x(time + width_ms / 2):.1f}" cy="{frame.y(value):.1f}" r="2.2">'
            f"<title>{escape(tooltip)}</title></circle>"
        )
    return "".join(parts)


def _runs(points: Sequence[Point], width_ms: float) -> list[list[Point]]:
    """The points in runs of windows without a gap. A line through a gap would show values that do not exist."""
    runs: list[list[Point]] = []
    for point in points:
        if not runs or point[0] - runs[-1][-1][0] > 1.5 * width_ms:
            runs.append([])
        runs[-1].append(point)
    return runs


def _legend(lines: Sequence[Line], styles: Sequence[str]) -> str:
    items = "".join(
        f'<li><span class="swatch {style}"></span>{escape(line.name)}</li>'
        for line, style in zip(lines, styles, strict=True)
    )
    return f'<ul class="legend">{items}</ul>'


def fill_gaps(points: Sequence[Point], width_ms: float, value_between: float | None) -> list[Point]:
    """Add points for windows that are missing, because nothing happened in them. None: the value before the gap."""
    found: list[Point] = []
    for time, value in sorted(points):
        while found and time - found[-1][0] > 1.5 * width_ms:
            found.append((found[-1][0] + width_ms, found[-1][1] if value_between is None else value_between))
        found.append((time, value))
    return found


def time_text(time_ms: float, span_ms: float) -> str:
    """A time in UTC, as short as the span of the axis allows; complete for a span of 0."""
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    if not span_ms:
        return f"{time:%Y-%m-%d %H:%M:%S}"
    if span_ms > 2 * 24 * 3_600_000:
        return f"{time:%d %b}"
    if span_ms > 600_000:
        return f"{time:%H:%M}"
    return f"{time:%H:%M:%S}" if span_ms > 10_000 else f"{time:%H:%M:%S}.{time.microsecond // 1000:03d}"
