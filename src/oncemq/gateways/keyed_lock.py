"""A lock per name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from oncemq.protocol import errors


class _Entry:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        #: The holder, and those who wait.
        self.users = 0
        self.failure = ""


class KeyedLock:
    """One holder at a time per name, in the order of arrival. A name without users takes no memory.

    If a holder finds the broker away, those who wait behind it get the same error at once. Otherwise they would find
    the broker back one after the other, long after their callers have gone, and consume messages for nobody.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}

    @asynccontextmanager
    async def hold(self, name: Hashable) -> AsyncIterator[None]:
        """Wait for the name's lock and hold it. Raises BrokerAway."""
        entry = self._entries.setdefault(name, _Entry())
        entry.users += 1
        try:
            async with entry.lock:
                if entry.failure:
                    raise errors.BrokerAway(entry.failure)
                yield
        except errors.BrokerAway as error:
            entry.failure = error.text
            raise
        finally:
            entry.users -= 1
            if not entry.users:
                del self._entries[name]
