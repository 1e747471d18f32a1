"""A guard for objects that one thread or task may use at a time: overlapping calls raise an error.

A signal handler may raise anywhere, also between a call's claim and its `try`. So a claim names its thread, and
`is_inside` tells whether a call is in progress: a thread that left a claim behind in this gap can claim again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from oncemq.client.runtime.flow import Flow

T = TypeVar("T")


class SingleUserGuard:
    """Raises RuntimeError while another thread or task is inside, or this one already is. A flow is guarded with
    `around`. Plain code does this, and calls nothing between `is_inside` and the line before or after it:

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
        #: At most one: who is inside, or about to be. A dict, because to check and to claim must be one step.
        self._claims: dict[None, int] = {}
        self.is_inside = False
        self.leave = self._claims.clear

    def enter(self) -> int:
        """Claim the object. Returns the identity of the caller, which is inside from now on."""
        me = self._who()
        if self._claims.setdefault(None, me) != me or self.is_inside:
            raise RuntimeError(f"{self._what} is in use by another {self._user}; only one may use it at a time")
        return me

    def around(self, flow: Flow[T]) -> Flow[T]:
        """Run a flow inside the guard."""
        self.enter()
        try:
            self.is_inside = True
            return (yield from flow)
        finally:
            self.is_inside = False
            self.leave()
