"""Planted bugs in stages and their commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from oncemq.engine import events
from oncemq.engine.apply import dispatch, messages
from oncemq.engine.decide import operations
from oncemq.engine.decide import stages as staging
from oncemq.engine.decide.decision_context import DecisionContext, Outcome
from oncemq.engine.snapshot import capture
from oncemq.engine.state.state import State, WriterEntry
from oncemq.protocol import commands
from tests.simulation.bugs.registry import Patch, bug

_replace = msgspec.structs.replace


def _deciding(operation: type, decide: object) -> Sequence[Patch]:
    return [(operations, "_DECIDERS", {**operations._DECIDERS, operation: decide})]


def _applying(event: type, apply: object) -> Sequence[Patch]:
    return [(dispatch, "_APPLIERS", {**dispatch._APPLIERS, event: apply})]


# Several topics.


@bug("a commit to several topics omits the last one")
def commit_leaves_out_a_topic() -> Sequence[Patch]:
    real: Any = messages._committed

    def committed(state: State, limits: Any, time_ms: int, event: events.Committed) -> None:
        real(state, limits, time_ms, _replace(event, parts=event.parts[:-1]) if len(event.parts) > 1 else event)

    return _applying(events.Committed, committed)


@bug("a commit publishes on its first topic before it has checked the others")
def commit_is_not_atomic() -> Sequence[Patch]:
    real: Any = staging.decide_commit

    def commit(at: DecisionContext, op: commands.Commit) -> Outcome:
        outcome: Outcome = real(at, op)
        if not isinstance(outcome, events.Committed) and len(op.parts) > 1:
            part = staging._publish(at, *op.parts[0])
            if isinstance(part, events.CommittedPart):
                messages._publish(at.state, at.now_ms, part)
        return outcome

    return _deciding(commands.Commit, commit)


@bug("a commit succeeds without a topic that is full")
def full_topic_is_left_out_of_a_commit() -> Sequence[Patch]:
    real: Any = staging._publish

    def publish(at: DecisionContext, name: str, stages: commands.Stages) -> Any:
        part = real(at, name, stages)
        if getattr(part, "code", "") != "TOPIC_FULL":
            return part
        topic = at.state.topics[name]
        return events.CommittedPart(topic.id, topic.next_offset, sum(count for _, count in stages), 1, ())

    return [(staging, "_publish", publish)]


@bug("the stages of a commit are published in another order")
def stages_are_reordered() -> Sequence[Patch]:
    real: Any = staging._publish

    def publish(at: DecisionContext, name: str, stages: commands.Stages) -> Any:
        return real(at, name, stages[::-1])

    return [(staging, "_publish", publish)]


@bug("a commit does not check the number of messages in its stages")
def stage_counts_are_not_checked() -> Sequence[Patch]:
    real: Any = staging._refuse_stages

    def refuse(at: DecisionContext, topic: Any, stages: commands.Stages) -> Any:
        refusal = real(at, topic, stages)
        return None if refusal is not None and refusal.code == "STAGE_MISMATCH" else refusal

    return [(staging, "_refuse_stages", refuse)]


# Recorded commits.


@bug("a one-off commit is recorded, and the next one is treated as a retry of it")
def one_off_is_remembered() -> Sequence[Patch]:
    real: Any = messages._committed

    def committed(state: State, limits: Any, time_ms: int, event: events.Committed) -> None:
        real(state, limits, time_ms, event)
        state.writers[event.writer] = WriterEntry(event.batch)

    return _applying(events.Committed, committed)


@bug("writers are missing in snapshots")
def writers_are_missing_in_snapshots() -> Sequence[Patch]:
    def iterate(self: capture.Capture, *images: Any) -> Any:
        *others, _writers, owners = images
        return real(self, *others, [], owners)

    real: Any = capture.Capture._iterate
    return [(capture.Capture, "_iterate", iterate)]


@bug("a batch number that comes back with other content is taken for a retry")
def other_content_is_taken_for_a_retry() -> Sequence[Patch]:
    return [(staging, "_refuse_other_content", lambda _context, _operation: None)]


@bug("the contents of commits are missing in snapshots")
def contents_are_missing_in_snapshots() -> Sequence[Patch]:
    def iterate(self: capture.Capture, *images: Any) -> Any:
        *others, writers, owners = images
        without = [(writer, WriterEntry(entry.batch)) for writer, entry in writers]
        return real(self, *others, without, owners)

    real: Any = capture.Capture._iterate
    return [(capture.Capture, "_iterate", iterate)]


@bug("staging for a committed batch is accepted")
def staging_for_a_committed_batch_is_taken() -> Sequence[Patch]:
    real: Any = staging.decide_stage

    def stage(at: DecisionContext, op: commands.Stage) -> Outcome:
        outcome: Outcome = real(at, _replace(op, writer="", batch=0))
        return outcome

    return _deciding(commands.Stage, stage)


# Deleted stages.


@bug("an abort deletes published messages")
def abort_drops_what_was_published() -> Sequence[Patch]:
    real_publish: Any = messages._publish

    def publish(state: Any, time_ms: int, part: events.Committed | events.CommittedPart) -> None:
        real_publish(state, time_ms, part)
        published = state.__dict__.setdefault("published", {})
        published.update((stage, (part.topic_id, part.first_offset + part.count)) for stage in part.stages)

    def abort(at: Any, op: commands.Abort) -> Outcome:
        published = at.state.__dict__.get("published", {})
        outcome = staging.decide_abort(at, op)
        for topic_id, floor in [published[name] for name in op.stages if name in published]:
            if topic_id in at.state.topics_by_id and at.state.topics_by_id[topic_id].index.first < floor:
                messages._dropped(at.state, at.limits, at.now_ms, events.Dropped(topic_id, floor))
        return outcome

    return [(messages, "_publish", publish), *_deciding(commands.Abort, abort)]


@bug("a retried commit publishes the stages of its second try")
def replayed_commit_publishes_again() -> Sequence[Patch]:
    real: Any = staging.decide_commit

    def commit(at: DecisionContext, op: commands.Commit) -> Outcome:
        outcome: Outcome = real(at, op)
        if isinstance(outcome, events.Committed) and outcome.before and outcome.stages:
            again: Outcome = real(at, _replace(op, writer="", batch=0))
            return again
        return outcome

    return _deciding(commands.Commit, commit)
