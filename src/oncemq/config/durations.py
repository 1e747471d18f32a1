"""Durations as people write them: `500ms`, `30s`, `10m`, `2h`, `7d`; a bare number is a number of seconds.

This is the only duration parser. The command line, the settings, HTTP requests and Spark options all use it.
"""

from __future__ import annotations

import math
import re

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d|)", re.ASCII)
_MILLISECONDS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}


def parse_duration_ms(text: str | float, bare_unit: str = "s") -> int:
    """Return a duration in milliseconds. Raise ValueError, with a text for people, for anything else.

    A number without a unit counts `bare_unit`s. The result is rounded to whole milliseconds; a duration that is not
    zero is at least 1 ms.

    >>> parse_duration_ms("500ms"), parse_duration_ms("1.5h"), parse_duration_ms(30), parse_duration_ms("2")
    (500, 5400000, 30000, 2000)
    """
    if isinstance(text, str):
        match = _DURATION.fullmatch(text.strip())
        amount, unit = (float(match[1]), match[2]) if match else (math.nan, "")
    else:
        amount, unit = (math.nan if isinstance(text, bool) else text), ""
    milliseconds = amount * _MILLISECONDS[unit or bare_unit]
    if not 0 <= milliseconds < math.inf:
        bare = {"s": "seconds", "ms": "milliseconds"}[bare_unit]
        raise ValueError(
            f"{text!r} is not a duration: use a number with a unit (ms, s, m, h, d), such as 500ms, 30s, 10m, 2h or "
            f"7d, or a bare number of {bare}."
        )
    return max(round(milliseconds), 1 if milliseconds else 0)


def format_duration(milliseconds: int) -> str:
    """Return the duration in the largest unit that divides it, as `parse_duration_ms` reads it.

    >>> format_duration(604_800_000), format_duration(90_000), format_duration(1500), format_duration(0)
    ('7d', '90s', '1500ms', '0s')
    """
    if not milliseconds:
        return "0s"
    unit = next(unit for unit, factor in _MILLISECONDS.items() if milliseconds % factor == 0)
    return f"{milliseconds // _MILLISECONDS[unit]}{unit}"


def duration_s(text: str) -> float | None:
    """Return the duration in seconds, or None if `text` has no unit or is not a duration."""
    if not text.strip()[-1:].isalpha():
        return None
    try:
        return parse_duration_ms(text) / 1000
    except ValueError:
        return None
