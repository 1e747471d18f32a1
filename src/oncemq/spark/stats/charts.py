"""Draws line charts over time as SVG. The colours come from the style sheet of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape

import msgspec

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 28
_TICKS = 4

#: (milliseconds since 1970, value)
Point = tuple[float, float]


class Line(msgspec.Struct, frozen=True):
    name: str
    points: Sequence[Point]


def line_chart(lines: Sequence[Line], unit: Callable[[float], str], width_ms: float) -> str:
    """Draw a chart. `unit` formats a value, and `width_ms` is the length of a window."""
    shown = [line for line in lines if line.points]
    if not shown:
        return '<p class="none">No data.</p>'
    frame = _Frame([point for line in shown for point in line.points], width_ms)
    parts = [_axes(frame, unit)]
    for number, line in enumerate(shown):
        parts.append(_line(frame, line, number, unit, width_ms))
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'
    return svg + _legend(shown)


class _Frame:
    """Converts points to coordinates."""

    def __init__(self, points: Sequence[Point], width_ms: float) -> None:
        times = [time for time, _ in points]
        self.first, self.last = min(times), max(times) + width_ms
        self.top = _round_up(max(value for _, value in points))

    def x(self, time: float) -> float:
        return _LEFT + (time - self.first) / (self.last - self.first) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.top * (_HEIGHT - _TOP - _BOTTOM)


def _round_up(value: float) -> float:
    """Round up to 1, 2, 2.5, 5 or 10 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= value * 0.999999)


def _axes(frame: _Frame, unit: Callable[[float], str]) -> str:
    parts = []
    for tick in range(_TICKS + 1):
        value = frame.top * tick / _TICKS
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(unit(value))}</text>')
    for tick in range(_TICKS + 1):
        time = frame.first + (frame.last - frame.first) * tick / _TICKS
        anchor = "start" if tick == 0 else "end" if tick == _TICKS else "middle"
        label = time_text(time, frame.last - frame.first)
        parts.append(f'<text x="{frame.x(time):.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{label}</text>')
    return "".join(parts)


def _line(frame: _Frame, line: Line, number: int, unit: Callable[[float], str], width_ms: float) -> str:
    colour = f"line-{number % 8}"
    points = " ".join(f"{frame.x(time + width_ms / 2):.1f},{frame.y(value):.1f}" for time, value in line.points)
    parts = [f'<polyline class="{colour}" points="{points}"/>']
    for time, value in line.points:
        tooltip = f"{line.name}: {unit(value)}, {time_text(time, 0)}"
        parts.append(
            f'<circle class="{colour}" cx="{frame.x(time + width_ms / 2):.1f}" cy="{frame.y(value):.1f}" r="2.2">'
            f"<title>{escape(tooltip)}</title></circle>"
        )
    return "".join(parts)


def _legend(lines: Sequence[Line]) -> str:
    items = "".join(
        f'<li><span class="swatch line-{number % 8}"></span>{escape(line.name)}</li>'
        for number, line in enumerate(lines)
    )
    return f'<ul class="legend">{items}</ul>'


def with_gaps_as_zero(points: Sequence[Point], width_ms: float) -> list[Point]:
    """Add zeros for windows without messages. Without them, a line would connect the windows around a gap."""
    found: list[Point] = []
    for time, value in sorted(points):
        if found and time - found[-1][0] > 1.5 * width_ms:
            found.append((found[-1][0] + width_ms, 0.0))
            if time - found[-1][0] > 1.5 * width_ms:
                found.append((time - width_ms, 0.0))
        found.append((time, value))
    return found


def time_text(time_ms: float, span_ms: float) -> str:
    """A time in UTC, as short as the span of the axis allows; complete for a span of 0."""
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    if not span_ms:
        return f"{time:%Y-%m-%d %H:%M:%S}"
    if span_ms > 2 * 24 * 3_600_000:
        return f"{time:%d %b}"
    return f"{time:%H:%M}" if span_ms > 600_000 else f"{time:%H:%M:%S}"
