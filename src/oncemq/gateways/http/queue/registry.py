"""Registered producers and consumers: entries of the broker's registry, in the namespace "queue". They belong to the
user who has registered them.

producer/<id>   {"topic": name}: the one topic that it publishes to; it never changes
consumer/<id>   {}: it is registered; the broker knows its subscriptions
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from typing import Any

import msgspec

from oncemq.gateways.http.framework.endpoint import Call
from oncemq.gateways.http.framework.identity import Protected, is_protected
from oncemq.gateways.http.queue.state import QueueState
from oncemq.gateways.registry import find_entry
from oncemq.protocol import errors
from oncemq.protocol.commands import RegistrySet
from oncemq.protocol.names import refuse_name, refuse_topic_name

NAMESPACE = "queue"
_NO_VERSION = 2**62


class ProducerEntry(msgspec.Struct, frozen=True):
    topic: str


_decode_producer = msgspec.json.Decoder(ProducerEntry).decode


def producer_key(producer_id: str) -> str:
    return f"producer/{producer_id}"


def consumer_key(consumer_id: str) -> str:
    return f"consumer/{consumer_id}"


def check_names(topic: str, **ids: str) -> None:
    """Check the name of a topic, and ids. Raises NameInvalid."""
    refusal = refuse_topic_name(topic)
    for name, value in ids.items():
        refusal = refusal or refuse_name(value, name)
    if refusal is not None:
        raise errors.from_code(refusal.code, refusal.text)


def new_id(call: Call[Any, Any], kind: str) -> str:
    """Return an id for a producer or consumer. It is computed from the request's key or number, if there is one: so a
    repetition gets the same id, and it need not be stored."""
    if not is_protected(call):
        return secrets.token_hex(8)
    asked: Protected = call.parameters
    seed = (kind, call.link.principal(asked.principal), asked.idempotency_key, asked.session_name, asked.session_number)
    return hashlib.sha256(msgspec.json.encode(seed)).hexdigest()[:16]


async def topic_of(call: Call[Any, Any], producer_id: str) -> str | None:
    """Return the topic that a producer is registered for; None if there is no such producer. Raises Forbidden if it
    belongs to another user."""
    queue: QueueState = call.state.queue
    topic = queue.producers.get(producer_id)
    if topic is None:
        entry = await find_entry(call.link, NAMESPACE, producer_key(producer_id))
        if entry is None:
            await _refuse_foreign(call, producer_key(producer_id))
            return None
        topic = queue.producers[producer_id] = _decode_producer(entry.value).topic
    return topic


async def is_consumer(call: Call[Any, Any], consumer_id: str) -> bool:
    """Return whether a consumer is registered. Raises Forbidden if it belongs to another user."""
    queue: QueueState = call.state.queue
    if consumer_id in queue.consumers:
        return True
    is_known = await find_entry(call.link, NAMESPACE, consumer_key(consumer_id)) is not None
    if is_known:
        queue.consumers[consumer_id] = True
    else:
        await _refuse_foreign(call, consumer_key(consumer_id))
    return is_known


async def _refuse_foreign(call: Call[Any, Any], key: str) -> None:
    """Raises Forbidden if an entry that the caller does not see belongs to another user: it may not be changed. The
    change itself would do nothing, since no entry has this version."""
    if call.link.caller:
        with suppress(errors.RegistryConflict):
            await call.link.operate(RegistrySet(NAMESPACE, key, None, _NO_VERSION))


async def check_consumer(call: Call[Any, Any], consumer_id: str) -> None:
    """Raises ConsumerUnknown, Forbidden."""
    if not await is_consumer(call, consumer_id):
        raise errors.ConsumerUnknown(f"there is no consumer '{consumer_id}'")
