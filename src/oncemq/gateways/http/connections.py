"""The open connections of the HTTP gateway: how many there may be, which of them are closed for others, and which
because their client sends or reads nothing.

A connection waits for a request, receives the body of one, or is being answered. Only the first two kinds are closed to
make space: first those that have never sent a request, then idle ones, then unfinished requests, the oldest of each
first. Of a connection that is being answered, what has arrived behind the request is discarded if memory is short. All
addresses count alike, since a proxy on this machine sends the requests of many clients from one address.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Protocol

from oncemq.net.descriptors import connection_descriptors_max

#: How long a client may take for a request's head, from its connection or its first byte.
HEAD_S = 10.0
#: How long a client may leave its responses unread.
UNREAD_S = 20.0
#: Reading this many bytes restarts that time.
_READ_BYTES = 64 * 1024
#: Bytes that connections may hold together, of requests that are not complete or wait behind another one, and the same
#: of responses that are not read, before some of them are closed.
HELD_BYTES_MAX = 32 * 2**20
_SWEEP_S = 1.0
#: Below this number no connection is worth the reserve.
_CONNECTIONS_MIN = 16


class Phase(Enum):
    #: It has never sent a request.
    NEW = auto()
    #: It has had a response, and waits for the next request.
    IDLE = auto()
    RECEIVING = auto()
    ANSWERING = auto()


class Connection(Protocol):
    #: Bytes of an unfinished request, and of what waits behind the one that is being answered.
    held_bytes: int

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that the client has not read."""

    @property
    def has_unfinished_request(self) -> bool:
        """It has sent a part of its next request, or the rest of one that was answered already is missing."""

    def drop_next(self) -> None:
        """Discard what has arrived behind the request that is being answered, and close after its response."""

    def abort(self) -> None:
        """Close it at once, with all that is unsent."""


class Connections:
    """Belongs to one event loop."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        #: In the order in which they entered their phase, with the time when they did.
        self._by_phase: dict[Phase, dict[Connection, float]] = {phase: {} for phase in Phase}
        self._phases: dict[Connection, Phase] = {}
        #: How many bytes a client had left unread, and since when it has read nothing.
        self._unread: dict[Connection, tuple[int, float]] = {}
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._phases)

    def fit_descriptors(self) -> None:
        """Lower the limit to the number of descriptors that this process may open, without a reserve."""
        self.count_max = min(self.count_max, max(_CONNECTIONS_MIN, connection_descriptors_max()))

    def add(self, connection: Connection) -> bool:
        """Add a new connection, in place of another one if necessary. Returns False if there is no space for it."""
        if len(self) >= self.count_max and not self._evict():
            return False
        self._enter(connection, Phase.NEW)
        if self._timer is None:
            self._timer = _loop().call_later(_SWEEP_S, self._sweep)
        return True

    def remove(self, connection: Connection) -> None:
        """May be called more than once."""
        phase = self._phases.pop(connection, None)
        if phase is not None:
            del self._by_phase[phase][connection]
            self._unread.pop(connection, None)
            self.hold(connection, 0)

    def move(self, connection: Connection, phase: Phase) -> None:
        former = self._phases.get(connection)
        if former is not None:
            del self._by_phase[former][connection]
            self._enter(connection, phase)

    def _enter(self, connection: Connection, phase: Phase) -> None:
        self._phases[connection] = phase
        self._by_phase[phase][connection] = _loop().time()

    def touch(self, connection: Connection) -> None:
        """A connection that was idle has got the first byte of a request: the time for the head begins."""
        if self._phases.get(connection) is Phase.IDLE:
            self._by_phase[Phase.IDLE][connection] = _loop().time()

    def hold(self, connection: Connection, held_bytes: int) -> None:
        """Note what `held_bytes` is now."""
        self._held_bytes += held_bytes - connection.held_bytes
        connection.held_bytes = held_bytes
        while self._held_bytes > HELD_BYTES_MAX and self._evict_holder():
            pass

    def _evict(self) -> bool:
        for phase in (Phase.NEW, Phase.IDLE, Phase.RECEIVING):
            for connection in self._by_phase[phase]:
                self._end(connection)
                return True
        return False

    def _evict_holder(self) -> bool:
        for phase in (Phase.NEW, Phase.IDLE, Phase.RECEIVING):
            for connection in self._by_phase[phase]:
                if connection.held_bytes:
                    self._end(connection)
                    return True
        for connection in self._by_phase[Phase.ANSWERING]:
            if connection.held_bytes:
                connection.drop_next()
                self.hold(connection, 0)
                return True
        return False

    def _end(self, connection: Connection) -> None:
        self.remove(connection)
        connection.abort()

    # Clients that do nothing.

    def _sweep(self) -> None:
        self._timer = None
        now_s = _loop().time()
        for connection in self._late(now_s):
            self._end(connection)
        self._check_unread(now_s)
        if self._phases:
            self._timer = _loop().call_later(_SWEEP_S, self._sweep)

    def _late(self, now_s: float) -> list[Connection]:
        """Return the connections whose next head takes too long. An idle one without any is closed by its server."""
        late = []
        for phase in (Phase.NEW, Phase.IDLE):
            for connection, since_s in self._by_phase[phase].items():
                if now_s - since_s > HEAD_S and (phase is Phase.NEW or connection.has_unfinished_request):
                    late.append(connection)
        return late

    def _check_unread(self, now_s: float) -> None:
        stalled: list[tuple[int, Connection]] = []
        total_bytes = 0
        for connection in list(self._phases):
            size = connection.unread_bytes
            if not size:
                self._unread.pop(connection, None)
                continue
            total_bytes += size
            former, since_s = self._unread.get(connection, (0, now_s))
            if size > former or size <= former - _READ_BYTES:
                self._unread[connection] = size, now_s
            elif now_s - since_s > UNREAD_S:
                self._end(connection)
            else:
                stalled.append((size, connection))
        self._end_largest(stalled, total_bytes - HELD_BYTES_MAX)

    def _end_largest(self, stalled: list[tuple[int, Connection]], excess_bytes: int) -> None:
        if excess_bytes <= 0:
            return
        for size, connection in sorted(stalled, key=lambda each: each[0], reverse=True):
            if excess_bytes <= 0:
                return
            excess_bytes -= size
            self._end(connection)


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
