"""A guard for what is made for one thread at a time: overlapping calls meet an error, not a muddle."""

from __future__ import annotations

import threading


class OneThread:
    """`with guard:` around each call; raises RuntimeError while another thread is inside."""

    __slots__ = ("_lock", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(f"{self._what} is being used by another thread, and is for one at a time")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
