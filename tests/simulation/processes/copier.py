"""A process that copies messages from one topic to another, with ack and put in one transaction."""

from __future__ import annotations

from oncemq.client.core.commands.pending import Pending
from oncemq.client.producer.encoding import make_put
from oncemq.protocol import commands, errors
from oncemq.protocol.message import Message
from tests.simulation.environment.world import Violation
from tests.simulation.processes.consumer import Consumer
from tests.simulation.processes.process import Context

_PUTS_MAX = 4
#: Transactions that are on their way at a time.
_UNANSWERED_MAX = 3
#: Share of transactions that the broker refuses.
_REFUSED_SHARE = 0.15


class Copier(Consumer):
    """Acks only in transactions. A rival with its own session fences it."""

    def __init__(self, context: Context, name: str, source: str, target: str, *, rival: bool) -> None:
        super().__init__(context, name, source, "copier", commands.START_EARLIEST, rival=rival, own_session=True)
        self.target = target
        self._copies = 0
        self._to_copy: list[Message] = []
        #: What the transactions that are on their way ack up to.
        self._unanswered: list[int] = []

    def rules(self) -> list[str]:
        return [*super().rules(), f"write {self.target}"]

    @property
    def is_settled(self) -> bool:
        if self.core is None or self.is_fenced:
            return self.gives_way
        calm_ms = self.world.calm_ms
        return calm_ms is not None and self._looked_ms > calm_ms and self._position == self._end_offset == self._acked

    def _subscribe(self) -> None:
        # From now on all copies are stored.
        if "archive" in self.context.subscriptions.certain.get(self.target, ()):
            super()._subscribe()
        else:
            self.later(40, self._subscribe)

    def _open_done(self, pending: Pending, acked_before: int, marks: int) -> None:
        self._to_copy = []
        self._unanswered = []
        super()._open_done(pending, acked_before, marks)

    def _ack_on_get(self) -> int:
        return -1

    def _keep(self, messages: list[Message]) -> None:
        self._to_copy += messages

    def _continue(self) -> None:
        if self._to_copy and (self.world.healed or self.random.random() < 0.8):
            self._copy()
        else:
            self._pause()

    def _copy(self) -> None:
        opened = self._opened
        assert opened is not None
        assert self.model is not None
        count = 1 + int(self.random.random() * _PUTS_MAX)
        messages, self._to_copy = self._to_copy[:count], self._to_copy[count:]
        puts, payloads = [], []
        for message in messages:
            self._copies += 1
            value = f"copy {self._copies} of {message.offset} by {self.name}".encode()
            put, payload = make_put(self.target, False, [value])
            group = (self.model.label, message.offset)
            attempt = self.context.history.attempt(value.decode(), self.target, [value], group)
            self.context.attempts[put.envelope.checksum] = attempt
            puts.append(put)
            payloads.append(payload)
        is_refused = not self.world.healed and self.random.random() < _REFUSED_SHARE
        upto = messages[-1].offset + 1
        self.model.ack_sent = max(self.model.ack_sent, upto)
        since = max(self._unanswered, default=0)
        self._unanswered.append(upto)
        ack = commands.AckUpto(opened.topic_id, self.subscriber, opened.epoch, upto, since)
        nobody = commands.AckUpto(opened.topic_id, "nobody", opened.epoch, upto)
        epoch = self.model.least_epoch
        self.submit(
            commands.Transact((ack, nobody) if is_refused else (ack,), (), tuple(puts)),
            tuple(payloads),
            lambda pending: self._copied(pending, ack, epoch, is_refused=is_refused),
        )
        if self._to_copy and len(self._unanswered) < _UNANSWERED_MAX and self.random.random() < 0.5:
            # The next one does not wait for the reply to this one.
            self._copy()

    def _copied(self, pending: Pending, ack: commands.AckUpto, epoch_when_sent: int, *, is_refused: bool) -> None:
        self.world.note(f"{self.name} copied up to {ack.upto}: {pending.error.code if pending.error else 'done'}")
        # One before it has failed: the position is asked for.
        is_over = self._opened is None or self._opened.epoch != ack.epoch
        if isinstance(pending.error, errors.SubscriptionFenced) and (self.is_fenced or is_over):
            # It was fenced, and so were those before it.
            return
        if self._fenced(pending):
            return
        if isinstance(pending.error, errors.EarlierFailed) and not is_over:
            raise Violation(f"{self.name} got EARLIER_FAILED for {ack}, and all before it were committed")
        if pending.error is not None and is_over:
            return
        refused = (errors.NotSubscribed,) if is_refused else ()
        if isinstance(pending.error, (errors.BrokerAway, errors.NotNow, *refused)):
            # Nothing of the transaction happened, or it is void: open again to get the position.
            self._opened = None
            self.later(20, self._subscribe)
            return
        if self._handle_error(pending):
            return
        assert self.model is not None
        self.model.succeeded(ack.epoch, epoch_when_sent, "a transaction")
        if is_over:
            return
        self._unanswered.remove(ack.upto)
        self._note_acked(ack.upto, ack.upto)
        if not self._unanswered:
            self._continue()

    # At the end.

    def check(self) -> None:
        """Check that each message of the source has one copy, and that the copies are in order."""
        model = self.model
        assert model is not None
        last = (-1, -1)
        for offset in range(model.start, model.delivered_end):
            effect = self.context.history.effect((model.label, offset))
            if effect is None or effect.place is None:
                raise Violation(f"lost: {offset} of '{self.topic}' was acked, and is not copied")
            if effect.place <= last:
                raise Violation(f"out of order: {effect.label} is at {effect.place}, after {last}")
            last = effect.place
