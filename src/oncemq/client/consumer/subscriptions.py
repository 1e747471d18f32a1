"""The part of a client that creates, finds, moves and deletes subscriptions."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from oncemq.client.consumer.options import ConsumerOptions
from oncemq.client.consumer.reader import Start, seek_of, start_of, time_of
from oncemq.client.context import ClientContext
from oncemq.client.runtime.flow import Flow
from oncemq.protocol import errors
from oncemq.protocol.commands import Find, Subscribe, Unsubscribe
from oncemq.protocol.patterns import is_pattern
from oncemq.protocol.replies import FindReply, SeekReply, SubscribeReply

if TYPE_CHECKING:
    from oncemq.client.consumer import aio, sync

#: The subscription classes of the blocking or of the asyncio client.
S = TypeVar("S", bound="sync.Subscription | aio.Subscription")
P = TypeVar("P", bound="sync.PatternSubscription | aio.PatternSubscription")

#: Several times the wait of a get at the broker.
IDLE_S_MIN = 10.0

#: With this time limit, a refusal that may pass ("not now") is raised immediately.
_AT_ONCE_MS = 1e-3


def check_no_pattern(topic: str) -> None:
    """Raise NameInvalid if the name is a pattern."""
    if isinstance(topic, str) and is_pattern(topic):
        raise errors.NameInvalid(f"'{topic}' is a pattern: use subscribe_pattern, pattern_subscription")


def idle_ms_of(idle_s: float) -> int:
    """Return a limit of idle time in milliseconds. Raise ValueError if gets that wait would exceed it."""
    if idle_s and idle_s < IDLE_S_MIN:
        raise ValueError(f"idle_s must be 0, or at least {IDLE_S_MIN:g}: a get may wait for some of that time")
    return round(idle_s * 1000)


class Subscriptions(Generic[S, P]):
    """Subscriptions of one client, each with one consumer at a time."""

    def __init__(self, context: ClientContext, subscription_type: type[S], pattern_subscription_type: type[P]) -> None:
        self._context = context
        self._subscription_type = subscription_type
        self._pattern_subscription_type = pattern_subscription_type

    def subscribe(self, topic: str, subscriber: str, start: Start, options: ConsumerOptions, idle_s: float) -> Flow[S]:
        """Create a subscription to a topic, unless it exists."""
        check_no_pattern(topic)
        # First, so that nothing is created when an option is wrong.
        made = self._subscription_type(self._context, topic, subscriber, options)
        operation = Subscribe(topic, subscriber, start_of(start), idle_ms=idle_ms_of(idle_s))
        reply = yield from self._context.call(operation, SubscribeReply)
        made.created = reply.created
        return made

    def subscription(self, topic: str, subscriber: str, options: ConsumerOptions, busy_s: float = 0.0) -> Flow[S]:
        """Return an existing subscription. With `hold_ms` it is opened now, or raises Busy after `busy_s`."""
        check_no_pattern(topic)
        found = self._subscription_type(self._context, topic, subscriber, options)
        if options.hold_ms:
            yield from found.consumer.open(give_up_ms=busy_s * 1000 or _AT_ONCE_MS)
        return found

    def subscribe_pattern(
        self, pattern: str, subscriber: str, start: str, options: ConsumerOptions, idle_s: float
    ) -> Flow[P]:
        """Create a subscription to all topics that match a pattern, unless it exists."""
        made = self._pattern_subscription_type(self._context, pattern, subscriber, options)
        if isinstance(pattern, str) and not is_pattern(pattern):
            raise errors.NameInvalid(f"'{pattern}' is no pattern: it has neither '*' nor '#'; use subscribe")
        operation = Subscribe(pattern, subscriber, start_of(start), idle_ms=idle_ms_of(idle_s))
        reply = yield from self._context.call(operation, SubscribeReply)
        made.created = reply.created
        return made

    def pattern_subscription(self, pattern: str, subscriber: str, options: ConsumerOptions) -> Flow[P]:
        """Return an existing subscription by pattern."""
        yield from ()
        return self._pattern_subscription_type(self._context, pattern, subscriber, options)

    def unsubscribe(self, topic: str, subscriber: str) -> Flow[None]:
        """Delete a subscription to a topic or by pattern."""
        return self._context.do(Unsubscribe(topic, subscriber))

    def seek(self, topic: str, subscriber: str, to: Start | datetime) -> Flow[int]:
        """Move a subscription. Returns the new offset (0 for a pattern)."""
        reply = yield from self._context.call(seek_of(topic, subscriber, to), SeekReply)
        return reply.acked

    def find(self, topic: str, time: datetime) -> Flow[int]:
        """Return the offset of the first message that was stored at a time or later."""
        reply = yield from self._context.ask(Find(topic, time_of(time)), FindReply)
        return reply.offset
