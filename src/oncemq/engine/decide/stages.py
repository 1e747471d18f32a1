"""Decides operations on stages: batches that are invisible until they are committed."""

from __future__ import annotations

from oncemq.engine import events
from oncemq.engine.decide.decision_context import (
    DecisionContext,
    Outcome,
    limit_reached,
    refuse_full_disk,
    refuse_over_quota,
    refuse_unknown_topic,
)
from oncemq.engine.decide.puts import refuse_envelope
from oncemq.engine.decide.schemas import refuse_unchecked
from oncemq.engine.state.topic import Topic
from oncemq.protocol import commands
from oncemq.protocol.limits import CONTENT_BYTES_MAX, STAGES_PER_COMMIT_MAX
from oncemq.protocol.names import refuse_key
from oncemq.protocol.replies import NotNow, Refusal


def decide_stage(context: DecisionContext, operation: commands.Stage) -> Outcome:
    refusal = refuse_envelope(context, operation.envelope) or refuse_key(operation.stage) or _refuse_writer(operation)
    if refusal is not None:
        return refusal
    if operation.envelope.due_ms:
        return Refusal("UNSUPPORTED", "a staged batch cannot have a due time: it is due when it is committed")
    # This is checked before the topic, which may have been deleted since.
    if _is_committed(context, operation):
        return Refusal("STAGE_COMMITTED", f"'{operation.writer}' has already committed batch {operation.batch}")
    topic = context.state.topics.get(operation.topic)
    if topic is None:
        return refuse_unknown_topic(operation.topic)
    refusal = refuse_unchecked(topic, operation.topic, operation.envelope)
    if refusal is not None:
        return refusal
    stage = context.state.stages.get(operation.stage)
    if stage is None and len(context.state.stages) >= context.limits.stages_max:
        return limit_reached(context.limits.stages_max, "stages")
    if stage is not None and stage.topic_id != topic.id:
        return Refusal("STAGE_MISMATCH", f"stage '{operation.stage}' belongs to another topic")
    return refuse_full_disk(context, operation.envelope.size) or events.Staged(
        context.claim,
        operation.stage,
        topic.id,
        operation.envelope.count,
        operation.envelope.size,
        context.slot.position,
        context.now_ms + context.limits.stage_ms,
        operation.envelope.count + (stage.count if stage is not None else 0),
        operation.envelope.ttl_ms,
        # Whether a subscription has key order is checked at the commit.
        operation.envelope.key_hashes,
    )


def _refuse_writer(operation: commands.Stage | commands.Commit) -> Refusal | None:
    if operation.writer:
        return refuse_key(operation.writer)
    return Refusal("MALFORMED", "without a writer the batch number must be 0") if operation.batch else None


def _is_committed(context: DecisionContext, operation: commands.Stage | commands.Commit) -> bool:
    entry = context.state.writers.get(operation.writer)
    return entry is not None and entry.batch >= operation.batch


def _refuse_other_content(context: DecisionContext, operation: commands.Commit) -> Refusal | None:
    """Refuse a batch that was committed before with other content: a success would say that this content is stored."""
    entry = context.state.writers[operation.writer]
    content = entry.content_of(operation.batch)
    if not operation.content or content == operation.content:
        return None
    if content is not None:
        text = f"'{operation.writer}' has already committed batch {operation.batch}, with other content"
        return Refusal("BATCH_CHANGED", text)
    if not entry.commits or operation.batch == entry.batch:
        # The batch was committed without a content, by an older client: there is nothing to compare.
        return None
    text = f"'{operation.writer}' has already committed batch {entry.batch}, and no content is kept of batch"
    return Refusal("BATCH_CHANGED", f"{text} {operation.batch}")


