"""A guard for what is made for one thread at a time: overlapping calls meet an error, not a muddle."""

from __future__ import annotations

import threading
from typing import NoReturn


class OneThread:
    """`with guard:` around each call; raises RuntimeError while another thread is inside.

    The same by hand is quicker: `enter(False) or refuse()`, and `leave()` at the end."""

    __slots__ = ("_what", "enter", "leave")

    def __init__(self, what: str) -> None:
        self._what = what
        lock = threading.Lock()
        self.enter = lock.acquire
        self.leave = lock.release

    def refuse(self) -> NoReturn:
        raise RuntimeError(f"{self._what} is being used by another thread, and is for one at a time")

    def __enter__(self) -> None:
        if not self.enter(False):
            self.refuse()

    def __exit__(self, *_: object) -> None:
        self.leave()
