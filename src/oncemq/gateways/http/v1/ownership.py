"""Which topic and which epoch a request to a subscription means.

A caller may own a subscription itself: POST …/open gave it an epoch. For other callers the gateway owns it
(subscription_cache.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from oncemq.client.gateway_api import OwnedSubscription
from oncemq.gateways.http.framework.endpoint import Call
from oncemq.gateways.http.lookups import find_subscription, find_topic_id
from oncemq.gateways.http.state import state_of
from oncemq.gateways.subscription import OpenSubscription, SubscriptionKey
from oncemq.gateways.subscription_reader import SubscriptionReader
from oncemq.protocol import errors
from oncemq.protocol.patterns import is_pattern
from oncemq.protocol.replies import OpenReply

T = TypeVar("T")


def refuse_pattern(topic: str) -> None:
    """Raises Unsupported."""
    if is_pattern(topic):
        raise errors.Unsupported(f"'{topic}' is a pattern: subscriptions to patterns are not consumed over HTTP")


def refuse_other_topic(opened: OpenSubscription | OpenReply, topic_id: int) -> None:
    """Raises TopicGone if the caller means a deleted topic that had the same name."""
    if topic_id and opened.topic_id != topic_id:
        raise errors.TopicGone(f"the topic has another id, {opened.topic_id}: it was deleted and created again")


# Subscriptions that callers own.


async def with_caller_epoch(
    call: Call[Any, Any],
    key: SubscriptionKey,
    epoch: int,
    use: Callable[[OpenSubscription], Awaitable[T]],
    topic_id: int = 0,
) -> T:
    """Run `use` with the subscription as the caller opened it. Raises as `with_topic_id` does."""

    async def use_topic(found_id: int) -> T:
        return await use(OpenSubscription(call.link, OwnedSubscription(*key, found_id, epoch)))

    return await with_topic_id(call, key[0], use_topic, topic_id)


async def with_topic_id(call: Call[Any, Any], topic: str, use: Callable[[int], Awaitable[T]], topic_id: int = 0) -> T:
    """Run `use` with the topic's id: the caller's, or (0) the id of the topic that has the name. The topic may have
    been created again since the gateway looked up its id; then `use` runs once more. Raises TopicUnknown, Unsupported,
    and what `use` raises."""
    refuse_pattern(topic)
    if topic_id:
        return await use(topic_id)
    known_id = await topic_id_of(call, topic)
    try:
        return await use(known_id)
    except errors.TopicGone:
        new_id = await topic_id_of(call, topic, fresh=True)
        if new_id == known_id:
            raise
    return await use(new_id)


async def topic_id_of(call: Call[Any, Any], topic: str, *, fresh: bool = False) -> int:
    """Return the topic's id, from the cache unless it must be `fresh`. Raises TopicUnknown."""
    ids = state_of(call).subscriptions.topic_ids
    known = None if fresh else ids.get(topic)
    if known is None:
        ids.pop(topic, None)
        known = ids[topic] = await find_topic_id(call.link, topic)
    return known


# Subscriptions that the gateway owns.


def gateway_reader(call: Call[Any, Any], key: SubscriptionKey) -> SubscriptionReader:
    """Return a reader under the gateway's epoch. Raises Unsupported."""
    refuse_pattern(key[0])
    return SubscriptionReader(state_of(call).subscriptions, *key)


async def open_by_gateway(call: Call[Any, Any], key: SubscriptionKey) -> OpenSubscription:
    """Return the gateway's opening of the subscription. Raises Unsupported, and what the broker refuses."""
    refuse_pattern(key[0])
    return await state_of(call).subscriptions.open(key)


async def join_shared(call: Call[Any, Any], key: SubscriptionKey, stale_epoch: int = 0) -> OpenReply:
    """Return a shared subscription's epoch. It is looked up, not opened: opening would take over a subscription that is
    not shared. Raises KindMismatch, and what the broker refuses."""
    refuse_pattern(key[0])
    shared = state_of(call).shared
    known = shared.get(key)
    if known is not None and known.epoch != stale_epoch:
        return known
    info, topic_id = await asyncio.gather(find_subscription(call.link, *key), find_topic_id(call.link, key[0]))
    if info.sharing is None:
        raise errors.KindMismatch(f"'{key[1]}' on '{key[0]}' is not shared: get and ack its messages")
    reply = shared[key] = OpenReply(topic_id, info.epoch, info.acked, info.sharing)
    return reply
