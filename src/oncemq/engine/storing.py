"""What becomes of messages: put now, put for later, and transactions. Decides; changes nothing."""

from __future__ import annotations

import msgspec

from oncemq.engine import commands as co
from oncemq.engine import events as ev
from oncemq.engine.replies import NotNow, Refusal
from oncemq.engine.situation import Outcome, Situation, no_room, over_quota, refuse_new_topic, unknown_topic
from oncemq.engine.subscribing import joined, owned
from oncemq.engine.tasks import decide_settle
from oncemq.engine.topic import Topic
from oncemq.limits import BATCH_COUNT_MAX, TRANSACTION_PARTS_MAX, TTL_MS_MAX

_HASH_BYTES = 8


def refuse_envelope(at: Situation, envelope: co.Envelope) -> Refusal | None:
    if not 1 <= envelope.count <= BATCH_COUNT_MAX:
        return Refusal("MALFORMED", f"a batch has 1 to {BATCH_COUNT_MAX} messages")
    if envelope.size > at.limits.batch_bytes_max:
        return Refusal("TOO_LARGE", f"{envelope.size} bytes in a batch; the limit is {at.limits.batch_bytes_max}")
    if not 0 <= envelope.ttl_ms <= TTL_MS_MAX or not 0 <= envelope.due_ms <= at.now_ms + TTL_MS_MAX:
        return Refusal("MALFORMED", "a time to live and a due time lie between now and a hundred years")
    if envelope.key_hashes and len(envelope.key_hashes) != _HASH_BYTES * envelope.count:
        return Refusal("MALFORMED", f"there are {_HASH_BYTES} bytes of key hash for each message, or none")
    return None


def decide_put(at: Situation, op: co.Put) -> Outcome:
    return _store(at, op, at.claim)


def _store(at: Situation, op: co.Put, claim: ev.AnyClaim | None) -> ev.Stored | ev.Delayed | Refusal | NotNow:
    envelope = op.envelope
    refusal = refuse_envelope(at, envelope)
    if refusal is not None:
        return refusal
    topic = at.state.topics.get(op.topic)
    if topic is None:
        return _store_in_new_topic(at, op, claim)
    full = over_quota(at, topic, envelope.size)
    if full is not None:
        return full
    subscriptions = len(topic.subscriptions)
    key_hashes = envelope.key_hashes if topic.key_orders else b""
    if envelope.due_ms > at.now_ms:
        return _delay(at, envelope, claim, topic.id, subscriptions, "", key_hashes)
    first_offset = at.next_offset(topic.id)
    if not topic.keeps:
        return ev.Stored(claim, topic.id, first_offset, envelope.count, 0, 0, subscriptions)
    return no_room(at, envelope.size) or ev.Stored(
        claim,
        topic.id,
        first_offset,
        envelope.count,
        envelope.size,
        at.place.position,
        subscriptions,
        "",
        _expires_ms(at, envelope),
        key_hashes,
    )


def _expires_ms(at: Situation, envelope: co.Envelope) -> int:
    return at.now_ms + envelope.ttl_ms if envelope.ttl_ms else 0


def _store_in_new_topic(
    at: Situation, op: co.Put, claim: ev.AnyClaim | None
) -> ev.Stored | ev.Delayed | Refusal | NotNow:
    envelope = op.envelope
    topic_id = at.topics_made.get(op.topic, 0)
    name = "" if topic_id else op.topic
    if not topic_id:
        refusal = refuse_new_topic(at, op.topic) if op.create else unknown_topic(op.topic)
        if refusal is not None:
            return refusal
        topic_id = at.state.next_topic_id + len(at.topics_made)
    subscriptions = sum(1 for pattern in at.state.patterns.values() if pattern.matches(op.topic))
    if envelope.due_ms > at.now_ms:
        return _delay(at, envelope, claim, topic_id, subscriptions, name)
    first_offset = at.next_offset(topic_id)
    if not subscriptions:
        return ev.Stored(claim, topic_id, first_offset, envelope.count, 0, 0, 0, name)
    return no_room(at, envelope.size) or ev.Stored(
        claim,
        topic_id,
        first_offset,
        envelope.count,
        envelope.size,
        at.place.position,
        subscriptions,
        name,
        _expires_ms(at, envelope),
    )


