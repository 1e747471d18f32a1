"""Planted bugs in the decisions and the state of the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from oncemq.engine import engine as engine_module
from oncemq.engine import events
from oncemq.engine.apply import dispatch, messages, topics
from oncemq.engine.decide import operations, reads, stages, ticks
from oncemq.engine.decide.decision import Decision
from oncemq.engine.decide.decision_context import DecisionContext, Outcome
from oncemq.engine.decide.subscriptions import subscribe
from oncemq.engine.engine import Engine
from oncemq.engine.snapshot import capture
from oncemq.engine.state.key_table import KeyEntry, KeyTable
from oncemq.engine.state.session import Session
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Topic
from oncemq.protocol import commands, replies
from tests.simulation.bugs.registry import Patch, bug

_replace = msgspec.structs.replace


# Sessions.


@bug("a refusal does not consume its number")
def refusal_leaves_its_number_open() -> Sequence[Patch]:
    real: Any = operations.decide

    def execute(
        self: Engine,
        now_ms: int,
        place: Any,
        claim: events.AnyClaim,
        operation: commands.Operation,
        found: replies.Refusal | None,
    ) -> Decision:
        outcome = found or real(DecisionContext(self.state, self.limits, now_ms, place, claim), operation)
        if isinstance(outcome, replies.NotNow | replies.Refusal):
            return Decision(outcome)
        verdict = self.apply(now_ms, outcome)
        assert verdict is not None
        return Decision(verdict, outcome)

    return [(Engine, "_execute", execute)]


@bug("NotNow consumes the number")
def not_now_uses_up_the_number() -> Sequence[Patch]:
    real: Any = Engine._execute

    def execute(self: Engine, now_ms: int, place: Any, claim: events.AnyClaim, *operation: Any) -> Decision:
        decision: Decision = real(self, now_ms, place, claim, *operation)
        if isinstance(decision.reply, replies.NotNow) and place.free_bytes > 0:
            voided = events.Voided(claim)
            self.apply(now_ms, voided)
            return Decision(decision.reply, voided)
        return decision

    return [(Engine, "_execute", execute)]


@bug("a number after a gap is accepted")
def gap_is_accepted() -> Sequence[Patch]:
    real: Any = Engine._numbered

    def numbered(self: Engine, now_ms: int, place: Any, command: commands.Numbered, *found: Any) -> Decision:
        session = self.state.sessions.get(command.session)
        if session is not None and session.epoch == command.epoch and command.number > session.last_number:
            session.last_number = command.number - 1
        decision: Decision = real(self, now_ms, place, command, *found)
        return decision

    return [(Engine, "_numbered", numbered)]


@bug("different bytes under a used number or key get the stored verdict")
def digest_is_not_compared() -> Sequence[Patch]:
    return [(engine_module, "digest_of", lambda _operation: 1)]


@bug("the epoch of a session is not checked: a fenced client continues")
def session_epoch_is_not_checked() -> Sequence[Patch]:
    real: Any = engine_module._refuse_epoch

    def refuse(session: Session | None, name: str, epoch: int) -> replies.Refusal | None:
        refusal: replies.Refusal | None = real(session, name, epoch)
        return None if refusal is not None and refusal.code == "FENCED" else refusal

    return [(engine_module, "_refuse_epoch", refuse)]


@bug("a retried hello is treated as a new one")
def hello_repetition_bumps_the_epoch() -> Sequence[Patch]:
    real: Any = Engine._hello

    def hello(self: Engine, now_ms: int, place: Any, command: commands.Hello) -> Decision:
        decision: Decision = real(self, now_ms, place, _replace(command, nonce=command.nonce + now_ms))
        return decision

    return [(Engine, "_hello", hello)]


@bug("verdicts are deleted before the client has received them")
def verdicts_are_forgotten_too_early() -> Sequence[Patch]:
    real: Any = Session.remember

    def remember(
        self: Session, number: int, digest: int, seen_below: int, verdict: replies.Verdict, time_ms: int
    ) -> None:
        real(self, number, digest, max(seen_below, number - 1), verdict, time_ms)

    return [(Session, "remember", remember)]


@bug("deleting messages also deletes sessions")
def session_is_forgotten_at_collection() -> Sequence[Patch]:
    real: Any = State.reclaim

    def reclaim(self: State, topic: Topic) -> None:
        before = len(topic.index)
        real(self, topic)
        if len(topic.index) < before - 4 and self.sessions:
            session = self.sessions.pop(next(iter(self.sessions)))
            del self.sessions_by_id[session.id]

    return [(State, "reclaim", reclaim)]


@bug("epochs restart for each session and subscription of the same name")
def epochs_restart() -> Sequence[Patch]:
    real_open: Any = subscribe.decide_open
    real_apply: Any = Engine.apply

    def open_(at: DecisionContext, op: commands.Open) -> Outcome:
        outcome: Outcome = real_open(at, op)
        if isinstance(outcome, events.OwnerChanged):
            subscription = at.state.topics[op.topic].subscriptions[op.subscriber]
            return _replace(outcome, epoch=subscription.epoch + 1)
        return outcome

    def apply(self: Engine, time_ms: int, event: events.Event) -> replies.Verdict | None:
        kept = self.state.next_epoch
        if isinstance(event, events.SessionStarted):
            known = self.state.sessions.get(event.name)
            event = _replace(event, epoch=known.epoch + 1 if known is not None else 1)
        verdict: replies.Verdict | None = real_apply(self, time_ms, event)
        self.state.next_epoch = max(kept, self.state.next_epoch) + isinstance(event, events.SessionStarted)
        return verdict

    return [(Engine, "apply", apply), (operations, "_DECIDERS", {**operations._DECIDERS, commands.Open: open_})]


# Positions.


@bug("an ack's epoch is not checked")
def ack_epoch_is_not_checked() -> Sequence[Patch]:
    real: Any = reads.decide_ack

    def decide_ack(state: State, command: commands.Ack) -> Decision:
        topic = state.topics_by_id.get(command.topic_id)
        subscription = topic.subscriptions.get(command.subscriber) if topic is not None else None
        if subscription is not None:
            command = _replace(command, epoch=subscription.epoch)
        found: Decision = real(state, command)
        return found

    return [(reads, "decide_ack", decide_ack)]


@bug("an ack moves the position one message too far")
def ack_runs_ahead() -> Sequence[Patch]:
    real: Any = reads.decide_ack

    def decide_ack(state: State, command: commands.Ack) -> Decision:
        found: Decision = real(state, command)
        topic = state.topics_by_id.get(command.topic_id)
        if isinstance(found.event, events.Acked) and topic is not None and found.event.upto < topic.next_offset:
            return _replace(found, event=_replace(found.event, upto=found.event.upto + 1))
        return found

    return [(reads, "decide_ack", decide_ack)]


@bug("a get moves the position: messages are skipped if its reply is lost")
def get_moves_the_position() -> Sequence[Patch]:
    real: Any = reads.decide_get
    given: dict[tuple[int, int, str, int], int] = {}

    def decide_get(state: State, limits: Any, command: commands.Get) -> Decision:
        key = (id(state), command.topic_id, command.subscriber, command.epoch)
        position = max(command.position, given.get(key, 0))
        found: Decision = real(state, limits, _replace(command, position=position))
        if isinstance(found.reply, replies.GetReply):
            given[key] = found.reply.next_position
        return found

    return [(reads, "decide_get", decide_get)]


@bug("retention deletes messages that a subscriber still needs")
def retention_ignores_subscribers() -> Sequence[Patch]:
    def floor(self: Topic) -> int:
        return self.trimmed if self.retained else self.low_watermark

    return [(Topic, "reclaim_floor", floor)]


@bug("the id of a deleted topic is reused")
def topic_id_is_given_again() -> Sequence[Patch]:
    real: Any = topics._topic_deleted

    def removed(state: State, limits: Any, time_ms: int, event: events.TopicDeleted) -> None:
        real(state, limits, time_ms, event)
        state.next_topic_id = event.topic_id

    return [(dispatch, "_APPLIERS", {**dispatch._APPLIERS, events.TopicDeleted: removed})]


# Stages and keys.


@bug("a retried commit is treated as a new one")
def commit_is_not_idempotent() -> Sequence[Patch]:
    real: Any = stages.decide_commit

    def commit(at: DecisionContext, op: commands.Commit) -> Outcome:
        last = at.state.writers.pop(op.writer, None)
        outcome: Outcome = real(at, op)
        if last is not None:
            at.state.writers[op.writer] = last
        return outcome

    return [(operations, "_DECIDERS", {**operations._DECIDERS, commands.Commit: commit})]


@bug("stages remain after their commit, and expire with the committed messages")
def expiry_drops_what_was_committed() -> Sequence[Patch]:
    real: Any = messages._committed

    def committed(state: State, limits: Any, time_ms: int, event: events.Committed) -> None:
        kept = {name: state.stages[name] for name in event.stages}
        real(state, limits, time_ms, event)
        state.stages.update(kept)

    return [(dispatch, "_APPLIERS", {**dispatch._APPLIERS, events.Committed: committed})]


@bug("a commit omits its last stage")
def commit_leaves_out_a_stage() -> Sequence[Patch]:
    real: Any = stages.decide_commit

    def commit(at: DecisionContext, op: commands.Commit) -> Outcome:
        outcome: Outcome = real(at, op)
        if isinstance(outcome, events.Committed) and not outcome.before and len(outcome.stages) > 1:
            dropped = op.stages[-1][1]
            return _replace(outcome, stages=outcome.stages[:-1], count=outcome.count - dropped)
        return outcome

    return [(operations, "_DECIDERS", {**operations._DECIDERS, commands.Commit: commit})]


@bug("keys expire before their time")
def keys_expire_early() -> Sequence[Patch]:
    real: Any = ticks._expire_keys

    def expire_keys(state: State, limits: Any, now_ms: int) -> Iterator[events.Event]:
        yield from real(state, _replace(limits, key_ms=50), now_ms)

    def next_tick_ms(self: Engine) -> int:
        return 0

    return [(ticks, "_expire_keys", expire_keys), (Engine, "next_tick_ms", next_tick_ms)]


# Snapshots of the state.


@bug("a session is missing in snapshots")
def session_is_missing_in_snapshots() -> Sequence[Patch]:
    real: Any = capture.Capture.__init__

    def init(self: capture.Capture, state: State, generation: int) -> None:
        real(self, state, generation)
        if len(self._sessions) > 3:
            self._sessions.pop()

    return [(capture.Capture, "__init__", init)]


@bug("changes during a snapshot are captured")
def capture_without_copy_on_write() -> Sequence[Patch]:
    def before(_self: capture.Capture, _thing: object) -> None: ...

    return [
        (capture.Capture, "before_topic_changes", before),
        (capture.Capture, "before_session_changes", before),
    ]


@bug("a moved batch is still read at its old position")
def moved_is_not_applied() -> Sequence[Patch]:
    def moved(state: State, _limits: Any, _time_ms: int, event: events.Moved) -> None:
        state.count_dead(event.old_position, event.size)
        state.count_live(event.position, event.size)

    return [(dispatch, "_APPLIERS", {**dispatch._APPLIERS, events.Moved: moved})]


@bug("freeing the keys of one principal also frees those of others")
def keys_of_other_principals_are_freed() -> Sequence[Patch]:
    real_get: Any = KeyTable.get
    real_free: Any = KeyTable.free

    def get(self: KeyTable, principal: str, key: str) -> KeyEntry | None:
        found: KeyEntry | None = real_get(self, principal.removeprefix("former "), key)
        return found

    def free(self: KeyTable, principal: str, key: str) -> None:
        real_free(self, principal.removeprefix("former "), key)

    return [(KeyTable, "get", get), (KeyTable, "free", free)]


# Subscriptions that are deleted when their owner is idle.


@bug("a get is not a sign that the owner of a subscription is there")
def gets_do_not_count_against_idleness() -> Sequence[Patch]:
    return [(Engine, "_heard", lambda self, now_ms, command, decision: decision)]


@bug("a subscription whose owner is idle is kept for ever")
def idle_subscription_is_kept() -> Sequence[Patch]:
    return [(ticks, "_expire_idle", lambda state, topic_id, key, now_ms: iter(()))]


@bug("an owner that was not heard since the broker started is idle at once")
def idle_time_does_not_start_anew() -> Sequence[Patch]:
    real: Any = ticks._expire_idle

    def expire_idle(state: State, topic_id: int, key: str, now_ms: int) -> Iterator[events.Event]:
        owner = ticks._idle_owner(state, topic_id, key)
        if owner is not None and not owner.heard_ms:
            owner.heard_ms = 1
        return real(state, topic_id, key, now_ms)  # type: ignore[no-any-return]

    return [(ticks, "_expire_idle", expire_idle)]
