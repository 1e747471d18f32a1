"""What becomes of stages: batches that nobody sees before their commit. Decides; changes nothing."""

from __future__ import annotations

from oncemq.engine import events
from oncemq.engine.decide.decision_context import Outcome, Situation, no_room, over_quota, unknown_topic
from oncemq.engine.decide.puts import refuse_envelope
from oncemq.engine.state.topic import Topic
from oncemq.protocol import commands
from oncemq.protocol.limits import STAGES_PER_COMMIT_MAX
from oncemq.protocol.names import refuse_key
from oncemq.protocol.replies import NotNow, Refusal


def decide_stage(at: Situation, op: commands.Stage) -> Outcome:
    refusal = refuse_envelope(at, op.envelope) or refuse_key(op.stage) or _refuse_writer(op)
    if refusal is not None:
        return refusal
    if op.envelope.due_ms:
        return Refusal("UNSUPPORTED", "what is staged is due when it is committed")
    # Before the topic is looked for: it may have been deleted since.
    if _is_committed(at, op):
        return Refusal("STAGE_COMMITTED", f"'{op.writer}' has committed batch {op.batch} before")
    topic = at.state.topics.get(op.topic)
    if topic is None:
        return unknown_topic(op.topic)
    stage = at.state.stages.get(op.stage)
    if stage is None and len(at.state.stages) >= at.limits.stages_max:
        return Refusal("LIMIT_REACHED", f"there are {at.limits.stages_max} stages, which is the limit")
    if stage is not None and stage.topic_id != topic.id:
        return Refusal("STAGE_MISMATCH", f"stage '{op.stage}' belongs to another topic")
    return no_room(at, op.envelope.size) or events.Staged(
        at.claim,
        op.stage,
        topic.id,
        op.envelope.count,
        op.envelope.size,
        at.place.position,
        at.now_ms + at.limits.stage_ms,
        op.envelope.count + (stage.count if stage is not None else 0),
        op.envelope.ttl_ms,
        # Whether anybody keeps order per key shows when it is committed.
        op.envelope.key_hashes,
    )


def _refuse_writer(op: commands.Stage | commands.Commit) -> Refusal | None:
    if op.writer:
        return refuse_key(op.writer)
    return Refusal("MALFORMED", "without a writer there are no batches: the number is 0") if op.batch else None


def _is_committed(at: Situation, op: commands.Stage | commands.Commit) -> bool:
    return at.state.writers.get(op.writer, -1) >= op.batch


def decide_commit(at: Situation, op: commands.Commit) -> Outcome:
    names = tuple(name for _, stages in op.by_topic() for name, _ in stages)
    refusal = _refuse_writer(op) or _refuse_form(op, names)
    if refusal is not None:
        return refusal
    if _is_committed(at, op):
        # Whatever has become of its topics.
        topic = at.state.topics.get(op.topic)
        present = tuple(name for name in names if name in at.state.stages)
        topic_id = topic.id if topic is not None else 0
        return events.Committed(at.claim, op.writer, op.batch, topic_id, -1, 0, 0, present, True)
    if op.writer and op.writer not in at.state.writers and len(at.state.writers) >= at.limits.writers_max:
        return Refusal("LIMIT_REACHED", f"there are {at.limits.writers_max} writers, which is the limit")
    parts: list[events.CommittedPart] = []
    for name, stages in op.by_topic():
        part = _publish(at, name, stages)
        if not isinstance(part, events.CommittedPart):
            return part
        parts.append(part)
    return _committed(at, op, parts)


def _refuse_form(op: commands.Commit, names: tuple[str, ...]) -> Refusal | None:
    if op.batch < 0 or max(len(names), len(op.parts)) > STAGES_PER_COMMIT_MAX:
        return Refusal("MALFORMED", f"a commit has a batch from 0 on, and at most {STAGES_PER_COMMIT_MAX} stages")
    if op.parts and (op.topic or op.stages):
        return Refusal("MALFORMED", "a commit is for one topic, or has parts for several")
    if len({topic for topic, _ in op.parts}) != len(op.parts):
        return Refusal("MALFORMED", "a commit names each topic once")
    if len(set(names)) != len(names):
        return Refusal("STAGE_MISMATCH", "a stage is named twice")
    return None


def _publish(at: Situation, name: str, stages: commands.Stages) -> events.CommittedPart | Refusal | NotNow:
    """What becomes of one topic's stages, if the others can be published too."""
    topic = at.state.topics.get(name)
    if topic is None:
        return unknown_topic(name)
    refusal = _refuse_stages(at, topic, stages)
    if refusal is not None:
        return refusal
    staged_bytes = sum(batch.size for stage, _ in stages for batch in at.state.stages[stage].batches)
    full = over_quota(at, topic, staged_bytes)
    if full is not None:
        return full
    count = sum(count for _, count in stages)
    names = tuple(stage for stage, _ in stages)
    return events.CommittedPart(topic.id, topic.next_offset, count, len(topic.subscriptions), names)


def _committed(at: Situation, op: commands.Commit, parts: list[events.CommittedPart]) -> events.Committed:
    if op.topic:
        [part] = parts
        return events.Committed(
            at.claim,
            op.writer,
            op.batch,
            part.topic_id,
            part.first_offset,
            part.count,
            part.subscriptions,
            part.stages,
            False,
        )
    count = sum(part.count for part in parts)
    return events.Committed(at.claim, op.writer, op.batch, 0, -1, count, 0, (), False, tuple(parts))


def _refuse_stages(at: Situation, topic: Topic, stages: commands.Stages) -> Refusal | None:
    for name, count in stages:
        stage = at.state.stages.get(name)
        if stage is None:
            return Refusal("STAGE_UNKNOWN", f"there is no stage '{name}': it expired or was aborted")
        if stage.topic_id != topic.id:
            return Refusal("TOPIC_GONE", f"stage '{name}' was made for another topic")
        if stage.count != count:
            return Refusal("STAGE_MISMATCH", f"stage '{name}' holds {stage.count} messages, not {count}")
    return None


def decide_abort(at: Situation, op: commands.Abort) -> Outcome:
    if len(op.stages) > STAGES_PER_COMMIT_MAX:
        return Refusal("MALFORMED", f"an abort has at most {STAGES_PER_COMMIT_MAX} stages")
    present = tuple(name for name in dict.fromkeys(op.stages) if name in at.state.stages)
    return events.StagesDropped(at.claim, present) if present else events.Voided(at.claim)
