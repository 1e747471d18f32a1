"""A link to a broker that does what a test wants: it has one topic, one subscription and one session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from oncemq.gateways.link import Link
from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import Ack, Get, Hello, Numbered, Open, Subscribe, Unsubscribe
from oncemq.protocol.replies import (
    AckReply,
    BatchHead,
    GetReply,
    HelloReply,
    OpenReply,
    PutReply,
    RegistryReply,
    Reply,
    SubscribeReply,
)

DEADLINE_S = 30.0
_TOPIC_ID = 7
_WAIT_S = 0.005


async def until(condition: Callable[[], object], what: str) -> None:
    """Poll a condition. Fails after the deadline."""
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s, f"not in time: {what}"
        await asyncio.sleep(0.001)


class FakeLink(Link):
    """A link whose commands are answered here."""

    def __init__(self) -> None:
        self.is_away = False
        #: The next get raises it.
        self.error: errors.OnceMQError | None = None
        self.is_subscribed = False
        self.epoch = 0
        #: The starts of the subscriptions.
        self.starts: list[int] = []
        self.session_epoch = 0
        #: The numbers that were stored.
        self.numbers: list[int] = []
        self._batches: list[tuple[BatchHead, bytes]] = []

    def add(self, content: bytes) -> None:
        """Add a message, in a batch of its own."""
        self.add_batch(encode_batch([content]))

    def add_batch(self, payload: bytes) -> None:
        self._batches.append((BatchHead(len(self._batches), 1, 0, 0, checksum(payload)), payload))

    async def operate(self, operation: Any, payload: object = None) -> Reply:
        await self._reach()
        if isinstance(operation, Subscribe):
            self.is_subscribed = True
            self.starts.append(operation.start)
            return SubscribeReply(_TOPIC_ID, 0, True)
        if isinstance(operation, Open):
            self.epoch += 1
            return OpenReply(_TOPIC_ID, self.epoch, 0)
        if isinstance(operation, Unsubscribe):
            self.is_subscribed = False
        return RegistryReply(1)

    async def ask(
        self, command: Any, payload: object = None, *, give_up_ms: float = 0.0
    ) -> tuple[Reply, Sequence[bytes]]:
        await self._reach()
        if isinstance(command, Get):
            return await self._get(command)
        if isinstance(command, Ack):
            return AckReply(command.upto), ()
        if isinstance(command, Hello):
            self.session_epoch += 1
            return HelloReply(self.session_epoch, len(self.numbers), 64, (), "fake"), ()
        assert isinstance(command, Numbered)
        return self._put(command), ()

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self.is_away:
            raise errors.BrokerAway("it is away")

    async def _get(self, command: Get) -> tuple[Reply, Sequence[bytes]]:
        if not self._batches[command.position :]:
            await asyncio.sleep(_WAIT_S)
        found = self._batches[command.position :]
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        end = len(self._batches)
        return GetReply(_TOPIC_ID, end, end, 0, tuple(head for head, _ in found)), [payload for _, payload in found]

    def _put(self, command: Numbered) -> Reply:
        if command.epoch != self.session_epoch:
            raise errors.Fenced("another one has greeted it")
        if command.number != len(self.numbers) + 1:
            raise errors.Gap("the one before is missing")
        self.numbers.append(command.number)
        return PutReply(_TOPIC_ID, command.number - 1, 1, 0, 1)
