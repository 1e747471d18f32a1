"""A process that copies one topic to another: what was read and what was written, in one transaction."""

from __future__ import annotations

from oncemq.client.core.pending import Pending
from oncemq.client.producer.encoding import make_put
from oncemq.protocol import commands, errors
from oncemq.protocol.message import Message
from tests.simulation.environment.world import Violation
from tests.simulation.processes.consumer import Consumer
from tests.simulation.processes.process import Surroundings

_PUTS_MAX = 4


class Copier(Consumer):
    """Gets as any consumer does, and acks only in transactions. A twin with a session of its own fences it."""

    def __init__(self, around: Surroundings, name: str, source: str, target: str, *, twin: bool) -> None:
        super().__init__(around, name, source, "copier", commands.START_EARLIEST, twin=twin, own_session=True)
        self.target = target
        self._copies = 0
        self._to_copy: list[Message] = []

    @property
    def is_settled(self) -> bool:
        if self.core is None or self.is_fenced:
            return self.yields
        calm_ms = self.world.calm_ms
        return calm_ms is not None and self._looked_ms > calm_ms and self._position == self._end_offset == self._acked

    def _subscribe(self) -> None:
        # From then on everything that is copied is kept.
        if "archive" in self.around.subscriptions.certain.get(self.target, ()):
            super()._subscribe()
        else:
            self.later(40, self._subscribe)

    def _open_done(self, pending: Pending, acked_before: int, marks: int) -> None:
        self._to_copy = []
        super()._open_done(pending, acked_before, marks)

    def _ack_on_get(self) -> int:
        return -1

    def _keep(self, messages: list[Message]) -> None:
        self._to_copy += messages

    def _go_on(self) -> None:
        if self._to_copy and (self.world.healed or self.random.random() < 0.8):
            self._copy()
        else:
            self._think()

    def _copy(self) -> None:
        opened = self._opened
        assert opened is not None
        assert self.book is not None
        count = 1 + int(self.random.random() * _PUTS_MAX)
        messages, self._to_copy = self._to_copy[:count], self._to_copy[count:]
        puts, payloads = [], []
        for message in messages:
            self._copies += 1
            value = f"copy {self._copies} of {message.offset} by {self.name}".encode()
            put, payload = make_put(self.target, False, [value])
            group = (self.book.label, message.offset)
            attempt = self.around.ledger.attempt(value.decode(), self.target, [value], group)
            self.around.attempts[put.envelope.checksum] = attempt
            puts.append(put)
            payloads.append(payload)
        upto = messages[-1].offset + 1
        self.book.ack_sent = max(self.book.ack_sent, upto)
        ack = commands.AckUpto(opened.topic_id, self.subscriber, opened.epoch, upto)
        epoch = self.book.least_epoch
        self.submit(
            commands.Transact((ack,), (), tuple(puts)),
            tuple(payloads),
            lambda pending: self._copied(pending, ack, epoch),
        )

    def _copied(self, pending: Pending, ack: commands.AckUpto, epoch_when_sent: int) -> None:
        self.world.note(f"{self.name} copied up to {ack.upto}: {pending.error.code if pending.error else 'done'}")
        if self._fenced(pending):
            return
        if isinstance(pending.error, errors.BrokerAway | errors.NotNow):
            # It is void: open again, and see how far it came.
            self._opened = None
            self.later(20, self._subscribe)
            return
        if self._again(pending):
            return
        assert self.book is not None
        self.book.succeeded(ack.epoch, epoch_when_sent, "a transaction")
        self._note_acked(ack.upto, ack.upto)
        self._go_on()

    # At the end.

    def check(self) -> None:
        """Each message of the source from its start on has one copy, and they are in order."""
        book = self.book
        assert book is not None
        last = (-1, -1)
        for offset in range(book.start, book.given_end):
            effect = self.around.ledger.effect((book.label, offset))
            if effect is None or effect.place is None:
                raise Violation(f"lost: {offset} of '{self.topic}' was acked, and is not copied")
            if effect.place <= last:
                raise Violation(f"out of order: {effect.label} is at {effect.place}, after {last}")
            last = effect.place
