"""The engine: `step` decides, `apply` changes the state.

    command ─► step ─► Decision: the event to record, the reply to send after the sync, the slices to read for it

`step` first decides what a command leads to (package `decide`), which changes nothing. If the outcome is an event, it
then applies the event (package `apply`), which decides nothing. The broker appends the event to the journal, syncs, and
only then sends the reply. Recovery applies the recorded events in order and reaches the same state, because events
contain their outcomes. `tick` does the same for what becomes due with time.

An exception while deciding has changed nothing: the command is refused with BROKER_BUG. An exception in `apply` leaves
the state undefined: the broker must stop and recover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from oncemq.engine import events
from oncemq.engine.apply.dispatch import apply
from oncemq.engine.caller import Caller
from oncemq.engine.decide import lists, reads, schemas
from oncemq.engine.decide.decision import Decision
from oncemq.engine.decide.decision_context import DecisionContext, limit_reached
from oncemq.engine.decide.keys import refuse_new_key
from oncemq.engine.decide.operations import decide
from oncemq.engine.decide.owners import new_owners
from oncemq.engine.decide.subscriptions import leases
from oncemq.engine.decide.subscriptions.ownership import find_owner, find_shared, note_heard
from oncemq.engine.decide.subscriptions.takes import decide_take
from oncemq.engine.decide.ticks import expire
from oncemq.engine.digest import digest_of
from oncemq.engine.event_bytes import refusal_text
from oncemq.engine.snapshot.capture import Capture, restore
from oncemq.engine.state.session import Session
from oncemq.engine.state.state import State
from oncemq.journal.contract import RecordHead, WriteSlot
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import TRANSACTION_PARTS_MAX, WINDOW_MAX, Limits
from oncemq.protocol.names import refuse_key, refuse_name

_SHARED_DECIDERS: dict[type, Callable[..., Decision]] = {
    commands.Take: decide_take,
    commands.Extend: leases.decide_extend,
    commands.Leave: leases.decide_leave,
}

_QUERIES: dict[type, Callable[[State, Any], replies.Reply]] = {
    commands.Find: reads.find_offset,
    commands.Measure: reads.measure,
    commands.Writer: lists.describe_writer,
    commands.Schemas: schemas.list_schemas,
    commands.Topics: lists.list_topics,
    commands.Subscriptions: lists.list_subscriptions,
    commands.Patterns: lists.list_patterns,
    commands.Sessions: lists.list_sessions,
    commands.RegistryList: lists.list_registry,
    commands.Keys: lists.list_keys,
    commands.Shares: lists.list_shares,
}


class ApplyFailed(Exception):
    """An event could not be applied, which is a bug. The broker must stop and recover."""


class Engine:
    def __init__(self, broker_id: str, first_topic_id: int, extent_bytes: int, limits: Limits) -> None:
        self.limits = limits
        self.state = State(broker_id, first_topic_id, extent_bytes)
        self._captures = 0
        self._handlers: dict[type, Callable[[int, WriteSlot, Any], Decision]] = {
            commands.Numbered: self._numbered,
            commands.Keyed: self._keyed,
            commands.Hello: self._hello,
            commands.Bye: self._bye,
            commands.Get: self._get,
            commands.Ack: self._ack,
            commands.GetAny: self._get_any,
            commands.Read: self._read,
            **dict.fromkeys(_SHARED_DECIDERS, self._shared),
            **dict.fromkeys(_QUERIES, self._query),
        }

    # Commands.

    def step(
        self,
        now_ms: int,
        slot: WriteSlot,
        command: commands.Command,
        refusal: replies.Refusal | None = None,
        caller: Caller | None = None,
    ) -> Decision:
        """Decide a command and apply the outcome. Payloads would be written to `slot`.

        `refusal` is what the broker has against the payloads, which the engine does not read, or against the caller. A
        numbered or keyed command is refused with it, unless it was decided before. `caller` owns what the command
        creates, and sees only a part of lists.
        """
        if caller is None:
            return self._step(now_ms, slot, command, refusal)
        if type(command) in lists.LISTS:
            return Decision(lists.LISTS[type(command)](self.state, command, caller))
        decision = self._step(now_ms, slot, command, refusal)
        if decision.event is None:
            return decision
        owned = new_owners(self.state, decision.event, caller.user)
        if owned is None:
            return decision
        self.apply(now_ms, owned)
        return msgspec.structs.replace(decision, owned=owned)

    def _step(
        self, now_ms: int, slot: WriteSlot, command: commands.Command, refusal: replies.Refusal | None
    ) -> Decision:
        if refusal is None:
            return self._handlers[type(command)](now_ms, slot, command)
        assert isinstance(command, commands.Numbered | commands.Keyed)
        if isinstance(command, commands.Numbered):
            return self._numbered(now_ms, slot, command, refusal)
        return self._keyed(now_ms, slot, command, refusal)

    def tick(self, now_ms: int) -> list[events.Event]:
        """Apply and return the events that are due."""
        expired = []
        for event in expire(self.state, self.limits, now_ms):
            self.apply(now_ms, event)
            expired.append(event)
        return expired

    def take_wakeups(self) -> set[int]:
        """Return, once, the ids of topics whose waiting takes should try again."""
        wakeups, self.state.schedule.wakeups = self.state.schedule.wakeups, set()
        return wakeups

    def has_work(self, now_ms: int, settled: events.Settled) -> bool:
        """Return whether a shared subscription may have messages for a take after a settle."""
        topic = self.state.topics_by_id[settled.topic_id]
        shared = topic.subscriptions[settled.subscriber].shared
        return shared is not None and leases.has_work(topic, shared, self.limits, now_ms)

    def next_tick_ms(self) -> int | None:
        """Return when the next tick is due; None = nothing is scheduled."""
        state = self.state
        if state.is_recovered:
            return state.time_ms
        due_ms = state.schedule.next_ms()
        if state.keys:
            key_ms = next(iter(state.keys)).time_ms + self.limits.key_ms
            return key_ms if due_ms is None else min(due_ms, key_ms)
        return due_ms

    def pass_time(self, time_ms: int) -> None:
        """Note that this time was recorded without an event."""
        self.state.time_ms = max(self.state.time_ms, time_ms)

    def apply(self, time_ms: int, event: events.Event) -> replies.Verdict | None:
        """Apply an event and return its verdict. Raises ApplyFailed: the state is then undefined."""
        try:
            return apply(self.state, self.limits, time_ms, event)
        except Exception as error:
            raise ApplyFailed(f"{type(event).__name__}: {error!r}") from error

    def _applied(self, now_ms: int, decision: Decision) -> Decision:
        """Apply the event of a decision, if it has one. Return the decision."""
        if decision.event is not None:
            self.apply(now_ms, decision.event)
        return decision

    def _numbered(
        self, now_ms: int, slot: WriteSlot, command: commands.Numbered, found: replies.Refusal | None = None
    ) -> Decision:
        session = self.state.sessions.get(command.session)
        refusal = _refuse_epoch(session, command.session, command.epoch)
        if session is None or refusal is not None:
            return Decision(refusal or _session_unknown(command.session))
        digest = digest_of(command.operation)
        if command.number <= session.last_number:
            return Decision(_repeat(session, command, digest))
        if command.number != session.last_number + 1:
            text = f"number {command.number} arrived, but {session.last_number + 1} is the next one"
            return Decision(replies.NotNow("GAP", text, session.last_number))
        if not 1 <= command.seen_below <= command.number:
            return Decision(replies.Refusal("MALFORMED", "seen_below must be between 1 and the number"))
        if command.number - command.seen_below >= session.window:
            return Decision(replies.NotNow("WINDOW_FULL", f"{session.window} commands are already in flight"))
        claim = events.Claim(session.id, command.number, digest, command.seen_below)
        return self._execute(now_ms, slot, claim, command.operation, found)

    def _keyed(
        self, now_ms: int, slot: WriteSlot, command: commands.Keyed, found: replies.Refusal | None = None
    ) -> Decision:
        digest = digest_of(command.operation)
        known = self.state.keys.get(command.principal, command.key)
        if known is not None:
            if known.digest != digest:
                text = f"key '{command.key}' was already used for a different request"
                return Decision(replies.Refusal("KEY_REUSED", text))
            return Decision(known.verdict)
        refusal = refuse_name(command.principal, "principal's name") or refuse_key(command.key)
        if refusal is not None:
            return Decision(refusal)
        full = refuse_new_key(self.state, self.limits, now_ms, command.principal)
        if full is not None:
            return Decision(full)
        claim = events.KeyClaim(command.principal, command.key, digest)
        return self._execute(now_ms, slot, claim, command.operation, found)

    def _execute(
        self,
        now_ms: int,
        slot: WriteSlot,
        claim: events.AnyClaim,
        operation: commands.Operation,
        found: replies.Refusal | None,
    ) -> Decision:
        if slot.free_bytes <= 0:
            return Decision(_disk_full())
        outcome = found or decide(DecisionContext(self.state, self.limits, now_ms, slot, claim), operation)
        if isinstance(outcome, replies.NotNow):
            return Decision(outcome)
        if isinstance(outcome, replies.Refusal):
            # A refusal consumes its number. Otherwise a retry could succeed after the client got the refusal.
            outcome = events.Declined(claim, outcome.code, refusal_text(outcome.text))
        verdict = self.apply(now_ms, outcome)
        assert verdict is not None
        return Decision(verdict, outcome)

    # Sessions.

    def _hello(self, now_ms: int, slot: WriteSlot, command: commands.Hello) -> Decision:
        session = self.state.sessions.get(command.session)
        if command.epoch:
            refusal = _refuse_epoch(session, command.session, command.epoch)
            return Decision(refusal or self._hello_reply(command.session))
        if session is not None and command.nonce in session.nonces:
            if command.nonce == session.nonces[-1]:
                return Decision(self._hello_reply(command.session))
            return Decision(_fenced(command.session))
        refusal = refuse_name(command.session, "session's name")
        if refusal is None and session is None and len(self.state.sessions) >= self.limits.sessions_max:
            refusal = limit_reached(self.limits.sessions_max, "sessions")
        if refusal is not None:
            return Decision(refusal)
        if slot.free_bytes <= 0:
            return Decision(_disk_full())
        started = events.SessionStarted(
            session.id if session is not None else self.state.next_epoch,
            command.session,
            self.state.next_epoch,
            command.nonce,
            max(1, min(command.window, WINDOW_MAX)),
            command.anonymous,
        )
        self.apply(now_ms, started)
        return Decision(self._hello_reply(command.session), started)

    def _hello_reply(self, name: str) -> replies.HelloReply:
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

    def _bye(self, now_ms: int, slot: WriteSlot, command: commands.Bye) -> Decision:
        session = self.state.sessions.get(command.session)
        if session is None or session.epoch != command.epoch or slot.free_bytes <= 0:
            return Decision(replies.Done())
        if not (session.anonymous or command.for_good):
            return Decision(replies.Done())
        return self._applied(now_ms, Decision(replies.Done(), events.SessionEnded(session.id)))

    # Reads and acks.

    def _get(self, now_ms: int, slot: WriteSlot, command: commands.Get) -> Decision:
        if command.ack >= 0 and slot.free_bytes <= 0:
            return Decision(_disk_full())
        decision = self._applied(now_ms, reads.decide_get(self.state, self.limits, command))
        return self._heard(now_ms, command, decision)

    def _ack(self, now_ms: int, slot: WriteSlot, command: commands.Ack) -> Decision:
        if slot.free_bytes <= 0:
            return Decision(_disk_full())
        decision = self._applied(now_ms, reads.decide_ack(self.state, command))
        return self._heard(now_ms, command, decision)

    def _get_any(self, now_ms: int, slot: WriteSlot, command: commands.GetAny) -> Decision:
        if len(command.acks) > TRANSACTION_PARTS_MAX:
            return Decision(replies.Refusal("MALFORMED", f"a get has at most {TRANSACTION_PARTS_MAX} acks"))
        if command.acks and slot.free_bytes <= 0:
            return Decision(_disk_full())
        decision = self._applied(now_ms, reads.decide_get_any(self.state, self.limits, command))
        return self._heard(now_ms, command, decision)

    def _heard(
        self, now_ms: int, command: commands.Get | commands.Ack | commands.GetAny, decision: Decision
    ) -> Decision:
        """Note that an owner is not idle, if any subscription needs it. Return the decision."""
        if len(self.state.schedule.idle) and not isinstance(decision.reply, replies.Refusal):
            note_heard(find_owner(self.state, command), now_ms)
        return decision

    def _read(self, _now_ms: int, _slot: WriteSlot, command: commands.Read) -> Decision:
        return reads.decide_read(self.state, self.limits, command)

    def _query(self, _now_ms: int, _slot: WriteSlot, command: commands.Command) -> Decision:
        return Decision(_QUERIES[type(command)](self.state, command))

    # Shared subscriptions.

    def _shared(
        self, now_ms: int, slot: WriteSlot, command: commands.Take | commands.Extend | commands.Leave
    ) -> Decision:
        found = find_shared(self.state, command.topic_id, command.subscriber, command.epoch)
        if isinstance(found, replies.Refusal):
            return Decision(found)
        if slot.free_bytes <= 0:
            return Decision(_disk_full())
        decide_shared = _SHARED_DECIDERS[type(command)]
        return self._applied(now_ms, decide_shared(self.state, self.limits, now_ms, *found, command))

    def defer(self, pattern: str, subscriber: str, topic_id: int) -> None:
        """Let a pattern subscription get the messages of its other topics first. This is not recorded."""
        found = self.state.patterns.get((pattern, subscriber))
        if found is not None:
            found.defer(topic_id)

    # Copy-forward.

    def move(self, now_ms: int, head: RecordHead, first_offset: int, position: int) -> events.Moved:
        """Record the new position of a record that is still needed (record_locator.py)."""
        moved = events.Moved(head.topic_id, first_offset, head.position, position, head.size)
        self.apply(now_ms, moved)
        return moved

    # Snapshots.

    def capture(self) -> Capture:
        """Start a snapshot. Call this at a group boundary."""
        self._captures += 1
        return Capture(self.state, self._captures)

    def restore(self, chunks: Iterable[bytes]) -> None:
        restore(self.state, self.limits, chunks)


def _session_unknown(name: str) -> replies.Refusal:
    return replies.Refusal("SESSION_UNKNOWN", f"there is no session '{name}'")


def _fenced(name: str) -> replies.Refusal:
    return replies.Refusal("FENCED", f"another client took over '{name}'")


def _disk_full() -> replies.NotNow:
    return replies.NotNow("DISK_FULL", "the disk is full, and its reserve is used up")


def _refuse_epoch(session: Session | None, name: str, epoch: int) -> replies.Refusal | None:
    if session is None or epoch > session.epoch:
        return _session_unknown(name)
    return _fenced(name) if epoch < session.epoch else None


def _repeat(session: Session, command: commands.Numbered, digest: int) -> replies.Reply:
    """The client retried because the first reply was lost: return the same verdict."""
    known = session.verdicts.get(command.number)
    is_void = isinstance(command.operation, commands.Void)
    if known is None:
        if is_void:
            return replies.Done()
        text = f"number {command.number} was decided, and the client has received the reply"
        return replies.Refusal("VERDICT_FORGOTTEN", text)
    if known[0] != digest and not is_void:
        return replies.Refusal("SEQUENCE_REUSED", f"number {command.number} was already used for a different command")
    return known[1]
