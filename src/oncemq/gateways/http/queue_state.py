"""What the queue's endpoints keep between requests: caches with bounds (state.keep), and whose turn it is.

All of it can be lost: the broker's registry knows the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import msgspec

from oncemq import errors


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


class GivenKeys(msgspec.Struct, frozen=True):
    """Which message each of a consumer's last keys was given."""

    #: (key, offset), the latest one at the end
    keys: tuple[tuple[str, int], ...] = ()
    #: Of the registry's entry.
    version: int = 0

    def offset_of(self, key: str) -> int | None:
        return dict(self.keys).get(key)

    @property
    def last_offset(self) -> int:
        """-1: none was given."""
        return self.keys[-1][1] if self.keys else -1


class QueueState:
    def __init__(self) -> None:
        #: Producer's id → its topic. It never gets another one.
        self.producers: dict[str, str] = {}
        #: Ids of consumers that are known to be registered.
        self.consumers: dict[str, bool] = {}
        #: (consumer's id, topic's id) → what it was given
        self.given: dict[tuple[str, int], GivenKeys] = {}
        #: By (topic, consumer's id): two requests at a time get two messages.
        self.turns = Turns()
