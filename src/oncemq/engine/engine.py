"""The engine: `step` decides, `apply` changes.

    command ─► step ─► decision: event to record, reply to send after the sync, slices to read for it

Given the same events it ends in the same state. An exception in `step` has changed nothing; one in `apply`
must stop the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import xxhash

from oncemq.engine import events
from oncemq.engine.apply.dispatch import apply
from oncemq.engine.decide import lists, reads, settles
from oncemq.engine.decide.decision_context import Situation
from oncemq.engine.decide.operations import decide
from oncemq.engine.decide.reads import Reading
from oncemq.engine.decide.settles import decide_extend, decide_leave, decide_take
from oncemq.engine.decide.subscriptions import joined
from oncemq.engine.decide.ticks import expire
from oncemq.engine.snapshot.capture import Capture, restore
from oncemq.engine.state.session import Session
from oncemq.engine.state.state import State
from oncemq.journal.contract import RecordHead, WriteSlot, record_bytes
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import SEEK_TOPICS_MAX, TRANSACTION_PARTS_MAX, WINDOW_MAX, Limits
from oncemq.protocol.names import refuse_key, refuse_name
from oncemq.protocol.patterns import is_pattern

_encode = msgspec.msgpack.Encoder().encode

#: What one event takes in the journal at the most, beyond names and payloads that the command brings.
EVENT_BYTES_MAX = 1024
#: The same for a part of a transaction.
_PART_BYTES_MAX = 640
#: The same for a topic of a commit.
_COMMIT_PART_BYTES_MAX = 64
#: Positions of the topics that a pattern has, so many at the most.
SEEK_BYTES_MAX = 32 * SEEK_TOPICS_MAX

Decision = Reading


def need_bytes(command: commands.Command) -> int:
    """Journal room that a command may need, payload included. 0: it records nothing."""
    if isinstance(command, commands.Numbered | commands.Keyed):
        operation = command.operation
        if isinstance(operation, commands.Put):
            envelope = operation.envelope
            names_bytes = 2 * len(operation.topic) + len(envelope.key_hashes)
            return EVENT_BYTES_MAX + names_bytes + record_bytes(envelope.size)
        payload_bytes = sum(_PART_BYTES_MAX + record_bytes(each.size) for each in commands.envelopes_of(operation))
        return EVENT_BYTES_MAX + _beyond_bytes(operation) + len(_encode(command)) + payload_bytes
    if isinstance(command, commands.Hello | commands.Bye | commands.Ack | commands.Get):
        return EVENT_BYTES_MAX
    if isinstance(command, commands.GetAny):
        return EVENT_BYTES_MAX + len(command.acks) * (len(_encode((command.pattern, command.subscriber))) + 32)
    if isinstance(command, commands.Take | commands.Extend | commands.Leave):
        return EVENT_BYTES_MAX + settles.need_bytes(command)
    return 0


def _beyond_bytes(operation: commands.Operation) -> int:
    """What some events hold beyond their command."""
    if isinstance(operation, commands.Seek) and is_pattern(operation.topic):
        return SEEK_BYTES_MAX
    if isinstance(operation, commands.Settle):
        return settles.need_bytes(operation)
    if isinstance(operation, commands.Commit):
        return _COMMIT_PART_BYTES_MAX * len(operation.parts)
    if isinstance(operation, commands.Transact):
        return sum(settles.need_bytes(settle) for settle in operation.settles)
    return 0


#: Operations that have got further fields, and how many elements they had in journals of version 1.
_ELEMENTS_AT_FIRST: dict[type, int] = {
    commands.CreateTopic: 4,
    commands.Subscribe: 4,
    commands.Open: 4,
    commands.Commit: 5,
}


def digest_of(operation: commands.Operation) -> int:
    """Tells operations apart that are sent under one number; covers the payload through its checksum.

    Further fields count where they say something: what was decided before an upgrade is recognised after it.
    """
    if type(operation) in _ELEMENTS_AT_FIRST:
        return xxhash.xxh3_64_intdigest(_encode(_elements(operation)))
    return xxhash.xxh3_64_intdigest(_encode(operation))


def _elements(operation: commands.Operation) -> list[object]:
    """Without further fields that have their defaults."""
    kind = type(operation)
    elements: list[object] = [kind.__struct_config__.tag, *msgspec.structs.astuple(operation)]
    defaults = list(kind.__struct_defaults__)
    while len(elements) > _ELEMENTS_AT_FIRST[kind] and elements[-1] == defaults.pop():
        elements.pop()
    return elements


class ApplyFailed(Exception):
    """A bug: an event could not be applied. The broker must stop and recover."""


class Engine:
    def __init__(self, broker_id: str, first_topic_id: int, extent_bytes: int, limits: Limits) -> None:
        self.limits = limits
        self.state = State(broker_id, first_topic_id, extent_bytes)
        self._captures = 0
        self._steppers: dict[type, Callable[[int, WriteSlot, Any], Decision]] = {
            commands.Numbered: self._numbered,
            commands.Keyed: self._keyed,
            commands.Hello: self._hello,
            commands.Bye: self._bye,
            commands.Get: self._get,
            commands.Ack: self._ack,
            commands.GetAny: self._get_any,
            commands.Take: self._take,
            commands.Extend: self._extend,
            commands.Leave: self._leave,
            commands.Find: lambda _now, _place, command: Decision(reads.find_offset(self.state, command)),
            commands.Patterns: lambda _now, _place, command: Decision(lists.list_patterns(self.state, command)),
            commands.Read: lambda _now, _place, command: reads.decide_read(self.state, self.limits, command),
            commands.Topics: lambda _now, _place, command: Decision(lists.list_topics(self.state, command)),
            commands.Subscriptions: lambda _now, _place, command: Decision(
                lists.list_subscriptions(self.state, command)
            ),
            commands.Sessions: lambda _now, _place, command: Decision(lists.list_sessions(self.state, command)),
            commands.RegistryList: lambda _now, _place, command: Decision(lists.list_registry(self.state, command)),
        }

    # Deciding.

    def step(self, now_ms: int, place: WriteSlot, command: commands.Command) -> Decision:
        """Decide about a command and apply what was decided. `place` is where its payload would go."""
        return self._steppers[type(command)](now_ms, place, command)

    def tick(self, now_ms: int) -> list[events.Event]:
        """What time has brought about."""
        expired = []
        for event in expire(self.state, self.limits, now_ms):
            self.apply(now_ms, event)
            expired.append(event)
        return expired

    def take_ready(self) -> set[int]:
        """Topics of which messages can be taken again, since time has passed."""
        ready, self.state.schedule.ready = self.state.schedule.ready, set()
        return ready

    def has_work(self, now_ms: int, settled: events.Settled) -> bool:
        """Whether there is something to take in a shared subscription, after this."""
        topic = self.state.topics_by_id[settled.topic_id]
        shared = topic.subscriptions[settled.subscriber].shared
        return shared is not None and settles.has_work(topic, shared, self.limits, now_ms)

    def next_tick_ms(self) -> int | None:
        """When a tick may have something to do; None = never, as it stands."""
        if self.state.is_recovered:
            return self.state.time_ms
        times = [self.state.schedule.next_ms()]
        if self.state.keys:
            times.append(next(iter(self.state.keys.values())).time_ms + self.limits.key_ms)
        return min((time for time in times if time is not None), default=None)

    def apply(self, time_ms: int, event: events.Event) -> replies.Verdict | None:
        """Raises ApplyFailed: the state can't be trusted any more."""
        try:
            return apply(self.state, self.limits, time_ms, event)
        except Exception as error:
            raise ApplyFailed(f"{type(event).__name__}: {error!r}") from error

    def _decided(self, now_ms: int, decision: Decision) -> Decision:
        if decision.event is not None:
            self.apply(now_ms, decision.event)
        return decision

    def _numbered(self, now_ms: int, place: WriteSlot, command: commands.Numbered) -> Decision:
        session = self.state.sessions.get(command.session)
        refusal = _refuse_epoch(session, command.session, command.epoch)
        if session is None or refusal is not None:
            return Decision(refusal or _session_unknown(command.session))
        digest = digest_of(command.operation)
        if command.number <= session.last_number:
            return Decision(_repeat(session, command, digest))
        if command.number != session.last_number + 1:
            text = f"number {command.number} came, {session.last_number + 1} is next"
            return Decision(replies.NotNow("GAP", text, session.last_number))
        if not 1 <= command.seen_below <= command.number:
            return Decision(replies.Refusal("MALFORMED", "seen_below lies between 1 and the number"))
        if command.number - command.seen_below >= session.window:
            return Decision(replies.NotNow("WINDOW_FULL", f"{session.window} commands are in flight"))
        claim = events.Claim(session.id, command.number, digest, command.seen_below)
        return self._operate(now_ms, place, claim, command.operation)

    def _keyed(self, now_ms: int, place: WriteSlot, command: commands.Keyed) -> Decision:
        digest = digest_of(command.operation)
        known = self.state.keys.get((command.principal, command.key))
        if known is not None:
            if known.digest != digest:
                return Decision(replies.Refusal("KEY_REUSED", f"key '{command.key}' was used for another request"))
            return Decision(known.verdict)
        refusal = refuse_name(command.principal, "principal's name") or refuse_key(command.key)
        if refusal is not None:
            return Decision(refusal)
        if len(self.state.keys) >= self.limits.keys_max:
            return Decision(replies.NotNow("KEYS_FULL", f"there are {self.limits.keys_max} keys, which is the limit"))
        claim = events.KeyClaim(command.principal, command.key, digest)
        return self._operate(now_ms, place, claim, command.operation)

    def _operate(
        self, now_ms: int, place: WriteSlot, claim: events.AnyClaim, operation: commands.Operation
    ) -> Decision:
        if place.room_bytes <= 0:
            return Decision(_disk_full())
        outcome = decide(Situation(self.state, self.limits, now_ms, place, claim), operation)
        if isinstance(outcome, replies.NotNow):
            return Decision(outcome)
        if isinstance(outcome, replies.Refusal):
            # A refusal uses up its number, or a retry could succeed after the client was told no.
            outcome = events.Declined(claim, outcome.code, outcome.text)
        verdict = self.apply(now_ms, outcome)
        assert verdict is not None
        return Decision(verdict, outcome)

    # Sessions.

    def _hello(self, now_ms: int, place: WriteSlot, command: commands.Hello) -> Decision:
        session = self.state.sessions.get(command.session)
        if command.epoch:
            refusal = _refuse_epoch(session, command.session, command.epoch)
            return Decision(refusal or self._greet(command.session))
        if session is not None and command.nonce in session.nonces:
            if command.nonce == session.nonces[-1]:
                return Decision(self._greet(command.session))
            return Decision(_fenced(command.session))
        refusal = refuse_name(command.session, "session's name")
        if refusal is None and session is None and len(self.state.sessions) >= self.limits.sessions_max:
            refusal = replies.Refusal("LIMIT_REACHED", f"there are {self.limits.sessions_max} sessions, the limit")
        if refusal is not None:
            return Decision(refusal)
        if place.room_bytes <= 0:
            return Decision(_disk_full())
        begun = events.SessionBegun(
            session.id if session is not None else self.state.next_epoch,
            command.session,
            self.state.next_epoch,
            command.nonce,
            max(1, min(command.window, WINDOW_MAX)),
            command.anonymous,
        )
        self.apply(now_ms, begun)
        return Decision(self._greet(command.session), begun)

    def _greet(self, name: str) -> replies.HelloReply:
        session = self.state.sessions[name]
        verdicts = tuple((number, verdict) for number, (_, verdict) in session.verdicts.items())
        return replies.HelloReply(
            session.epoch,
            session.last_number,
            session.window,
            verdicts,
            self.state.broker_id,
            self.limits.batch_bytes_max,
            self.state.term,
        )

    def _bye(self, now_ms: int, place: WriteSlot, command: commands.Bye) -> Decision:
        session = self.state.sessions.get(command.session)
        if session is None or session.epoch != command.epoch or place.room_bytes <= 0:
            return Decision(replies.Done())
        if not (session.anonymous or command.for_good):
            return Decision(replies.Done())
        return self._decided(now_ms, Decision(replies.Done(), events.SessionEnded(session.id)))

    # Reading.

    def _get(self, now_ms: int, place: WriteSlot, command: commands.Get) -> Decision:
        if command.ack >= 0 and place.room_bytes <= 0:
            return Decision(_disk_full())
        decision = reads.decide_get(self.state, self.limits, command)
        return self._decided(now_ms, decision)

    def _ack(self, now_ms: int, place: WriteSlot, command: commands.Ack) -> Decision:
        if place.room_bytes <= 0:
            return Decision(_disk_full())
        return self._decided(now_ms, reads.decide_ack(self.state, command))

    def _get_any(self, now_ms: int, place: WriteSlot, command: commands.GetAny) -> Decision:
        if len(command.acks) > TRANSACTION_PARTS_MAX:
            return Decision(replies.Refusal("MALFORMED", f"a get has at most {TRANSACTION_PARTS_MAX} acks"))
        if command.acks and place.room_bytes <= 0:
            return Decision(_disk_full())
        return self._decided(now_ms, reads.decide_get_any(self.state, self.limits, command))

    # Shared subscriptions.

    def _take(self, now_ms: int, place: WriteSlot, command: commands.Take) -> Decision:
        found = joined(self.state, command.topic_id, command.subscriber, command.epoch)
        if isinstance(found, replies.Refusal):
            return Decision(found)
        if place.room_bytes <= 0:
            return Decision(_disk_full())
        taken = decide_take(*found, self.limits, now_ms, self.state.next_epoch, command)
        if isinstance(taken, replies.Refusal):
            return Decision(taken)
        waits_for = command.topic_id if taken.waits else 0
        return self._decided(now_ms, Decision(taken.reply, taken.event, taken.slices, (), waits_for))

    def _extend(self, now_ms: int, place: WriteSlot, command: commands.Extend) -> Decision:
        found = joined(self.state, command.topic_id, command.subscriber, command.epoch)
        if isinstance(found, replies.Refusal):
            return Decision(found)
        if place.room_bytes <= 0:
            return Decision(_disk_full())
        extended = decide_extend(*found, now_ms, command)
        if isinstance(extended, replies.Refusal):
            return Decision(extended)
        event, reply = extended
        return self._decided(now_ms, Decision(reply, event))

    def _leave(self, now_ms: int, place: WriteSlot, command: commands.Leave) -> Decision:
        found = joined(self.state, command.topic_id, command.subscriber, command.epoch)
        if isinstance(found, replies.Refusal):
            return Decision(found)
        if place.room_bytes <= 0:
            return Decision(_disk_full())
        return self._decided(now_ms, Decision(replies.Done(), decide_leave(*found, command)))

    # Copy-forward.

    def move(self, now_ms: int, head: RecordHead, first_offset: int, position: int) -> events.Moved:
        """A record that is needed (locator.py) lies at another position from now on."""
        moved = events.Moved(head.topic_id, first_offset, head.position, position, head.size)
        self.apply(now_ms, moved)
        return moved

    # Snapshots.

    def capture(self) -> Capture:
        self._captures += 1
        return Capture(self.state, self._captures)

    def restore(self, chunks: Iterable[bytes]) -> None:
        restore(self.state, self.limits, chunks)


def _session_unknown(name: str) -> replies.Refusal:
    return replies.Refusal("SESSION_UNKNOWN", f"there is no session '{name}'")


def _fenced(name: str) -> replies.Refusal:
    return replies.Refusal("FENCED", f"another client took over '{name}'")


def _disk_full() -> replies.NotNow:
    return replies.NotNow("DISK_FULL", "the disk is full, and what was kept in reserve is used up")


def _refuse_epoch(session: Session | None, name: str, epoch: int) -> replies.Refusal | None:
    if session is None or epoch > session.epoch:
        return _session_unknown(name)
    return _fenced(name) if epoch < session.epoch else None


def _repeat(session: Session, command: commands.Numbered, digest: int) -> replies.Reply:
    """The client retried because our first reply was lost: answer it again."""
    known = session.verdicts.get(command.number)
    giving_up = isinstance(command.operation, commands.Void)
    if known is None:
        if giving_up:
            return replies.Done()
        return replies.Refusal("VERDICT_FORGOTTEN", f"number {command.number} was decided and its answer seen")
    if known[0] != digest and not giving_up:
        return replies.Refusal("SEQUENCE_REUSED", f"number {command.number} was used for another command")
    return known[1]
