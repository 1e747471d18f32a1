"""Draws charts as SVG files: rows of bars in one or more panels, and lines. A theme gives the colours.

Charts are shown as images, so a file contains everything that it needs, and a background that fits its theme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise

import msgspec

WIDTH = 860
_MARGIN = 28
_LABEL_WIDTH = 218
_PANEL_GAP = 34
#: Room at the right end of a panel for the figure of its longest bar.
_FIGURE_WIDTH = 78
_ROW_HEIGHT = 36
_BAR_HEIGHT = 16
_GROUP_HEIGHT = 34
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


class Theme(msgspec.Struct, frozen=True):
    name: str
    background: str
    text: str
    muted: str
    grid: str
    #: Name of a colour → colour.
    colours: Mapping[str, str]


class Bar(msgspec.Struct, frozen=True):
    """Segments one after the other, and their text at the end."""

    values: Sequence[float]
    text: str


class BarRow(msgspec.Struct, frozen=True):
    label: str
    #: Smaller, below the label.
    note: str
    colour: str
    #: For each panel; None: no bar.
    bars: Sequence[Bar | None]
    #: Drawn as an outline with stripes.
    is_striped: bool = False
    is_bold: bool = False


class BarGroup(msgspec.Struct, frozen=True):
    title: str
    rows: Sequence[BarRow]


class Line(msgspec.Struct, frozen=True):
    label: str
    #: Smaller, below the label.
    note: str
    colour: str
    values: Sequence[float]
    is_dashed: bool = False
    is_bold: bool = False


def bar_chart(title: str, subtitle: str, panels: Sequence[str], groups: Sequence[BarGroup], theme: Theme) -> str:
    """Draw groups of rows. Each panel has its own scale, and starts at 0."""
    groups = [group for group in groups if group.rows]
    top = _head_height(subtitle) + (26 if any(panels) else 0)
    height = top + sum(_GROUP_HEIGHT + _ROW_HEIGHT * len(group.rows) for group in groups) + 12
    left = _MARGIN + _LABEL_WIDTH
    width = (WIDTH - _MARGIN - left - _PANEL_GAP * (len(panels) - 1)) / len(panels)
    lefts = [left + number * (width + _PANEL_GAP) for number in range(len(panels))]
    scales = [(width - _FIGURE_WIDTH) / _longest(groups, number) for number in range(len(panels))]

    parts = [_text(x, top - 8, name, theme.muted, 12, weight=600) for x, name in zip(lefts, panels, strict=True)]
    y = float(top)
    for group in groups:
        parts.append(_text(_MARGIN, y + 21, group.title, theme.muted, 12, weight=600))
        parts.append(_rule(_MARGIN, WIDTH - _MARGIN, y + 28, theme))
        y += _GROUP_HEIGHT
        parts += [_rule_down(x, y - 2, y + _ROW_HEIGHT * len(group.rows) - 2, theme) for x in lefts]
        for row in group.rows:
            parts.append(_row(row, y, lefts, scales, theme))
            y += _ROW_HEIGHT
    return _document(title, subtitle, height, parts, theme)


def _longest(groups: Sequence[BarGroup], panel: int) -> float:
    bars = [row.bars[panel] for group in groups for row in group.rows]
    return max([sum(bar.values) for bar in bars if bar is not None] or [0.0]) or 1.0


def _row(row: BarRow, y: float, lefts: Sequence[float], scales: Sequence[float], theme: Theme) -> str:
    weight = 700 if row.is_bold else 500
    parts = [
        _text(_MARGIN, y + 15, row.label, theme.text, 13, weight=weight),
        _text(_MARGIN, y + 29, row.note, theme.muted, 11),
    ]
    for bar, left, scale in zip(row.bars, lefts, scales, strict=True):
        if bar is not None:
            parts.append(_bar(bar, row, left, y + 9, scale, theme))
    return "".join(parts)


def _bar(bar: Bar, row: BarRow, x: float, y: float, scale: float, theme: Theme) -> str:
    """The first segment has the full colour, the following ones are paler."""
    colour = theme.colours[row.colour]
    fill = f"url(#{_stripes_id(row.colour)})" if row.is_striped else colour
    parts = []
    for number, value in enumerate(bar.values):
        width = max(1.5, value * scale)
        opacity = "" if number == 0 else ' fill-opacity="0.38"'
        stroke = f' stroke="{colour}" stroke-width="1"' if row.is_striped else ""
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BAR_HEIGHT}" rx="2" fill="{fill}"'
            f"{opacity}{stroke}/>"
        )
        x += width
    weight = 700 if row.is_bold else 400
    parts.append(_text(x + 7, y + 12.5, bar.text, theme.text, 12, weight=weight))
    return "".join(parts)


def line_chart(
    title: str, subtitle: str, ticks: Sequence[str], lines: Sequence[Line], figure: Callable[[float], str], theme: Theme
) -> str:
    """Draw lines over the same ticks, each with its name and its last value at the right end."""
    top, bottom, left, right = _head_height(subtitle) + 12, 396, _MARGIN + 54, WIDTH - 238
    highest, step = axis(max([value for line in lines for value in line.values] or [1.0]))

    def x_of(number: int) -> float:
        return left + 24 + (right - left - 24) * number / max(1, len(ticks) - 1)

    def y_of(value: float) -> float:
        return bottom - (bottom - top) * value / highest

    parts = []
    for number in range(round(highest / step) + 1):
        y = y_of(number * step)
        parts.append(_rule(left, right, y, theme))
        parts.append(_text(left - 10, y + 4, figure(number * step), theme.muted, 11, anchor="end"))
    parts += [
        _text(x_of(number), bottom + 22, tick, theme.muted, 12, anchor="middle") for number, tick in enumerate(ticks)
    ]
    # Bold lines are drawn last, on top of the others.
    for line in sorted(lines, key=lambda line: line.is_bold):
        parts.append(_line(line, [(x_of(number), y_of(value)) for number, value in enumerate(line.values)], theme))
    wanted = [y_of(line.values[-1]) for line in lines]
    for line, end_y, y in zip(lines, wanted, spread(wanted, 30, top, bottom), strict=True):
        colour = theme.colours[line.colour]
        parts.append(
            f'<path d="M{right + 7:.1f} {end_y:.1f}L{right + 19:.1f} {y:.1f}" stroke="{colour}" stroke-opacity="0.6"'
            ' fill="none"/>'
        )
        weight = 700 if line.is_bold else 500
        label = f"{line.label}  {figure(line.values[-1])}"
        parts.append(_text(right + 24, y - 1, label, theme.text, 12.5, weight=weight))
        parts.append(_text(right + 24, y + 12, line.note, theme.muted, 11))
    return _document(title, subtitle, bottom + 40, parts, theme)


def _line(line: Line, points: Sequence[tuple[float, float]], theme: Theme) -> str:
    colour = theme.colours[line.colour]
    dashes = ' stroke-dasharray="5 4"' if line.is_dashed else ""
    width = 3 if line.is_bold else 2
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width + 1.5}" stroke="{colour}" stroke-width="2"'
        f' fill="{theme.background if line.is_dashed else colour}"/>'
        for x, y in points
    )
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>{dots}'


def axis(value: float) -> tuple[float, float]:
    """Return the top of an axis and the distance of its ticks, both round, for this highest value.

    >>> axis(8_700), axis(0.43), axis(0)
    ((10000.0, 2000.0), (0.5, 0.1), (1.0, 0.25))
    """
    if value <= 0:
        return 1.0, 0.25
    power = 10.0 ** math.floor(math.log10(value / 4))
    step = next(power * digit for digit in (1, 2, 2.5, 5, 10) if value / (power * digit) <= 5.000001)
    return round(math.ceil(value / step - 1e-9) * step, 12), step


def spread(wanted: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """Return positions near the wanted ones, in the same order, that are apart by at least this distance. If they do
    not fit between `low` and `high`, they exceed `low`.

    >>> spread([100, 102, 50], 20, 0, 130)
    [91.0, 111.0, 50.0]
    """
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    downwards, upwards = list(map(float, wanted)), list(map(float, wanted))
    for before, number in pairwise(order):
        downwards[number] = max(wanted[number], downwards[before] + distance)
    for after, number in pairwise(reversed(order)):
        upwards[number] = min(wanted[number], upwards[after] - distance)
    # Both keep the distance, so their mean does, and lies in the middle of what crowds.
    found = [max(low, (down + up) / 2) for down, up in zip(downwards, upwards, strict=True)]
    for before, number in pairwise(order):
        found[number] = max(found[number], found[before] + distance)
    limit = high
    for number in reversed(order):
        limit = found[number] = min(found[number], limit)
        limit -= distance
    return found


def _head_height(subtitle: str) -> int:
    return 52 + 18 * len(subtitle.splitlines())


def _document(title: str, subtitle: str, height: float, parts: Sequence[str], theme: Theme) -> str:
    heads = [_text(_MARGIN, 38, title, theme.text, 18, weight=700)]
    heads += [
        _text(_MARGIN, 60 + 18 * number, line, theme.muted, 12.5) for number, line in enumerate(subtitle.splitlines())
    ]
    patterns = "".join(_stripes(name, colour) for name, colour in theme.colours.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" font-family="{escape(_FONT)}">\n'
        f"<title>{escape(title)}</title>\n<defs>{patterns}</defs>\n"
        f'<rect width="{WIDTH}" height="{height:.0f}" rx="8" fill="{theme.background}"/>\n'
        + "\n".join([*heads, *parts])
        + "\n</svg>\n"
    )


def _stripes_id(name: str) -> str:
    """An id in XML has no spaces."""
    return f"stripes-{name.replace(' ', '-')}"


def _stripes(name: str, colour: str) -> str:
    return (
        f'<pattern id="{_stripes_id(name)}" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="6" height="6" fill="{colour}" fill-opacity="0.12"/>'
        f'<rect width="2" height="6" fill="{colour}" fill-opacity="0.55"/></pattern>'
    )


def _text(x: float, y: float, text: str, colour: str, size: float, *, weight: int = 400, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _rule(x1: float, x2: float, y: float, theme: Theme) -> str:
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{theme.grid}"/>'


def _rule_down(x: float, y1: float, y2: float, theme: Theme) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="{theme.muted}" stroke-opacity="0.6"/>'