def _delay(
    at: Situation,
    envelope: co.Envelope,
    claim: ev.AnyClaim | None,
    topic_id: int,
    subscriptions: int,
    topic_name: str,
    key_hashes: bytes = b"",
) -> ev.Delayed | Refusal | NotNow:
    if at.state.delayed + at.uses >= at.limits.delayed_max:
        text = f"{at.limits.delayed_max} batches are waiting for their time, which is the limit"
        return Refusal("LIMIT_REACHED", text)
    return no_room(at, envelope.size) or ev.Delayed(
        claim,
        topic_id,
        at.next_epoch(),
        envelope.count,
        envelope.size,
        at.place.position,
        envelope.due_ms,
        envelope.ttl_ms,
        subscriptions,
        topic_name,
        key_hashes,
    )


# Transactions.


def decide_transact(at: Situation, op: co.Transact) -> Outcome:
    refusal = _refuse_transaction(at, op)
    if refusal is not None:
        return refusal
    parts: list[ev.Acked | ev.Settled | ev.Stored | ev.Delayed] = []
    for ack in op.acks:
        acked = _ack(at, ack)
        if isinstance(acked, Refusal):
            return acked
        if acked is not None:
            parts.append(acked)
    for settle in op.settles:
        settled = _settle(at, settle)
        if isinstance(settled, Refusal):
            return settled
        parts.append(settled)
    for put in op.puts:
        stored = _store(at, put, None)
        if isinstance(stored, Refusal | NotNow):
            return stored
        at.count_put(stored)
        parts.append(stored)
    return ev.Transacted(at.claim, tuple(parts))


def _refuse_transaction(at: Situation, op: co.Transact) -> Refusal | None:
    if max(len(op.acks), len(op.settles), len(op.puts)) > TRANSACTION_PARTS_MAX:
        return Refusal("MALFORMED", f"a transaction has at most {TRANSACTION_PARTS_MAX} parts of a kind")
    named = [(ack.topic_id, ack.subscriber) for ack in op.acks]
    named += [(settle.topic_id, settle.subscriber) for settle in op.settles]
    if len(set(named)) != len(named):
        return Refusal("MALFORMED", "a transaction names each subscription once")
    size = sum(put.envelope.size for put in op.puts)
    if size > at.limits.batch_bytes_max:
        return Refusal("TOO_LARGE", f"{size} bytes in a transaction; the limit is {at.limits.batch_bytes_max}")
    return None


def _of_subscription(refusal: Refusal) -> Refusal:
    """FENCED would mean the session."""
    return msgspec.structs.replace(refusal, code="SUBSCRIPTION_FENCED") if refusal.code == "FENCED" else refusal


def _ack(at: Situation, ack: co.AckUpto) -> ev.Acked | Refusal | None:
    found = owned(at.state, ack.topic_id, ack.subscriber, ack.epoch)
    if isinstance(found, Refusal):
        return _of_subscription(found)
    topic, subscription = found
    if ack.upto > topic.next_offset:
        return refuse_ack_beyond(topic, ack.upto)
    return ev.Acked(topic.id, ack.subscriber, ack.upto) if ack.upto > subscription.acked else None


def refuse_ack_beyond(topic: Topic, upto: int) -> Refusal:
    return Refusal("OFFSET_OUT_OF_RANGE", f"ack of {upto}; topic '{topic.name}' ends at {topic.next_offset}")


def _settle(at: Situation, settle: co.Settle) -> ev.Settled | Refusal:
    found = joined(at.state, settle.topic_id, settle.subscriber, settle.epoch)
    if isinstance(found, Refusal):
        return _of_subscription(found)
    return decide_settle(*found, at.now_ms, None, settle, strict=True)


def decide_settle_alone(at: Situation, op: co.Settle) -> Outcome:
    found = joined(at.state, op.topic_id, op.subscriber, op.epoch)
    if isinstance(found, Refusal):
        return _of_subscription(found)
    return decide_settle(*found, at.now_ms, at.claim, op)
