"""Subscriptions by a push gateway's live feed: making them. What they do with messages is theirs."""

from __future__ import annotations

from typing import Generic

from oncemq.client.consumer.filter import Wanted
from oncemq.client.consumer.options import ConsumerOptions
from oncemq.client.consumer.reader import Start
from oncemq.client.push.subscriptions import F, PushSubscriptions
from oncemq.client.runtime.flow import Flow, method
from oncemq.client.runtime.rpc import Calling


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
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes)
        part = PushSubscriptions(self._context, self._push_subscription_type)
        return part.push(topic, subscriber, start, feed, options)
