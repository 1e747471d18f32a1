"""A guard for what is made for one thread or task at a time: overlapping calls meet an error, not a muddle."""

from __future__ import annotations

import threading
from typing import NoReturn


class OneUser:
    """`with guard:` around each call; raises RuntimeError while another thread or task is inside.

    The same by hand is quicker: `enter(False) or refuse()`, and `leave()` at the end."""

    __slots__ = ("_user", "_what", "enter", "leave")

    def __init__(self, what: str, user: str = "thread") -> None:
        self._what = what
        self._user = user
        lock = threading.Lock()
        self.enter = lock.acquire
        self.leave = lock.release

    def refuse(self) -> NoReturn:
        raise RuntimeError(f"{self._what} is being used by another {self._user}, and is for one at a time")

    def __enter__(self) -> None:
        if not self.enter(False):
            self.refuse()

    def __exit__(self, *_: object) -> None:
        self.leave()
