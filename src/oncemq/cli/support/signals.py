"""Ctrl-C and SIGTERM as exceptions, so that what was begun is given back on the way out; not in the middle of what
must not be torn apart."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 143


class _Hold:
    """Of the process: signals are."""

    depth = 0
    waiting = 0


@contextmanager
def orderly() -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM end the command in an orderly way, the latter with exit code 143."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    former = [signal.signal(number, _on_signal) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, former, strict=True):
            signal.signal(number, handler)


@contextmanager
def held_back() -> Iterator[None]:
    """Inside, these signals wait. What is inside must not take long."""
    _Hold.depth += 1
    try:
        yield
    finally:
        _Hold.depth -= 1
        if _Hold.waiting and not _Hold.depth:
            number, _Hold.waiting = _Hold.waiting, 0
            _on_signal(number, None)


def _on_signal(number: int, _frame: FrameType | None) -> None:
    if _Hold.depth:
        _Hold.waiting = number
    elif number == signal.SIGTERM:
        sys.exit(TERMINATED)
    else:
        raise KeyboardInterrupt
