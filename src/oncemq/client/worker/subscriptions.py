"""The part of a client that creates and joins shared subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from oncemq.client.consumer.reader import Start, start_of
from oncemq.client.context import ClientContext
from oncemq.client.runtime.flow import Flow
from oncemq.client.worker.options import WorkerOptions
from oncemq.protocol import commands, errors
from oncemq.protocol.commands import Sharing, Subscribe
from oncemq.protocol.replies import SubscribeReply, SubscriptionsReply

if TYPE_CHECKING:
    from oncemq.client.worker import aio, sync

#: The class of shared subscriptions of the blocking or of the asyncio client.
W = TypeVar("W", bound="sync.SharedSubscription | aio.SharedSubscription")


class SharedSubscriptions(Generic[W]):
    """Shared subscriptions of one client."""

    def __init__(self, context: ClientContext, subscription_type: type[W]) -> None:
        self._context = context
        self._subscription_type = subscription_type

    def subscribe(self, topic: str, subscriber: str, start: Start, sharing: Sharing, options: WorkerOptions) -> Flow[W]:
        """Create a shared subscription, unless it exists, and join it."""
        reply = yield from self._context.call(Subscribe(topic, subscriber, start_of(start), sharing), SubscribeReply)
        return (yield from self._join(topic, subscriber, options, reply.created))

    def subscription(self, topic: str, subscriber: str, options: WorkerOptions) -> Flow[W]:
        """Join an existing shared subscription. Raises KindMismatch if it is not shared."""
        yield from self._check_shared(topic, subscriber)
        return (yield from self._join(topic, subscriber, options, False))

    def _join(self, topic: str, subscriber: str, options: WorkerOptions, created: bool) -> Flow[W]:
        joined = self._subscription_type(self._context, topic, subscriber, options)
        joined.created = created
        yield from joined.consumer.join()
        return joined

    def _check_shared(self, topic: str, subscriber: str) -> Flow[None]:
        """Opening a subscription that is not shared would take it from its owner."""
        after = subscriber[:-1]
        while True:
            page = yield from self._context.ask(commands.Subscriptions(topic, after), SubscriptionsReply)
            for info in page.subscriptions:
                if info.subscriber == subscriber and not info.pattern and info.sharing is None:
                    raise errors.KindMismatch(f"'{subscriber}' on '{topic}' is not shared: use client.subscription")
            after = page.after
            if not after or after >= subscriber:
                return


def sharing_of(topic: str, lease_s: float, tries_max: int, dead_topic: str | None, key_order: bool) -> Sharing:
    """Return how a subscription is shared. Raises ValueError."""
    if dead_topic is not None and not tries_max:
        raise ValueError("a dead-letter topic needs tries_max")
    if tries_max and dead_topic is None:
        dead_topic = f"{topic}.dead"
    return Sharing(round(lease_s * 1000), tries_max, dead_topic or "", bool(key_order))
