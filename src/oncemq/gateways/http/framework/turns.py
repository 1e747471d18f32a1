"""Lets few requests of a kind work at a time, in the order of arrival, so that other requests need not wait for all of
them."""

from __future__ import annotations

import asyncio

#: A request that takes longer does not keep the processor busy: it waits for messages, the broker or its body.
_TURN_S = 0.1


class Turn:
    __slots__ = ("_free", "_is_ended", "_timer")

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._is_ended = False
        self._timer = asyncio.get_running_loop().call_later(_TURN_S, self.end)

    def end(self) -> None:
        """May be called more than once."""
        if not self._is_ended:
            self._is_ended = True
            self._timer.cancel()
            self._free.release()


class Turns:
    """Belongs to one event loop."""

    def __init__(self, count_max: int) -> None:
        self._free = asyncio.Semaphore(count_max)
        self.waiting = 0

    async def take(self) -> Turn:
        """Wait for a turn. It ends automatically after some time."""
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        return Turn(self._free)
