"""Decides transactions: acks, settles and puts, all or none. Also settles outside of a transaction."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oncemq.engine import events
from oncemq.engine.decide.decision_context import DecisionContext, Outcome
from oncemq.engine.decide.puts import decide_put_part
from oncemq.engine.decide.reclaim import frees_bytes
from oncemq.engine.decide.subscriptions.leases import decide_settle
from oncemq.engine.decide.subscriptions.ownership import find_exclusive, find_shared
from oncemq.engine.decide.subscriptions.positions import refuse_ack_beyond
from oncemq.journal.contract import record_bytes
from oncemq.protocol import commands
from oncemq.protocol.limits import TRANSACTION_PARTS_MAX
from oncemq.protocol.replies import NotNow, Refusal


def decide_transact(context: DecisionContext, operation: commands.Transact) -> Outcome:
    refusal = _refuse_transaction(context, operation)
    if refusal is not None:
        return refusal
    parts: list[events.Acked | events.Settled] = []
    for ack in operation.acks:
        acked = _ack(context, ack)
        if isinstance(acked, Refusal):
            return acked
        if acked is not None:
            parts.append(acked)
    for settle in operation.settles:
        settled = _settle(context, settle, None)
        if isinstance(settled, Refusal):
            return settled
        parts.append(settled)
    puts: list[events.Stored | events.Delayed] = []
    if operation.puts and parts:
        _use_reserve(context, operation, parts)
    for put in operation.puts:
        stored = decide_put_part(context, put, None)
        if isinstance(stored, Refusal | NotNow):
            return stored
        context.add_put(stored)
        puts.append(stored)
    return events.Transacted(context.claim, (*parts, *puts))


def _use_reserve(
    context: DecisionContext, operation: commands.Transact, parts: Iterable[events.Acked | events.Settled]
) -> None:
    """Allow a transaction to use the reserve of a full disk if it frees as much as it writes.

    Without this, a transaction that acks and puts could never empty a full disk.
    """
    need_bytes = sum(record_bytes(put.envelope.size) for put in operation.puts)
    slot = context.slot
    if slot.writable_bytes < need_bytes <= slot.reserve_bytes and frees_bytes(context.state, parts, need_bytes):
        context.slot = msgspec.structs.replace(slot, writable_bytes=slot.reserve_bytes)


def _refuse_transaction(context: DecisionContext, operation: commands.Transact) -> Refusal | None:
    if max(len(operation.acks), len(operation.settles), len(operation.puts)) > TRANSACTION_PARTS_MAX:
        return Refusal("MALFORMED", f"a transaction has at most {TRANSACTION_PARTS_MAX} parts of each kind")
    named = [(ack.topic_id, ack.subscriber) for ack in operation.acks]
    named += [(settle.topic_id, settle.subscriber) for settle in operation.settles]
    if len(set(named)) != len(named):
        return Refusal("MALFORMED", "a transaction must name each subscription at most once")
    size = sum(put.envelope.size for put in operation.puts)
    if size > context.limits.batch_bytes_max:
        return Refusal("TOO_LARGE", f"the transaction has {size} bytes; the limit is {context.limits.batch_bytes_max}")
    return None


def _subscription_fenced(refusal: Refusal) -> Refusal:
    """Change FENCED to SUBSCRIPTION_FENCED: for an operation, FENCED would mean its session."""
    return msgspec.structs.replace(refusal, code="SUBSCRIPTION_FENCED") if refusal.code == "FENCED" else refusal


def _ack(context: DecisionContext, ack: commands.AckUpto) -> events.Acked | Refusal | None:
    found = find_exclusive(context.state, ack.topic_id, ack.subscriber, ack.epoch)
    if isinstance(found, Refusal):
        return _subscription_fenced(found)
    topic, subscription = found
    if ack.since > subscription.acked:
        text = f"an earlier transaction would have acked up to offset {ack.since}, and was not committed"
        return Refusal("EARLIER_FAILED", f"{text}: the subscription is at {subscription.acked}")
    if ack.upto > topic.next_offset:
        return refuse_ack_beyond(topic, ack.upto)
    return events.Acked(topic.id, ack.subscriber, ack.upto) if ack.upto > subscription.acked else None


def _settle(
    context: DecisionContext, settle: commands.Settle, claim: events.AnyClaim | None
) -> events.Settled | Refusal:
    """Decide a settle. In a transaction it has no claim, and a lost lease refuses the transaction."""
    found = find_shared(context.state, settle.topic_id, settle.subscriber, settle.epoch)
    if isinstance(found, Refusal):
        return _subscription_fenced(found)
    return decide_settle(*found, context.now_ms, claim, settle, strict=claim is None)


def decide_single_settle(context: DecisionContext, operation: commands.Settle) -> Outcome:
    return _settle(context, operation, context.claim)
