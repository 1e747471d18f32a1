"""Which connections of a ZeroMQ listener were admitted by the gate, and have not ended.

When libzmq asks whether a connection is to be admitted, it does not say which one. The first message of the connection
tells, by the number that it was admitted under (zap.py): from then on, its end is known exactly. A connection that ends
before its first message can't be told from others like it. Then the one that was admitted first counts as ended. So the
sum is right in any case; single users may have one too many or too few while they have connections that were never
used.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable

from oncemq.net.connection import Connection
from oncemq.net.listener import Listener

#: How long the news of a connection may take at most.
_UNKNOWN_S = 1.0
#: How often unknown connections are counted.
_COUNT_EVERY_S = 0.25


class Admissions:
    """For the thread of the socket, except `gone`."""

    def __init__(self, listener: Listener, left: Callable[[str], None]) -> None:
        """`left` is called with the caller of each connection that was admitted and has ended."""
        self._listener = listener
        self._left = left
        self._numbers = itertools.count(1)
        #: Number → caller, of connections that have sent messages.
        self._known: dict[int, str] = {}
        #: Number → caller and time of the admission, of others, the oldest first.
        self._unknown: dict[int, tuple[str, float]] = {}
        self._gone: deque[Connection] = deque()
        self._count_at_s = 0.0
        listener.when_gone = self._gone.append

    def __len__(self) -> int:
        return len(self._known) + len(self._unknown)

    def add(self, caller: str) -> int:
        """Return the number of a connection that is admitted now."""
        number = next(self._numbers)
        self._unknown[number] = (caller, time.monotonic())
        return number

    def note_message(self, connection: Connection, number: int, caller: str) -> None:
        """A message has told which connection it is."""
        connection.caller = caller
        if connection.number or not self._listener.has(connection):
            # There is no news of the connection yet, and the descriptor may have belonged to another one. The next
            # message will tell.
            return
        connection.number = number
        if self._unknown.pop(number, None) is not None:
            self._known[number] = caller

    def settle(self) -> None:
        """Report the connections that have ended. Called in each round."""
        while self._gone:
            caller = self._known.pop(self._gone.popleft().number, None)
            if caller is not None:
                self._left(caller)
        if self._unknown:
            self._settle_unknown(time.monotonic())

    def _settle_unknown(self, now_s: float) -> None:
        oldest_s = next(iter(self._unknown.values()))[1]
        if now_s < max(self._count_at_s, oldest_s + _UNKNOWN_S):
            return
        self._count_at_s = now_s + _COUNT_EVERY_S
        open_count = sum(not each.number for each in list(self._listener.connections.values()))
        while self._unknown and len(self._unknown) > open_count:
            number = next(iter(self._unknown))
            caller, admitted_s = self._unknown[number]
            if now_s < admitted_s + _UNKNOWN_S:
                return
            del self._unknown[number]
            self._left(caller)