def decide_commit(context: DecisionContext, operation: commands.Commit) -> Outcome:
    names = tuple(name for _, stages in operation.by_topic() for name, _ in stages)
    refusal = _refuse_writer(operation) or _refuse_form(operation, names)
    if refusal is not None:
        return refusal
    if _is_committed(context, operation):
        changed = _refuse_other_content(context, operation)
        if changed is not None:
            return changed
        # This does not depend on whether its topics still exist.
        topic = context.state.topics.get(operation.topic)
        present = tuple(name for name in names if name in context.state.stages)
        topic_id = topic.id if topic is not None else 0
        return events.Committed(context.claim, operation.writer, operation.batch, topic_id, -1, 0, 0, present, True)
    writers = context.state.writers
    if operation.writer and operation.writer not in writers and len(writers) >= context.limits.writers_max:
        return limit_reached(context.limits.writers_max, "writers")
    parts: list[events.CommittedPart] = []
    for name, stages in operation.by_topic():
        part = _publish(context, name, stages)
        if not isinstance(part, events.CommittedPart):
            return part
        parts.append(part)
    return _committed(context, operation, parts)


def _refuse_form(operation: commands.Commit, names: tuple[str, ...]) -> Refusal | None:
    if operation.batch < 0 or max(len(names), len(operation.parts)) > STAGES_PER_COMMIT_MAX:
        text = f"a commit needs a batch of at least 0, and has at most {STAGES_PER_COMMIT_MAX} stages"
        return Refusal("MALFORMED", text)
    if operation.parts and (operation.topic or operation.stages):
        return Refusal("MALFORMED", "a commit has one topic, or parts for several topics, but not both")
    if len({topic for topic, _ in operation.parts}) != len(operation.parts):
        return Refusal("MALFORMED", "a commit must name each topic at most once")
    if len(operation.content) > CONTENT_BYTES_MAX or (operation.content and not operation.writer):
        return Refusal("MALFORMED", f"a content has at most {CONTENT_BYTES_MAX} bytes, and needs a writer")
    if len(set(names)) != len(names):
        return Refusal("STAGE_MISMATCH", "a commit must name each stage at most once")
    return None


def _publish(context: DecisionContext, name: str, stages: commands.Stages) -> events.CommittedPart | Refusal | NotNow:
    """Decide the part of a commit on one topic."""
    topic = context.state.topics.get(name)
    if topic is None:
        return refuse_unknown_topic(name)
    refusal = _refuse_stages(context, topic, stages)
    if refusal is not None:
        return refusal
    staged_bytes = sum(batch.size for stage, _ in stages for batch in context.state.stages[stage].batches)
    full = refuse_over_quota(context, topic, staged_bytes)
    if full is not None:
        return full
    count = sum(count for _, count in stages)
    names = tuple(stage for stage, _ in stages)
    return events.CommittedPart(topic.id, topic.next_offset, count, len(topic.subscriptions), names)


def _committed(
    context: DecisionContext, operation: commands.Commit, parts: list[events.CommittedPart]
) -> events.Committed:
    if operation.topic:
        [part] = parts
        return events.Committed(
            context.claim,
            operation.writer,
            operation.batch,
            part.topic_id,
            part.first_offset,
            part.count,
            part.subscriptions,
            part.stages,
            False,
            content=operation.content,
        )
    count = sum(part.count for part in parts)
    return events.Committed(
        context.claim,
        operation.writer,
        operation.batch,
        0,
        -1,
        count,
        0,
        (),
        False,
        tuple(parts),
        operation.content,
    )


def _refuse_stages(context: DecisionContext, topic: Topic, stages: commands.Stages) -> Refusal | None:
    for name, count in stages:
        stage = context.state.stages.get(name)
        if stage is None:
            return Refusal("STAGE_UNKNOWN", f"there is no stage '{name}': it expired or was aborted")
        if stage.topic_id != topic.id:
            return Refusal("TOPIC_GONE", f"stage '{name}' belongs to a deleted topic of this name")
        if stage.count != count:
            return Refusal("STAGE_MISMATCH", f"stage '{name}' has {stage.count} messages, not {count}")
    return None


def decide_abort(context: DecisionContext, operation: commands.Abort) -> Outcome:
    if len(operation.stages) > STAGES_PER_COMMIT_MAX:
        return Refusal("MALFORMED", f"an abort has at most {STAGES_PER_COMMIT_MAX} stages")
    present = tuple(name for name in dict.fromkeys(operation.stages) if name in context.state.stages)
    return events.StagesDropped(context.claim, present) if present else events.Voided(context.claim)
