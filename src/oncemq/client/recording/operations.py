"""Recording numbered operations: the intent before an operation is sent, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from oncemq.client.core.commands.observer import SubscriptionEpoch
from oncemq.client.core.commands.pending import PendingCommand
from oncemq.client.recording import records
from oncemq.client.recording.file import RecordFile, time_ms
from oncemq.client.recording.positions import PositionRecorder
from oncemq.client.recording.records import (
    Range,
    digests_of_payload,
    epoch_fields,
    ranges_between,
    subscription_fields,
)
from oncemq.protocol import commands, errors, replies
from oncemq.protocol.frames import Frame

#: The reply for a put that is known to be stored, without any detail.
_STORED_SOMEWHERE = replies.PutReply(0, -1, 0, 0, 0)


class _Decision(msgspec.Struct, frozen=True):
    """The answer to a numbered operation."""

    broker: str
    session: str
    number: int
    sent_ms: int
    #: The caller gave the operation up, and a void was answered.
    is_void: bool

    def subscription(self, ack: commands.AckUpto | commands.Settle) -> SubscriptionEpoch:
        return SubscriptionEpoch(self.broker, ack.topic_id, ack.subscriber, ack.epoch)


class OperationRecorder:
    """The numbered operations of a client."""

    def __init__(self, file: RecordFile, positions: PositionRecorder) -> None:
        self._file = file
        self._positions = positions
        #: (session, number) → an operation that was sent and not answered, and when it was sent.
        self._unanswered: dict[tuple[str, int], tuple[commands.Operation, int]] = {}

    def sending(self, session: str, command: PendingCommand) -> None:
        """An operation is about to be sent for the first time."""
        operation = command.body
        if type(operation) not in _OUTCOMES:
            return
        number = number_of(command)
        self._unanswered[(session, number)] = (operation, time_ms())  # type: ignore[assignment]
        if isinstance(operation, commands.Put):
            self._write_sent(session, number, 0, operation, command.payloads[0])
        elif isinstance(operation, commands.Transact):
            for part, (put, payload) in enumerate(zip(operation.puts, command.payloads, strict=True)):
                self._write_sent(session, number, part, put, payload)
        elif isinstance(operation, commands.Seek | commands.Unsubscribe):
            what, topic, subscriber = _what(operation), operation.topic, operation.subscriber
            moving = records.Moving(session=session, number=number, what=what, topic=topic, subscriber=subscriber)
            self._file.write(moving)

    def _write_sent(self, session: str, number: int, part: int, put: commands.Put, payload: Frame) -> None:
        envelope = put.envelope
        self._file.write(
            records.Sent(
                session=session,
                number=number,
                part=part,
                topic=put.topic,
                count=envelope.count,
                ttl_ms=envelope.ttl_ms,
                due_ms=envelope.due_ms,
                digests=_digests_in(payload, envelope.count),
            )
        )

    def answered(self, session: str, broker: str, command: PendingCommand, reply: replies.Reply) -> None:
        """The broker has decided an operation."""
        number = number_of(command)
        if (session, number) not in self._unanswered:
            # An earlier process sent it, and it was decided before this one sent it again.
            self.sending(session, command)
        operation, sent_ms = self._unanswered.pop((session, number), (None, 0))
        outcome = _OUTCOMES.get(type(operation))
        if outcome is not None:
            decision = _Decision(broker, session, number, sent_ms, isinstance(command.body, commands.Void))
            outcome(self, decision, operation, reply)

    # Outcomes.

    def _put_decided(self, decision: _Decision, put: commands.Put, reply: replies.Reply) -> None:
        if isinstance(reply, replies.PutReply):
            self._write_stored(decision, 0, put, reply)
        elif isinstance(reply, replies.Refusal) or decision.is_void:
            self._write_refused(decision, 0, reply)
        else:
            self._write_stored(decision, 0, put, _STORED_SOMEWHERE)

    def _write_stored(self, decision: _Decision, part: int, put: commands.Put, reply: replies.PutReply) -> None:
        self._file.write(
            records.Stored(
                session=decision.session,
                number=decision.number,
                part=part,
                broker=decision.broker,
                topic_id=reply.topic_id,
                topic=put.topic,
                first=reply.first_offset,
                count=put.envelope.count,
            )
        )

    def _write_refused(self, decision: _Decision, part: int, reply: replies.Reply) -> None:
        code = _code_of(reply)
        self._file.write(records.Refused(session=decision.session, number=decision.number, part=part, code=code))

    def _transaction_decided(self, decision: _Decision, transaction: commands.Transact, reply: replies.Reply) -> None:
        puts = transaction.puts
        if isinstance(reply, replies.Refusal) or (decision.is_void and not isinstance(reply, replies.TransactReply)):
            for part in range(len(puts)):
                self._write_refused(decision, part, reply)
            if isinstance(reply, replies.Refusal):
                for ack in transaction.acks:
                    self._positions.note_refusal(decision.subscription(ack), reply)
            return
        stored = reply.puts if isinstance(reply, replies.TransactReply) else (_STORED_SOMEWHERE,) * len(puts)
        for part, (put, put_reply) in enumerate(zip(puts, stored, strict=True)):
            self._write_stored(decision, part, put, put_reply)
        for ack in transaction.acks:
            self._positions.note_acked(decision.subscription(ack), ack.upto)
        for settle in transaction.settles:
            self._write_settled(decision.subscription(settle), settle, ())

    def _settle_decided(self, decision: _Decision, settle: commands.Settle, reply: replies.Reply) -> None:
        if isinstance(reply, replies.SettleReply):
            self._write_settled(decision.subscription(settle), settle, reply.lost)

    def _write_settled(self, subscription: SubscriptionEpoch, settle: commands.Settle, lost: Sequence[Range]) -> None:
        done = [
            (token, *part)
            for token, first, count in settle.done
            for part in ranges_between(first, first + count, sorted(_within(first, count, lost)))
        ]
        if done:
            self._file.write(records.Settled(**epoch_fields(subscription), done=done))

    def _subscribe_decided(self, decision: _Decision, subscribe: commands.Subscribe, reply: replies.Reply) -> None:
        if isinstance(reply, replies.SubscribeReply) and reply.created and reply.topic_id:
            fields = subscription_fields(decision.broker, reply.topic_id, subscribe.subscriber)
            topic, sent_ms = subscribe.topic, decision.sent_ms
            self._file.write(records.Subscribed(**fields, topic=topic, acked=reply.acked, sent_ms=sent_ms))

    def _open_decided(self, decision: _Decision, command: commands.Open, reply: replies.Reply) -> None:
        if not isinstance(reply, replies.OpenReply):
            return
        fields = subscription_fields(decision.broker, reply.topic_id, command.subscriber)
        if not reply.topic_id:
            fields["pattern"] = command.topic
        subscription = SubscriptionEpoch(decision.broker, reply.topic_id, command.subscriber, reply.epoch)
        self._positions.start(subscription, reply.acked)
        self._file.write(
            records.Opened(
                **fields,
                topic=command.topic,
                epoch=reply.epoch,
                acked=reply.acked,
                shared=reply.sharing is not None,
                sent_ms=decision.sent_ms,
            )
        )

    def _move_decided(
        self, decision: _Decision, operation: commands.Seek | commands.Unsubscribe, reply: replies.Reply
    ) -> None:
        if isinstance(reply, replies.Refusal) or (decision.is_void and isinstance(reply, replies.Done)):
            code = _code_of(reply)
            self._file.write(records.Stayed(session=decision.session, number=decision.number, code=code))
            return
        self._file.write(
            records.Moved(
                session=decision.session,
                number=decision.number,
                what=_what(operation),
                topic=operation.topic,
                subscriber=operation.subscriber,
                broker=decision.broker,
                acked=reply.acked if isinstance(reply, replies.SeekReply) else -1,
                sent_ms=decision.sent_ms,
            )
        )


#: The operations that are recorded.
_OUTCOMES: Mapping[type, Callable[..., None]] = {
    commands.Put: OperationRecorder._put_decided,
    commands.Transact: OperationRecorder._transaction_decided,
    commands.Settle: OperationRecorder._settle_decided,
    commands.Subscribe: OperationRecorder._subscribe_decided,
    commands.Open: OperationRecorder._open_decided,
    commands.Seek: OperationRecorder._move_decided,
    commands.Unsubscribe: OperationRecorder._move_decided,
}


def number_of(command: PendingCommand) -> int:
    """The number of a command; 0 if it has none."""
    return command.outbox_number or command.number


def _what(operation: commands.Seek | commands.Unsubscribe) -> str:
    return "seek" if isinstance(operation, commands.Seek) else "unsubscribe"


def _code_of(reply: replies.Reply) -> str:
    """Why the operation was not executed."""
    return reply.code if isinstance(reply, replies.Refusal) else "VOID"


def _within(first: int, count: int, ranges: Sequence[Range]) -> list[Range]:
    """The parts of the ranges that are in this one."""
    found = []
    for start, length in ranges:
        begin, end = max(start, first), min(start + length, first + count)
        if begin < end:
            found.append((begin, end - begin))
    return found


def _digests_in(payload: Frame, count: int) -> list[int]:
    """The digests of a batch; empty if it can't be read, because then it can't be compared either."""
    try:
        return digests_of_payload(bytes(payload), count)
    except errors.OnceMQError:
        return []
