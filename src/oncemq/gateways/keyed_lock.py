"""Whose turn it is: one at a time per name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from oncemq.protocol import errors


class _Turn:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        #: Those who wait, and the one whose turn it is.
        self.count = 0
        self.failure = ""


class Turns:
    """One at a time per name, in the order in which they came. A name that nobody waits for takes no room.

    Where one finds the broker away, those behind him are told the same at once. Else they would find it back one after
    the other, long after their callers have gone, and take messages for nobody."""

    def __init__(self) -> None:
        self._turns: dict[Hashable, _Turn] = {}

    @asynccontextmanager
    async def of(self, name: Hashable) -> AsyncIterator[None]:
        """Raises BrokerAway."""
        turn = self._turns.setdefault(name, _Turn())
        turn.count += 1
        try:
            async with turn.lock:
                if turn.failure:
                    raise errors.BrokerAway(turn.failure)
                yield
        except errors.BrokerAway as error:
            turn.failure = error.text
            raise
        finally:
            turn.count -= 1
            if not turn.count:
                del self._turns[name]
