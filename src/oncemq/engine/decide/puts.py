"""Decides puts: messages that are stored now, and delayed ones."""

from __future__ import annotations

import msgspec

from oncemq.engine import events
from oncemq.engine.decide.decision_context import (
    DecisionContext,
    Outcome,
    count_matching_patterns,
    limit_reached,
    refuse_full_disk,
    refuse_new_topic,
    refuse_over_quota,
    refuse_unknown_topic,
)
from oncemq.engine.decide.schemas import refuse_unchecked
from oncemq.engine.state.topic import Topic
from oncemq.protocol import commands
from oncemq.protocol.limits import BATCH_COUNT_MAX, TTL_MS_MAX
from oncemq.protocol.replies import NotNow, Refusal

_HASH_BYTES = 8


def refuse_envelope(context: DecisionContext, envelope: commands.Envelope) -> Refusal | None:
    if not 1 <= envelope.count <= BATCH_COUNT_MAX:
        return Refusal("MALFORMED", f"a batch must have 1 to {BATCH_COUNT_MAX} messages")
    if envelope.size > context.limits.batch_bytes_max:
        text = f"the batch has {envelope.size} bytes; the limit is {context.limits.batch_bytes_max}"
        return Refusal("TOO_LARGE", text)
    if not 0 <= envelope.ttl_ms <= TTL_MS_MAX or not 0 <= envelope.due_ms <= context.now_ms + TTL_MS_MAX:
        return Refusal("MALFORMED", "a time to live and a due time must be within a hundred years from now")
    if envelope.key_hashes and len(envelope.key_hashes) != _HASH_BYTES * envelope.count:
        return Refusal("MALFORMED", f"key hashes must have {_HASH_BYTES} bytes per message, or be empty")
    return None


class _Target(msgspec.Struct, frozen=True, gc=False):
    """The topic of a put: an existing one, or one that the put creates."""

    topic_id: int
    subscriptions: int
    stores_messages: bool
    #: A subscription of the topic has key order.
    keyed: bool = False
    #: The name of a topic that the put creates; otherwise "".
    name: str = ""


def decide_put(context: DecisionContext, operation: commands.Put) -> Outcome:
    return decide_put_part(context, operation, context.claim)


def decide_put_part(
    context: DecisionContext, operation: commands.Put, claim: events.AnyClaim | None
) -> events.Stored | events.Delayed | Refusal | NotNow:
    """Decide a put. In a transaction, only the transaction has a claim."""
    envelope = operation.envelope
    refusal = refuse_envelope(context, envelope)
    if refusal is not None:
        return refusal
    topic = context.state.topics.get(operation.topic)
    if envelope.schema_version or (topic is not None and topic.schema is not None):
        refusal = refuse_unchecked(topic, operation.topic, envelope)
        if refusal is not None and (topic is not None or operation.create or operation.topic in context.new_topics):
            return refusal
    target = _existing_target(context, topic, envelope) if topic is not None else _new_target(context, operation)
    if not isinstance(target, _Target):
        return target
    if envelope.due_ms > context.now_ms:
        return _delay(context, envelope, claim, target)
    if not target.stores_messages:
        return _stored(context, envelope, claim, target, 0, 0)
    return refuse_full_disk(context, envelope.size) or _stored(
        context, envelope, claim, target, envelope.size, context.slot.position
    )


def _existing_target(context: DecisionContext, topic: Topic, envelope: commands.Envelope) -> _Target | Refusal | NotNow:
    full = refuse_over_quota(context, topic, envelope.size) if topic.quota_bytes else None
    return full or _Target(topic.id, len(topic.subscriptions), topic.stores_messages, topic.key_orders > 0)


def _new_target(context: DecisionContext, operation: commands.Put) -> _Target | Refusal:
    topic_id = context.new_topics.get(operation.topic)
    if topic_id is None:
        if not operation.create:
            return refuse_unknown_topic(operation.topic)
        refusal = refuse_new_topic(context, operation.topic)
        if refusal is not None:
            return refusal
    subscriptions = count_matching_patterns(context.state, operation.topic)
    if topic_id is not None:
        return _Target(topic_id, subscriptions, subscriptions > 0)
    topic_id = context.state.next_topic_id + len(context.new_topics)
    return _Target(topic_id, subscriptions, subscriptions > 0, name=operation.topic)


def _stored(
    context: DecisionContext,
    envelope: commands.Envelope,
    claim: events.AnyClaim | None,
    target: _Target,
    size: int,
    position: int,
) -> events.Stored:
    return events.Stored(
        claim,
        target.topic_id,
        context.next_offset(target.topic_id),
        envelope.count,
        size,
        position,
        target.subscriptions,
        target.name,
        context.now_ms + envelope.ttl_ms if envelope.ttl_ms and position else 0,
        envelope.key_hashes if target.keyed and position else b"",
    )


def _delay(
    context: DecisionContext, envelope: commands.Envelope, claim: events.AnyClaim | None, target: _Target
) -> events.Delayed | Refusal | NotNow:
    if context.state.delayed + context.delays >= context.limits.delayed_max:
        return limit_reached(context.limits.delayed_max, "delayed batches")
    return refuse_full_disk(context, envelope.size) or events.Delayed(
        claim,
        target.topic_id,
        context.next_epoch(),
        envelope.count,
        envelope.size,
        context.slot.position,
        envelope.due_ms,
        envelope.ttl_ms,
        target.subscriptions,
        target.name,
        # Whether a subscription has key order is checked when the batch is due.
        envelope.key_hashes,
    )
