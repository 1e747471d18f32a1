"""Subscriptions: making, ending and moving them. What they do with messages is theirs."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

from oncemq.client.consumer.filter import Wanted, filter_of
from oncemq.client.consumer.pattern import PatternConsuming
from oncemq.client.consumer.reader import Start, seek_of, start_of, time_of
from oncemq.client.consumer.topic import Consuming
from oncemq.client.runtime.flow import Flow, method
from oncemq.client.runtime.rpc import Calling
from oncemq.protocol import errors
from oncemq.protocol.commands import Find, Subscribe, Unsubscribe
from oncemq.protocol.patterns import is_pattern
from oncemq.protocol.replies import FindReply, SeekReply, SubscribeReply

#: A shell's subscriptions to one topic, and by pattern.
S = TypeVar("S", bound=Consuming)
P = TypeVar("P", bound=PatternConsuming)

#: "Not now" is an answer at once.
_AT_ONCE_MS = 1e-3


def refuse_pattern(topic: str) -> None:
    """Raises NameInvalid."""
    if isinstance(topic, str) and is_pattern(topic):
        raise errors.NameInvalid(f"'{topic}' is a pattern: use subscribe_pattern, pattern_subscription")


class Subscribing(Calling, Generic[S, P]):
    """The part of a client that makes subscriptions."""

    _subscription_type: type[S]
    _pattern_subscription_type: type[P]

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
        refuse_pattern(topic)
        wanted = filter_of(filter)
        reply = yield from self._call(Subscribe(topic, subscriber, start_of(start)), SubscribeReply)
        return self._subscription_type(
            self,
            topic,
            subscriber,
            created=reply.created,
            auto_ack=auto_ack,
            prefetch_bytes=prefetch_bytes,
            wanted=wanted,
        )

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
        refuse_pattern(topic)
        found = self._subscription_type(
            self,
            topic,
            subscriber,
            auto_ack=auto_ack,
            hold_ms=hold_ms,
            prefetch_bytes=prefetch_bytes,
            wanted=filter_of(filter),
        )
        if hold_ms:
            yield from found._open(give_up_ms=busy_s * 1000 or _AT_ONCE_MS)
        return found

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
        wanted = filter_of(filter)
        if isinstance(pattern, str) and not is_pattern(pattern):
            raise errors.NameInvalid(f"'{pattern}' is no pattern: it has neither '*' nor '#'; use subscribe")
        reply = yield from self._call(Subscribe(pattern, subscriber, start_of(start)), SubscribeReply)
        return self._pattern_subscription_type(
            self,
            pattern,
            subscriber,
            created=reply.created,
            auto_ack=auto_ack,
            prefetch_bytes=prefetch_bytes,
            wanted=wanted,
        )

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
        yield from ()
        return self._pattern_subscription_type(
            self, pattern, subscriber, auto_ack=auto_ack, prefetch_bytes=prefetch_bytes, wanted=filter_of(filter)
        )

    @method
    def unsubscribe(self, topic: str, subscriber: str) -> Flow[None]:
        """End a durable subscription, also one by pattern. A topic that was made by subscribing goes with its last one.

        >>> client.unsubscribe("orders", "kitchen")
        """
        return self._do(Unsubscribe(topic, subscriber))

    @method
    def seek(self, topic: str, subscriber: str, to: Start | datetime) -> Flow[int]:
        """Move a subscription: to an offset, `"earliest"`, `"new"` (or `"latest"`), or the first message that was
        stored at a time or later. Returns the offset (0 for a pattern). Whoever consumes it goes on there by itself;
        but an inbox does again only what `inbox.seek` tells it to.

        >>> client.seek("orders", "kitchen", "earliest")
        0
        """
        reply = yield from self._call(seek_of(topic, subscriber, to), SeekReply)
        return reply.acked

    @method
    def find(self, topic: str, time: datetime) -> Flow[int]:
        """The offset of the first message that was stored at a time or later; the end, if there is none.

        >>> client.find("orders", datetime(2026, 1, 1))
        0
        """
        reply = yield from self._ask(Find(topic, time_of(time)), FindReply)
        return reply.offset
