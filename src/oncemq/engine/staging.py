"""What becomes of stages: batches that nobody sees before their commit. Decides; changes nothing."""

from __future__ import annotations

from oncemq.engine import commands as co
from oncemq.engine import events as ev
from oncemq.engine.names import refuse_key
from oncemq.engine.replies import Refusal
from oncemq.engine.situation import Outcome, Situation, no_room, over_quota, unknown_topic
from oncemq.engine.storing import refuse_envelope
from oncemq.engine.topic import Topic
from oncemq.limits import STAGES_PER_COMMIT_MAX


def decide_stage(at: Situation, op: co.Stage) -> Outcome:
    refusal = refuse_envelope(at, op.envelope) or refuse_key(op.stage) or refuse_key(op.writer)
    if refusal is not None:
        return refusal
    if op.envelope.due_ms:
        return Refusal("UNSUPPORTED", "what is staged is due when it is committed")
    topic = at.state.topics.get(op.topic)
    if topic is None:
        return unknown_topic(op.topic)
    if at.state.writers.get(op.writer, -1) >= op.batch:
        return Refusal("STAGE_COMMITTED", f"'{op.writer}' has committed batch {op.batch} before")
    stage = at.state.stages.get(op.stage)
    if stage is None and len(at.state.stages) >= at.limits.stages_max:
        return Refusal("LIMIT_REACHED", f"there are {at.limits.stages_max} stages, which is the limit")
    if stage is not None and stage.topic_id != topic.id:
        return Refusal("STAGE_MISMATCH", f"stage '{op.stage}' belongs to another topic")
    return no_room(at, op.envelope.size) or ev.Staged(
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


def decide_commit(at: Situation, op: co.Commit) -> Outcome:
    refusal = refuse_key(op.writer)
    if refusal is not None:
        return refusal
    if op.batch < 0 or len(op.stages) > STAGES_PER_COMMIT_MAX:
        return Refusal("MALFORMED", f"a commit has a batch from 0 on, and at most {STAGES_PER_COMMIT_MAX} stages")
    names = tuple(name for name, _ in op.stages)
    if len(set(names)) != len(names):
        return Refusal("STAGE_MISMATCH", "a stage is named twice")
    topic = at.state.topics.get(op.topic)
    if topic is None:
        return unknown_topic(op.topic)
    if at.state.writers.get(op.writer, -1) >= op.batch:
        present = tuple(name for name in names if name in at.state.stages)
        return ev.Committed(at.claim, op.writer, op.batch, topic.id, -1, 0, 0, present, True)
    if op.writer not in at.state.writers and len(at.state.writers) >= at.limits.writers_max:
        return Refusal("LIMIT_REACHED", f"there are {at.limits.writers_max} writers, which is the limit")
    refusal = _refuse_stages(at, topic, op)
    if refusal is not None:
        return refusal
    staged_bytes = sum(batch.size for name in names for batch in at.state.stages[name].batches)
    full = over_quota(at, topic, staged_bytes)
    if full is not None:
        return full
    count = sum(count for _, count in op.stages)
    subscriptions = len(topic.subscriptions)
    return ev.Committed(
        at.claim, op.writer, op.batch, topic.id, topic.next_offset, count, subscriptions, names, False
    )


def _refuse_stages(at: Situation, topic: Topic, op: co.Commit) -> Refusal | None:
    for name, count in op.stages:
        stage = at.state.stages.get(name)
        if stage is None:
            return Refusal("STAGE_UNKNOWN", f"there is no stage '{name}': it expired or was aborted")
        if stage.topic_id != topic.id:
            return Refusal("TOPIC_GONE", f"stage '{name}' was made for another topic")
        if stage.count != count:
            return Refusal("STAGE_MISMATCH", f"stage '{name}' holds {stage.count} messages, not {count}")
    return None


def decide_abort(at: Situation, op: co.Abort) -> Outcome:
    if len(op.stages) > STAGES_PER_COMMIT_MAX:
        return Refusal("MALFORMED", f"an abort has at most {STAGES_PER_COMMIT_MAX} stages")
    present = tuple(name for name in dict.fromkeys(op.stages) if name in at.state.stages)
    return ev.StagesDropped(at.claim, present) if present else ev.Voided(at.claim)
