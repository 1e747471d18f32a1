"""What becomes of messages: put now, put for later, and transactions. Decides; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oncemq.engine import events
from oncemq.engine.decide.decision_context import (
    Outcome,
    Situation,
    matching,
    no_room,
    over_quota,
    refuse_new_topic,
    unknown_topic,
)
from oncemq.engine.decide.reclaim import lets_go
from oncemq.engine.decide.settles import decide_settle
from oncemq.engine.decide.subscriptions import joined, owned
from oncemq.engine.state.topic import Topic
from oncemq.journal.contract import record_bytes
from oncemq.protocol import commands
from oncemq.protocol.limits import BATCH_COUNT_MAX, TRANSACTION_PARTS_MAX, TTL_MS_MAX
from oncemq.protocol.replies import NotNow, Refusal

_HASH_BYTES = 8


def refuse_envelope(at: Situation, envelope: commands.Envelope) -> Refusal | None:
    if not 1 <= envelope.count <= BATCH_COUNT_MAX:
        return Refusal("MALFORMED", f"a batch has 1 to {BATCH_COUNT_MAX} messages")
    if envelope.size > at.limits.batch_bytes_max:
        return Refusal("TOO_LARGE", f"{envelope.size} bytes in a batch; the limit is {at.limits.batch_bytes_max}")
    if not 0 <= envelope.ttl_ms <= TTL_MS_MAX or not 0 <= envelope.due_ms <= at.now_ms + TTL_MS_MAX:
        return Refusal("MALFORMED", "a time to live and a due time lie between now and a hundred years")
    if envelope.key_hashes and len(envelope.key_hashes) != _HASH_BYTES * envelope.count:
        return Refusal("MALFORMED", f"there are {_HASH_BYTES} bytes of key hash for each message, or none")
    return None


class _Target(msgspec.Struct, frozen=True, gc=False):
    """The topic of a put: one that is there, or one that it makes."""

    topic_id: int
    subscriptions: int
    keeps: bool
    #: A subscription keeps order per key.
    keyed: bool = False
    #: Of a topic that the put makes.
    name: str = ""


def decide_put(at: Situation, op: commands.Put) -> Outcome:
    return _store(at, op, at.claim)


def _store(
    at: Situation, op: commands.Put, claim: events.AnyClaim | None
) -> events.Stored | events.Delayed | Refusal | NotNow:
    envelope = op.envelope
    refusal = refuse_envelope(at, envelope)
    if refusal is not None:
        return refusal
    topic = at.state.topics.get(op.topic)
    target = _known(at, topic, envelope) if topic is not None else _made_by_put(at, op)
    if not isinstance(target, _Target):
        return target
    if envelope.due_ms > at.now_ms:
        return _delay(at, envelope, claim, target)
    if not target.keeps:
        return _stored(at, envelope, claim, target, 0, 0)
    return no_room(at, envelope.size) or _stored(at, envelope, claim, target, envelope.size, at.place.position)


def _known(at: Situation, topic: Topic, envelope: commands.Envelope) -> _Target | Refusal | NotNow:
    full = over_quota(at, topic, envelope.size)
    return full or _Target(topic.id, len(topic.subscriptions), topic.keeps, topic.key_orders > 0)


def _made_by_put(at: Situation, op: commands.Put) -> _Target | Refusal:
    topic_id = at.topics_made.get(op.topic)
    if topic_id is None:
        refusal = refuse_new_topic(at, op.topic) if op.create else unknown_topic(op.topic)
        if refusal is not None:
            return refusal
    subscriptions = matching(at.state, op.topic)
    if topic_id is not None:
        return _Target(topic_id, subscriptions, subscriptions > 0)
    topic_id = at.state.next_topic_id + len(at.topics_made)
    return _Target(topic_id, subscriptions, subscriptions > 0, name=op.topic)


def _stored(
    at: Situation, envelope: commands.Envelope, claim: events.AnyClaim | None, target: _Target, size: int, position: int
) -> events.Stored:
    return events.Stored(
        claim,
        target.topic_id,
        at.next_offset(target.topic_id),
        envelope.count,
        size,
        position,
        target.subscriptions,
        target.name,
        at.now_ms + envelope.ttl_ms if envelope.ttl_ms and position else 0,
        envelope.key_hashes if target.keyed and position else b"",
    )


def _delay(
    at: Situation, envelope: commands.Envelope, claim: events.AnyClaim | None, target: _Target
) -> events.Delayed | Refusal | NotNow:
    if at.state.delayed + at.delays >= at.limits.delayed_max:
        text = f"{at.limits.delayed_max} batches are waiting for their time, which is the limit"
        return Refusal("LIMIT_REACHED", text)
    return no_room(at, envelope.size) or events.Delayed(
        claim,
        target.topic_id,
        at.next_epoch(),
        envelope.count,
        envelope.size,
        at.place.position,
        envelope.due_ms,
        envelope.ttl_ms,
        target.subscriptions,
        target.name,
        # Whether anybody keeps order per key shows when it is due.
        envelope.key_hashes,
    )


# Transactions.


def decide_transact(at: Situation, op: commands.Transact) -> Outcome:
    refusal = _refuse_transaction(at, op)
    if refusal is not None:
        return refusal
    parts: list[events.Acked | events.Settled] = []
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
    puts: list[events.Stored | events.Delayed] = []
    if op.puts and parts:
        _open_reserve(at, op, parts)
    for put in op.puts:
        stored = _store(at, put, None)
        if isinstance(stored, Refusal | NotNow):
            return stored
        at.count_put(stored)
        puts.append(stored)
    return events.Transacted(at.claim, (*parts, *puts))


def _open_reserve(at: Situation, op: commands.Transact, parts: Iterable[events.Acked | events.Settled]) -> None:
    """On a full disk, what lets go of as much as it puts has to go on, or the disk would stay full."""
    need = sum(record_bytes(put.envelope.size) for put in op.puts)
    place = at.place
    if place.writable_bytes < need <= place.reserve_bytes and lets_go(at.state, parts, need):
        at.place = msgspec.structs.replace(place, writable_bytes=place.reserve_bytes)


def _refuse_transaction(at: Situation, op: commands.Transact) -> Refusal | None:
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


def _ack(at: Situation, ack: commands.AckUpto) -> events.Acked | Refusal | None:
    found = owned(at.state, ack.topic_id, ack.subscriber, ack.epoch)
    if isinstance(found, Refusal):
        return _of_subscription(found)
    topic, subscription = found
    if ack.upto > topic.next_offset:
        return refuse_ack_beyond(topic, ack.upto)
    return events.Acked(topic.id, ack.subscriber, ack.upto) if ack.upto > subscription.acked else None


def refuse_ack_beyond(topic: Topic, upto: int) -> Refusal:
    return Refusal("OFFSET_OUT_OF_RANGE", f"ack of {upto}; topic '{topic.name}' ends at {topic.next_offset}")


def _settle(at: Situation, settle: commands.Settle) -> events.Settled | Refusal:
    found = joined(at.state, settle.topic_id, settle.subscriber, settle.epoch)
    if isinstance(found, Refusal):
        return _of_subscription(found)
    return decide_settle(*found, at.now_ms, None, settle, strict=True)


def decide_settle_alone(at: Situation, op: commands.Settle) -> Outcome:
    found = joined(at.state, op.topic_id, op.subscriber, op.epoch)
    if isinstance(found, Refusal):
        return _of_subscription(found)
    return decide_settle(*found, at.now_ms, at.claim, op)
