"""A producer of delayed and expiring messages, and a consumer of them."""

from __future__ import annotations

import msgspec

from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import commands
from oncemq.protocol.message import Message
from oncemq.protocol.replies import GetReply
from tests.simulation.checks.history import Attempt
from tests.simulation.checks.leases import key_of
from tests.simulation.environment.world import Violation
from tests.simulation.processes.consumer import Consumer
from tests.simulation.processes.process import Context
from tests.simulation.processes.producer import Producer

#: After this time a broker that can write has processed expired messages.
NOTICED_MS = 120


class TimedProducer(Producer):
    #: Probabilities per put.
    delayed = 0.5
    expiring = 0.5

    def __init__(self, context: Context, name: str, topics: list[str]) -> None:
        super().__init__(context, name, topics, anonymous=False, rival=False)
        self._last_due_ms = 0

    @property
    def is_settled(self) -> bool:
        return super().is_settled and self.world.now_ms > self._last_due_ms + self.world.clock_behind_ms + NOTICED_MS

    def _made(self, operation: commands.Put, attempt: Attempt) -> commands.Put:
        random = self.random.random
        envelope = operation.envelope
        if random() < self.delayed:
            envelope = msgspec.structs.replace(envelope, due_ms=self.world.now_ms + int(random() * 500))
        if random() < self.expiring:
            envelope = msgspec.structs.replace(envelope, ttl_ms=20 + int(random() * 500))
        attempt.due_ms, attempt.ttl_ms = envelope.due_ms, envelope.ttl_ms
        self._last_due_ms = max(self._last_due_ms, envelope.due_ms)
        if not attempt.due_ms:
            self.made.append(attempt)
        return msgspec.structs.replace(operation, envelope=envelope)


class JobProducer(TimedProducer):
    """Most of its messages have keys."""

    delayed = 0.15
    expiring = 0.0

    def values(self, count: int) -> list[bytes]:
        def keyed(value: bytes) -> bytes:
            name, _, rest = value.partition(b"..")
            key = int(self.random.random() * 5)
            return name + f";key={key};".encode() + rest if key else value

        return [keyed(value) for value in super().values(count)]

    def _made(self, operation: commands.Put, attempt: Attempt) -> commands.Put:
        operation = super()._made(operation, attempt)
        hashes = b"".join(int(key_of(value) or b"0").to_bytes(8, "little") for value in attempt.values)
        return msgspec.structs.replace(
            operation, envelope=msgspec.structs.replace(operation.envelope, key_hashes=hashes)
        )


class TimedConsumer(Consumer):
    """Is slow, so that messages expire before it gets them. Messages may be skipped only if they have expired."""

    def __init__(self, context: Context, name: str, topic: str) -> None:
        super().__init__(context, name, topic, name, commands.START_EARLIEST)
        #: (offset, time) of skipped messages.
        self._skips: list[tuple[int, int]] = []

    def _pause(self) -> None:
        lazy = 1 if self.world.healed or self.random.random() < 0.5 else 5
        self.later(int(lazy * self.random.random() * self.world.faults.think_ms), self._get_if_open)

    def _skip_to(self, offset: int, reply: GetReply) -> None:
        assert self.model is not None
        self.world.note(f"{self.name}: {self._position}..{offset - 1} expired")
        self._skips += [(skipped, self.world.now_ms) for skipped in range(self._position, offset)]
        for skipped in range(self._position, offset):
            self._check_expired(reply.topic_id, skipped, self.world.now_ms)
        self.model.skip(offset)
        self._position = offset

    def _check_expired(self, topic_id: int, offset: int, now_ms: int) -> None:
        attempt = self.context.history.attempt_at(topic_id, offset)
        if attempt is None:
            return
        _, time_ms = self.context.history.log[topic_id][offset]
        if not attempt.ttl_ms or time_ms + attempt.ttl_ms > now_ms:
            raise Violation(f"lost: {self.name} did not get {offset}, {attempt.label}, which has not expired")

    def _check_alive(self, message: Message, sent_ms: int) -> None:
        attempt = self.context.history.attempt_at(message.topic_id, message.offset)
        assert attempt is not None
        if not attempt.ttl_ms:
            return
        expired_ms = message.timestamp_ms + self.world.clock_behind_ms + attempt.ttl_ms
        if sent_ms > max(expired_ms, self.world.available_since_ms) + NOTICED_MS and self.world.is_available:
            raise Violation(f"{self.name} asked for {message.offset} {sent_ms - expired_ms} ms after it had expired")

    # At the end.

    def check(self) -> None:
        """Check skipped messages that were observed later."""
        assert self.model is not None
        for offset, now_ms in self._skips:
            self._check_expired(self.topic_id, offset, now_ms)

    @property
    def topic_id(self) -> int:
        return self._buffer.topic_id

    def _open_done(self, pending: Pending, acked_before: int, marks: int) -> None:
        super()._open_done(pending, acked_before, marks)
        if self._opened is not None:
            self._buffer.topic_id = self._opened.topic_id
