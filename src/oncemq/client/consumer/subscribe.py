"""Subscriptions: making, ending and moving them. What they do with messages is theirs."""

from __future__ import annotations

from datetime import datetime
from typing import Generic

from oncemq.client.consumer.filter import Wanted
from oncemq.client.consumer.options import ConsumerOptions
from oncemq.client.consumer.reader import Start
from oncemq.client.consumer.subscriptions import P, S, Subscriptions
from oncemq.client.runtime.flow import Flow, method
from oncemq.client.runtime.rpc import Calling


class Subscribing(Calling, Generic[S, P]):
    """The part of a client that makes subscriptions."""

    _subscription_type: type[S]
    _pattern_subscription_type: type[P]

    @property
    def _part(self) -> Subscriptions[S, P]:
        return Subscriptions(self._context, self._subscription_type, self._pattern_subscription_type)

    @method
    def subscribe(
        self,
        topic: str,
        subscriber: str,
        start: Start = "new",
        *,
        auto_ack: bool = True,
        filter: Wanted | None = None,
        prefetch_bytes: int = 1024 * 1024,
    ) -> Flow[S]:
        """Make a durable subscription, and its topic where there is none; harmless where it exists.

        `start`: `"new"` (or `"latest"`), `"earliest"` or an offset; an existing subscription stays where it is.
        `filter`: a function of a message, or headers with the value (or values) that each must have; the others are
        left out.

        >>> client.subscribe("orders", "kitchen", start="earliest").created
        True
        """
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes)
        return self._part.subscribe(topic, subscriber, start, options)

    @method
    def subscription(
        self,
        topic: str,
        subscriber: str,
        *,
        auto_ack: bool = True,
        hold_ms: int = 0,
        busy_s: float = 0.0,
        filter: Wanted | None = None,
        prefetch_bytes: int = 1024 * 1024,
    ) -> Flow[S]:
        """An existing subscription. Its first use takes it over from another client that uses it.

        With `hold_ms` it is opened now, and politely: while another polite client holds it, this raises Busy,
        after trying for `busy_s`.

        >>> client.subscription("orders", "kitchen").get(timeout_s=1)
        """
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes, hold_ms=hold_ms)
        return self._part.subscription(topic, subscriber, options, busy_s)

    @method
    def subscribe_pattern(
        self,
        pattern: str,
        subscriber: str,
        start: str = "new",
        *,
        auto_ack: bool = True,
        filter: Wanted | None = None,
        prefetch_bytes: int = 1024 * 1024,
    ) -> Flow[P]:
        """Make a durable subscription to every topic that matches, those that are made later too; harmless where
        it exists. `*` stands for one level of a name, `#` for any number of them: `orders.*`, `#.eu`.

        >>> client.subscribe_pattern("orders.*", "audit", start="earliest").created
        True
        """
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes)
        return self._part.subscribe_pattern(pattern, subscriber, start, options)

    @method
    def pattern_subscription(
        self,
        pattern: str,
        subscriber: str,
        *,
        auto_ack: bool = True,
        filter: Wanted | None = None,
        prefetch_bytes: int = 1024 * 1024,
    ) -> Flow[P]:
        """An existing subscription by pattern. Its first use takes it over from another client that uses it.

        >>> client.pattern_subscription("orders.*", "audit").get(timeout_s=1)
        """
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes)
        return self._part.pattern_subscription(pattern, subscriber, options)

    @method
    def unsubscribe(self, topic: str, subscriber: str) -> Flow[None]:
        """End a durable subscription, also one by pattern. A topic that was made by subscribing goes with its last one.

        >>> client.unsubscribe("orders", "kitchen")
        """
        return self._part.unsubscribe(topic, subscriber)

    @method
    def seek(self, topic: str, subscriber: str, to: Start | datetime) -> Flow[int]:
        """Move a subscription: to an offset, `"earliest"`, `"new"` (or `"latest"`), or the first message that was
        stored at a time or later. Returns the offset (0 for a pattern). Whoever consumes it goes on there by itself;
        but an inbox does again only what `inbox.seek` tells it to.

        >>> client.seek("orders", "kitchen", "earliest")
        0
        """
        return self._part.seek(topic, subscriber, to)

    @method
    def find(self, topic: str, time: datetime) -> Flow[int]:
        """The offset of the first message that was stored at a time or later; the end, if there is none.

        >>> client.find("orders", datetime(2026, 1, 1))
        0
        """
        return self._part.find(topic, time)
