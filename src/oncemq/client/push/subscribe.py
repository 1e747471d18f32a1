"""Subscriptions by a push gateway's live feed: making them. What they do with messages is theirs."""

from __future__ import annotations

from typing import Generic, TypeVar

from oncemq.client.consumer.filter import Wanted, filter_of
from oncemq.client.consumer.reader import Start, start_of
from oncemq.client.consumer.subscribe import refuse_pattern
from oncemq.client.push.consumer import Pushing
from oncemq.client.runtime.flow import Flow, method
from oncemq.client.runtime.rpc import Calling
from oncemq.protocol.commands import Subscribe
from oncemq.protocol.replies import SubscribeReply

#: A shell's subscriptions by a feed.
F = TypeVar("F", bound=Pushing)


class PushSubscribing(Calling, Generic[F]):
    """The part of a client that listens to feeds."""

    _push_subscription_type: type[F]

    @method
    def push(
        self,
        topic: str,
        subscriber: str,
        start: Start = "new",
        *,
        feed: str = "tcp://127.0.0.1:5558",
        auto_ack: bool = True,
        filter: Wanted | None = None,
        prefetch_bytes: int = 1024 * 1024,
    ) -> Flow[F]:
        """A durable subscription whose messages come from a push gateway's live feed, and from the broker where the
        feed has lost something: each once and in order. Otherwise as `subscribe`.

        >>> subscription = client.push("orders", "kitchen", feed="tcp://127.0.0.1:5558")
        """
        refuse_pattern(topic)
        wanted = filter_of(filter)
        # First, so that nothing is subscribed where the address can't be.
        found = self._push_subscription_type(
            self, topic, subscriber, feed=feed, auto_ack=auto_ack, prefetch_bytes=prefetch_bytes, wanted=wanted
        )
        try:
            reply = yield from self._call(Subscribe(topic, subscriber, start_of(start)), SubscribeReply)
        except BaseException:
            yield from found._close(clean=False)
            raise
        found.created = reply.created
        return found
