"""SIGTERM as Ctrl-C is: an exception, so that what was begun is given back on the way out."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

TERMINATED = 143


@contextmanager
def orderly_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM ends the command in an orderly way, with exit code 143."""
    former = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(TERMINATED)
