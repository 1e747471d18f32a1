"""Recording: a client writes down what it put and what it consumed, so that an audit can prove that nothing was
lost, doubled or out of order (docs/audit.md). Only with `record=` of `connect`, or ONCEMQ_RECORD.

What is true at which moment, wherever the process is killed:

    sent      before the put's first byte leaves         an intent without an answer: stored once, or not at all
    stored    when the answer is taken in, before its caller hears of it
    got       before the application has the messages, and so before any ack can cover them
    acked     when the broker's word is taken in: never before it is true

Each line is written to the file at once, so it outlives the process, though not a power failure. Where a line can't
be written, the client goes on without recording, and the file's first line says that it is not complete: space for
that is there from the beginning.

The core tells of what it sends and of each answer, subscriptions of what they decode; all of it under the client's
lock, or on its event loop.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from oncemq.client.core.pending import PendingCommand
from oncemq.client.recording import records
from oncemq.client.recording.records import (
    Line,
    Range,
    Whose,
    digests_of,
    digests_of_payload,
    ranges_between,
    ranges_of,
    subscription_fields,
)
from oncemq.protocol import commands, errors, replies
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.version import __version__

log = logging.getLogger("oncemq.recording")

_SESSION_LETTERS_MAX = 80
_encode = msgspec.json.Encoder().encode
_COMPLETE = b'"complete":true'
#: As long as the other one: it is written over it.
_COMPLETE_PADDED = b'"complete":true '
_INCOMPLETE = b'"complete":false'


class Recorder:
    """One client's file."""

    def __init__(self, folder: Path, session: str) -> None:
        name = f"{quote(session, safe='')[:_SESSION_LETTERS_MAX]}-{os.getpid()}-{secrets.token_hex(4)}.ndjson"
        self.path = folder / name
        try:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise errors.SettingInvalid(f"'{folder}' can't be recorded into: {error.strerror}") from None
        self._seq = 0
        self._complete_at = 0
        #: Numbered operations that were sent, by session and number, and when.
        self._unanswered: dict[tuple[str, int], tuple[commands.Operation, int]] = {}
        #: The last word on acked and dropped: it is written when it changes.
        self._positions: dict[Whose, tuple[int, int]] = {}
        self._begin(session)

    def _begin(self, session: str) -> None:
        software = f"oncemq {__version__}"
        begin = records.Begin(session=session, pid=os.getpid(), host=socket.gethostname(), software=software)
        begin.seq, begin.at_ms, self._seq = 0, _time_ms(), 1
        line = _encode(begin).replace(_COMPLETE, _COMPLETE_PADDED, 1)
        self._complete_at = line.index(_COMPLETE_PADDED)
        self._append(line + b"\n")

    def close(self) -> None:
        """The client ends."""
        if self._descriptor >= 0:
            self._write(records.End())
            os.close(self._descriptor)
            self._descriptor = -1

    # Writing.

    def _write(self, line: Line) -> None:
        if self._descriptor < 0:
            return
        line.seq, line.at_ms = self._seq, _time_ms()
        self._seq += 1
        self._append(_encode(line) + b"\n")

    def _append(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """The work goes on; the file says that it is not the whole story."""
        log.error("recording to %s ends: %s", self.path, error)
        descriptor, self._descriptor = self._descriptor, -1
        try:
            os.pwrite(descriptor, _INCOMPLETE, self._complete_at)
            os.close(descriptor)
        except OSError as met:
            log.error("%s does not say that it is incomplete: %s", self.path, met)

    # What leaves, and its answers.

    def sending(self, session: str, entries: Sequence[PendingCommand]) -> None:
        """These are about to leave. Those that did before are known."""
        for entry in entries:
            if not entry.request_ids:
                self._note_intent(session, entry)

    def _note_intent(self, session: str, entry: PendingCommand) -> None:
        operation = entry.body
        if not isinstance(operation, _RECORDED):
            return
        number = _number_of(entry)
        self._unanswered[(session, number)] = (operation, _time_ms())
        if isinstance(operation, commands.Put):
            self._write_sent(session, number, 0, operation, entry.payloads[0])
        elif isinstance(operation, commands.Transact):
            for part, (put, payload) in enumerate(zip(operation.puts, entry.payloads, strict=True)):
                self._write_sent(session, number, part, put, payload)
        elif isinstance(operation, commands.Seek | commands.Unsubscribe):
            what, topic, subscriber = _what(operation), operation.topic, operation.subscriber
            self._write(records.Moving(session=session, number=number, what=what, topic=topic, subscriber=subscriber))

    def _write_sent(self, session: str, number: int, part: int, put: commands.Put, payload: Frame) -> None:
        envelope = put.envelope
        self._write(
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

    def answered(self, session: str, broker: str, entry: PendingCommand, reply: replies.Reply) -> None:
        """The broker has decided, or answered a question."""
        number = _number_of(entry)
        if not number:
            note = _ANSWERS.get(type(entry.body))
            if note is not None:
                note(self, broker, entry.body, reply)
            return
        if (session, number) not in self._unanswered:
            # Sent by an earlier process, and decided before this one got to it.
            self._note_intent(session, entry)
        operation, sent_ms = self._unanswered.pop((session, number), (None, 0))
        outcome = _OUTCOMES.get(type(operation))
        if outcome is not None:
            happened = _Happened(broker, session, number, sent_ms, isinstance(entry.body, commands.Void))
            outcome(self, happened, operation, reply)

    # Outcomes of numbered operations.

    def _put_decided(self, happened: _Happened, operation: commands.Put, reply: replies.Reply) -> None:
        if isinstance(reply, replies.PutReply):
            self._write_stored(happened, 0, operation, reply)
        elif isinstance(reply, replies.Refusal) or happened.is_void:
            self._write_refused(happened, 0, reply)
        else:
            self._write_stored(happened, 0, operation, _SOMEWHERE)

    def _write_stored(self, happened: _Happened, part: int, put: commands.Put, reply: replies.PutReply) -> None:
        self._write(
            records.Stored(
                session=happened.session,
                number=happened.number,
                part=part,
                broker=happened.broker,
                topic_id=reply.topic_id,
                topic=put.topic,
                first=reply.first_offset,
                count=put.envelope.count,
            )
        )

    def _write_refused(self, happened: _Happened, part: int, reply: replies.Reply) -> None:
        self._write(records.Refused(session=happened.session, number=happened.number, part=part, code=_code_of(reply)))

    def _transaction_decided(self, happened: _Happened, operation: commands.Transact, reply: replies.Reply) -> None:
        if isinstance(reply, replies.Refusal) or (happened.is_void and not isinstance(reply, replies.TransactReply)):
            for part in range(len(operation.puts)):
                self._write_refused(happened, part, reply)
            for ack in operation.acks if isinstance(reply, replies.Refusal) else ():
                self._note_displaced(happened.whose(ack), reply)  # type: ignore[arg-type]
            return
        stored = reply.puts if isinstance(reply, replies.TransactReply) else (_SOMEWHERE,) * len(operation.puts)
        for part, (put, answer) in enumerate(zip(operation.puts, stored, strict=True)):
            self._write_stored(happened, part, put, answer)
        for ack in operation.acks:
            self._note_position(happened.whose(ack), ack.upto)
        for settle in operation.settles:
            self._write_settled(happened.whose(settle), settle, ())

    def _settle_decided(self, happened: _Happened, operation: commands.Settle, reply: replies.Reply) -> None:
        if isinstance(reply, replies.SettleReply):
            self._write_settled(happened.whose(operation), operation, reply.lost)

    def _write_settled(self, whose: Whose, settle: commands.Settle, lost: Sequence[Range]) -> None:
        done = [
            (token, *part)
            for token, first, count in settle.done
            for part in ranges_between(first, first + count, sorted(_within(first, count, lost)))
        ]
        if done:
            self._write(records.Settled(**whose.fields, done=done))

    def _subscribe_decided(self, happened: _Happened, operation: commands.Subscribe, reply: replies.Reply) -> None:
        if isinstance(reply, replies.SubscribeReply) and reply.created and reply.topic_id:
            whose = subscription_fields(happened.broker, reply.topic_id, operation.subscriber)
            topic, sent_ms = operation.topic, happened.sent_ms
            self._write(records.Subscribed(**whose, topic=topic, acked=reply.acked, sent_ms=sent_ms))

    def _open_decided(self, happened: _Happened, operation: commands.Open, reply: replies.Reply) -> None:
        if not isinstance(reply, replies.OpenReply):
            return
        whose = subscription_fields(happened.broker, reply.topic_id, operation.subscriber)
        if not reply.topic_id:
            whose["pattern"] = operation.topic
        self._positions[Whose(happened.broker, reply.topic_id, operation.subscriber, reply.epoch)] = (reply.acked, 0)
        self._write(
            records.Opened(
                **whose,
                topic=operation.topic,
                epoch=reply.epoch,
                acked=reply.acked,
                shared=reply.sharing is not None,
                sent_ms=happened.sent_ms,
            )
        )

    def _move_decided(
        self, happened: _Happened, operation: commands.Seek | commands.Unsubscribe, reply: replies.Reply
    ) -> None:
        if isinstance(reply, replies.Refusal) or (happened.is_void and isinstance(reply, replies.Done)):
            code = _code_of(reply)
            self._write(records.Stayed(session=happened.session, number=happened.number, code=code))
            return
        self._write(
            records.Moved(
                session=happened.session,
                number=happened.number,
                what=_what(operation),
                topic=operation.topic,
                subscriber=operation.subscriber,
                broker=happened.broker,
                acked=reply.acked if isinstance(reply, replies.SeekReply) else -1,
                sent_ms=happened.sent_ms,
            )
        )

    # Answers to questions.

    def _get_answered(self, broker: str, command: commands.Get, reply: replies.Reply) -> None:
        whose = Whose(broker, command.topic_id, command.subscriber, command.epoch)
        if isinstance(reply, replies.Refusal):
            self._note_displaced(whose, reply)
        elif isinstance(reply, replies.GetReply):
            self._note_position(whose, reply.acked, reply.dropped)
            self._note_skipped(whose, command.position, reply.next_position, reply.batches)

    def _get_any_answered(self, broker: str, command: commands.GetAny, reply: replies.Reply) -> None:
        key = command.subscriber + commands.BY_PATTERN + command.pattern
        if isinstance(reply, replies.Refusal):
            self._note_displaced(Whose(broker, 0, key, command.epoch), reply)
        elif isinstance(reply, replies.GetAnyReply):
            positions = dict(command.positions)
            for topic_id, upto in command.acks:
                self._note_position(Whose(broker, topic_id, key, command.epoch), upto)
            for part in reply.parts:
                whose = Whose(broker, part.topic_id, key, command.epoch)
                self._note_position(whose, part.acked, part.dropped)
                start = positions.get(part.topic_id, part.acked)
                self._note_skipped(whose, start, part.next_position, part.batches)

    def _ack_answered(self, broker: str, command: commands.Ack, reply: replies.Reply) -> None:
        whose = Whose(broker, command.topic_id, command.subscriber, command.epoch)
        if isinstance(reply, replies.Refusal):
            self._note_displaced(whose, reply)
        elif isinstance(reply, replies.AckReply):
            self._note_position(whose, reply.acked)

    def _note_position(self, whose: Whose, acked: int, dropped: int = 0) -> None:
        known_acked, known_dropped = self._positions.get(whose, (-1, 0))
        if acked > known_acked or dropped > known_dropped:
            acked, dropped = max(acked, known_acked), max(dropped, known_dropped)
            self._positions[whose] = (acked, dropped)
            self._write(records.Acked(**whose.fields, acked=acked, dropped=dropped))

    def _note_skipped(self, whose: Whose, start: int, stop: int, batches: Sequence[replies.BatchHead]) -> None:
        if stop - start > sum(head.count for head in batches):
            ranges = ranges_between(start, stop, [(head.first_offset, head.count) for head in batches])
            self._write(records.Skipped(**whose.fields, ranges=ranges))

    def _note_displaced(self, whose: Whose, refusal: replies.Refusal) -> None:
        if refusal.code == errors.Sought.code:
            self._write(records.Displaced(**whose.fields))

    # What subscriptions tell.

    def got(
        self,
        whose: Whose,
        topic: str,
        messages: Sequence[Message],
        *,
        looked_at: tuple[int, int] | None = None,
        token: int = 0,
    ) -> None:
        """Messages of one topic, before anybody has them. `looked_at`: a filter has seen everything from here up to
        there, and has left out the rest."""
        ranges = ranges_of(messages)
        passed = [] if looked_at is None else ranges_between(*looked_at, ranges)
        if ranges or passed:
            self._write(
                records.Got(
                    **whose.fields,
                    topic=topic,
                    ranges=ranges,
                    digests=digests_of(messages),
                    passed=passed,
                    token=token,
                )
            )

    def left(self, whose: Whose, start: int, stop: int) -> None:
        """The application acks what it was not given."""
        if stop > start:
            self._write(records.Left(**whose.fields, ranges=[(start, stop - start)]))

    def went_back(self, whose: Whose, to: int) -> None:
        """A transaction did not happen."""
        self._write(records.Back(**whose.fields, to=to))


class _Happened(msgspec.Struct, frozen=True):
    """A numbered operation's answer: where from, and to which number."""

    broker: str
    session: str
    number: int
    sent_ms: int
    #: Its caller gave it up; what was answered is a void.
    is_void: bool

    def whose(self, ack: commands.AckUpto | commands.Settle) -> Whose:
        return Whose(self.broker, ack.topic_id, ack.subscriber, ack.epoch)


_RECORDED = (
    commands.Put,
    commands.Transact,
    commands.Settle,
    commands.Subscribe,
    commands.Open,
    commands.Seek,
    commands.Unsubscribe,
)
#: A put whose answer is known to be yes, and nothing else.
_SOMEWHERE = replies.PutReply(0, -1, 0, 0, 0)

_OUTCOMES: Mapping[type, Callable[..., None]] = {
    commands.Put: Recorder._put_decided,
    commands.Transact: Recorder._transaction_decided,
    commands.Settle: Recorder._settle_decided,
    commands.Subscribe: Recorder._subscribe_decided,
    commands.Open: Recorder._open_decided,
    commands.Seek: Recorder._move_decided,
    commands.Unsubscribe: Recorder._move_decided,
}
_ANSWERS: Mapping[type, Callable[..., None]] = {
    commands.Get: Recorder._get_answered,
    commands.GetAny: Recorder._get_any_answered,
    commands.Ack: Recorder._ack_answered,
}


def _time_ms() -> int:
    return time.time_ns() // 1_000_000


def _number_of(entry: PendingCommand) -> int:
    return entry.outbox_number or entry.number


def _what(operation: commands.Seek | commands.Unsubscribe) -> str:
    return "seek" if isinstance(operation, commands.Seek) else "unsubscribe"


def _code_of(reply: replies.Reply) -> str:
    """Why it did not happen."""
    return reply.code if isinstance(reply, replies.Refusal) else "VOID"


def _within(first: int, count: int, ranges: Sequence[Range]) -> list[Range]:
    """The parts of the ranges that lie in this one."""
    found = []
    for start, length in ranges:
        begin, end = max(start, first), min(start + length, first + count)
        if begin < end:
            found.append((begin, end - begin))
    return found


def _digests_in(payload: Frame, count: int) -> list[int]:
    """None where it can't be read: then it can't be compared either."""
    try:
        return digests_of_payload(bytes(payload), count)
    except errors.OnceMQError:
        return []
