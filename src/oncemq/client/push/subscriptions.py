"""The part of a client that creates subscriptions to a push gateway's live feed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from oncemq.client.consumer.options import ConsumerOptions
from oncemq.client.consumer.reader import Start, start_of
from oncemq.client.consumer.subscriptions import check_no_pattern
from oncemq.client.context import ClientContext
from oncemq.client.runtime.flow import Flow
from oncemq.protocol.commands import Subscribe
from oncemq.protocol.replies import SubscribeReply

if TYPE_CHECKING:
    from oncemq.client.push import aio, sync

#: The class of push subscriptions of the blocking or of the asyncio client.
F = TypeVar("F", bound="sync.PushSubscription | aio.PushSubscription")


class PushSubscriptions(Generic[F]):
    """Push subscriptions of one client."""

    def __init__(self, context: ClientContext, subscription_type: type[F]) -> None:
        self._context = context
        self._subscription_type = subscription_type

    def push(self, topic: str, subscriber: str, start: Start, feed: str, options: ConsumerOptions) -> Flow[F]:
        """Create a subscription, unless it exists, and connect to a feed."""
        check_no_pattern(topic)
        # The feed first, so that nothing is subscribed when its address is wrong.
        made = self._subscription_type(self._context, topic, subscriber, options, feed)
        # Even if it is never used, it ends with the client.
        self._context.open_subscriptions.add(made.consumer)
        try:
            reply = yield from self._context.call(Subscribe(topic, subscriber, start_of(start)), SubscribeReply)
        except BaseException:
            yield from made.consumer.close(clean=False)
            raise
        made.created = reply.created
        return made
