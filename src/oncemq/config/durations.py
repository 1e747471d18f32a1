"""Spans of time as people write them: `500ms`, `5s`, `10m`, `2h`, `7d`."""

from __future__ import annotations

import re

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def duration_s(text: str) -> float | None:
    """
    >>> duration_s("500ms"), duration_s("2h"), duration_s("soon")
    (0.5, 7200.0, None)
    """
    match = _SPAN.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _SECONDS[match[2]]
