"""Who is registered: the broker's registry, in the namespace "queue".

producer/<id>   {"topic": name}: the one topic that it publishes to; never changed
consumer/<id>   {}: it is known; what it is subscribed to, the broker knows
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import msgspec

from oncemq.gateways.http.framework.endpoint import Call
from oncemq.gateways.http.framework.identity import Protected, is_protected
from oncemq.gateways.http.framework.state import keep
from oncemq.gateways.http.queue.state import QueueState
from oncemq.gateways.link import Link, expect
from oncemq.protocol import errors
from oncemq.protocol.commands import RegistryList
from oncemq.protocol.names import refuse_name, refuse_topic_name
from oncemq.protocol.replies import RegistryEntry, RegistryListReply

NAMESPACE = "queue"


class ProducerEntry(msgspec.Struct, frozen=True):
    topic: str


_decode_producer = msgspec.json.Decoder(ProducerEntry).decode


def producer_key(producer_id: str) -> str:
    return f"producer/{producer_id}"


def consumer_key(consumer_id: str) -> str:
    return f"consumer/{consumer_id}"


def check_names(topic: str, **ids: str) -> None:
    """Of a topic, and whatever ids are given. Raises NameInvalid."""
    refusal = refuse_topic_name(topic)
    for name, value in ids.items():
        refusal = refusal or refuse_name(value, name)
    if refusal is not None:
        raise errors.from_code(refusal.code, refusal.text)


def new_id(call: Call[Any, Any], kind: str) -> str:
    """Of a producer or consumer. A repetition of the request gets the same one, and nobody has to remember it."""
    if not is_protected(call):
        return secrets.token_hex(8)
    asked: Protected = call.parameters
    seed = (kind, asked.principal, asked.idempotency_key, asked.session_name, asked.session_number)
    return hashlib.sha256(msgspec.json.encode(seed)).hexdigest()[:16]


async def entry_of(link: Link, key: str) -> RegistryEntry | None:
    # Among the keys that start like it, it is the first.
    reply = expect((await link.ask(RegistryList(NAMESPACE, key, limit=1)))[0], RegistryListReply)
    found = reply.entries[:1]
    return found[0] if found and found[0].key == key else None


async def topic_of(call: Call[Any, Any], producer_id: str) -> str | None:
    """The topic that a producer is registered for; None: there is no such producer."""
    queue: QueueState = call.state.queue
    topic = queue.producers.get(producer_id)
    if topic is None:
        entry = await entry_of(call.link, producer_key(producer_id))
        if entry is None:
            return None
        topic = _decode_producer(entry.value).topic
        keep(queue.producers, producer_id, topic)
    return topic


async def is_consumer(call: Call[Any, Any], consumer_id: str) -> bool:
    queue: QueueState = call.state.queue
    if consumer_id in queue.consumers:
        return True
    is_known = await entry_of(call.link, consumer_key(consumer_id)) is not None
    if is_known:
        keep(queue.consumers, consumer_id, True)
    return is_known


async def check_consumer(call: Call[Any, Any], consumer_id: str) -> None:
    """Raises ConsumerUnknown."""
    if not await is_consumer(call, consumer_id):
        raise errors.ConsumerUnknown(f"there is no consumer '{consumer_id}'")
