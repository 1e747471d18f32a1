"""A limit for the bytes that large request bodies, or large responses, occupy together.

Each one reserves its bytes before they exist, and waits until there is space. A client that makes too little progress
while others wait is disconnected, so that clients that send or read nothing can't keep others out. This applies during
the transfer only: a client whose request waits for the broker is not slow.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

#: While others wait, a holder must move this many bytes per period, or it is aborted.
_PROGRESS_BYTES = 256 * 1024
_PERIOD_S = 1.0


class Reservation:
    __slots__ = ("_abort", "_budget", "_is_marked", "_is_transferring", "_moved_bytes", "reserved_bytes")

    def __init__(self, budget: ByteBudget, reserved_bytes: int, abort: Callable[[], None]) -> None:
        self._budget = budget
        self._abort = abort
        self._moved_bytes = 0
        self._is_marked = False
        self._is_transferring = False
        self.reserved_bytes = reserved_bytes

    def start_transfer(self) -> None:
        """From now on, the client must send or read. May be called more than once."""
        self._is_transferring = True

    def end_transfer(self) -> None:
        """The client has nothing to do."""
        self._is_transferring = self._is_marked = False

    def note_moved(self, moved_bytes: int) -> None:
        """Bytes were received from the client, or accepted by its connection."""
        self._moved_bytes += moved_bytes

    def shrink(self, needed_bytes: int) -> None:
        """Return what is not needed."""
        if needed_bytes < self.reserved_bytes:
            self._budget.give_back(self.reserved_bytes - needed_bytes)
            self.reserved_bytes = needed_bytes

    def release(self) -> None:
        """May be called more than once."""
        self._budget.remove(self)
        self.shrink(0)

    def abort_if_stalled(self) -> None:
        """Abort the connection if it moved too little since the last call."""
        if not self._is_transferring:
            return
        if self._is_marked and self._moved_bytes < _PROGRESS_BYTES:
            self._abort()
        self._is_marked = True
        self._moved_bytes = 0


class ByteBudget:
    """Belongs to one event loop."""

    def __init__(self, capacity_bytes: int) -> None:
        self.used_bytes = 0
        self._capacity_bytes = capacity_bytes
        self._holders: set[Reservation] = set()
        #: In the order of arrival.
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def reserve(self, wanted_bytes: int, abort: Callable[[], None]) -> Reservation:
        """Wait for space. `abort` ends the connection of this holder. More than the whole budget counts as all of
        it."""
        wanted_bytes = min(wanted_bytes, self._capacity_bytes)
        if self._waiting or not self._fits(wanted_bytes):
            await self._wait(wanted_bytes)
        else:
            self.used_bytes += wanted_bytes
        reservation = Reservation(self, wanted_bytes, abort)
        self._holders.add(reservation)
        return reservation

    def reserve_now(self, wanted_bytes: int) -> Reservation | None:
        """Reserve without waiting, for a client that has nothing to send or to read. Returns None if there is no
        space."""
        if self._waiting or not self._fits(wanted_bytes):
            return None
        self.used_bytes += wanted_bytes
        return Reservation(self, wanted_bytes, lambda: None)

    def _fits(self, wanted_bytes: int) -> bool:
        return self.used_bytes + wanted_bytes <= self._capacity_bytes

    async def _wait(self, wanted_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()
        self._waiting.append((wanted_bytes, granted))
        if self._timer is None:
            self._timer = loop.call_later(_PERIOD_S, self._check_holders)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give_back(wanted_bytes)
            raise

    def give_back(self, unused_bytes: int) -> None:
        self.used_bytes -= unused_bytes
        while self._waiting:
            wanted_bytes, granted = self._waiting[0]
            if not granted.done():
                if not self._fits(wanted_bytes):
                    return
                self.used_bytes += wanted_bytes
                granted.set_result(None)
            self._waiting.popleft()

    def remove(self, reservation: Reservation) -> None:
        self._holders.discard(reservation)

    def _check_holders(self) -> None:
        self._timer = None
        self.give_back(0)
        if self._waiting:
            for holder in list(self._holders):
                holder.abort_if_stalled()
            self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._check_holders)
