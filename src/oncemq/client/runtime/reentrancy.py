"""A guard for what is made for one thread or task at a time: overlapping calls meet an error, not a muddle.

A signal handler may raise anywhere, also between a call's claim and its `try`. So a claim names who made it, and
`is_inside` says whether a call goes on: a claim that its thread left behind in such a gap is its own again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from oncemq.client.runtime.flow import Flow

T = TypeVar("T")


class SingleUserGuard:
    """Raises RuntimeError while another thread or task is inside, or this one is already. Around a flow: `around`.
    Else by hand, and nothing may be called between `is_inside` and what stands beside it:

        guard.enter()
        try:
            guard.is_inside = True
            ...
        finally:
            guard.is_inside = False
            guard.leave()
    """

    __slots__ = ("_claims", "_user", "_what", "_who", "is_inside", "leave")

    def __init__(self, what: str, user: str = "thread", who: Callable[[], int] = threading.get_ident) -> None:
        self._what = what
        self._user = user
        self._who = who
        #: One at the most: who is inside, or about to be. A dict, since to look and to claim must be one step.
        self._claims: dict[None, int] = {}
        self.is_inside = False
        self.leave = self._claims.clear

    def enter(self) -> int:
        """Returns who is inside from now on."""
        me = self._who()
        if self._claims.setdefault(None, me) != me or self.is_inside:
            raise RuntimeError(f"{self._what} is being used by another {self._user}, and is for one at a time")
        return me

    def around(self, flow: Flow[T]) -> Flow[T]:
        self.enter()
        try:
            self.is_inside = True
            return (yield from flow)
        finally:
            self.is_inside = False
            self.leave()
