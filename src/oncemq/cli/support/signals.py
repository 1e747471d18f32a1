"""Ctrl-C, SIGTERM and SIGHUP as exceptions, so that resources are released on the way out.

The signals are deferred inside blocks that must run to their end.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from oncemq.terminal import signals_handled

TERMINATED = 143


class _Deferral:
    """State of the whole process, because signals concern the whole process."""

    depth = 0
    pending = 0


@contextmanager
def orderly_exit() -> Iterator[None]:
    """Inside, these signals raise exceptions; SIGTERM and SIGHUP end the command with exit code 143."""
    with signals_handled(_on_signal):
        yield


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Inside, these signals wait until the block ends. The block must be short, or watch `is_signal_deferred`."""
    _Deferral.depth += 1
    try:
        yield
    finally:
        _Deferral.depth -= 1
        if _Deferral.pending and not _Deferral.depth:
            number, _Deferral.pending = _Deferral.pending, 0
            _on_signal(number, None)


def is_signal_deferred() -> bool:
    """Whether a signal waits for the end of the block. What takes long in it should end early."""
    return bool(_Deferral.pending)


def _on_signal(number: int, _frame: FrameType | None) -> None:
    if _Deferral.depth:
        _Deferral.pending = number
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        sys.exit(TERMINATED)
