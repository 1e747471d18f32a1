"""Making and finding shared subscriptions."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from oncemq.client.consumer.reader import Start, start_of
from oncemq.client.runtime.flow import Flow, method
from oncemq.client.runtime.rpc import Calling
from oncemq.client.worker.shared_consumer import Working
from oncemq.protocol import errors
from oncemq.protocol.commands import Sharing, Subscribe, Subscriptions
from oncemq.protocol.replies import SubscribeReply, SubscriptionsReply

#: A shell's shared subscriptions.
W = TypeVar("W", bound=Working[Any])


class SharedSubscribing(Calling, Generic[W]):
    """The part of a client that joins shared subscriptions."""

    _shared_subscription_type: type[W]

    @method
    def subscribe_shared(
        self,
        topic: str,
        subscriber: str,
        start: Start = "new",
        *,
        lease_s: float = 30.0,
        tries_max: int = 0,
        dead_topic: str | None = None,
        key_order: bool = False,
        prefetch: int | None = None,
        prefetch_bytes: int = 1024 * 1024,
        unsettled_max: int = 1000,
        auto_extend: bool = True,
        extend_max_s: float = 3600.0,
    ) -> Flow[W]:
        """Make a durable subscription that consumers share, each message for one of them; harmless where it exists.

        A message that is not settled within `lease_s` goes to another consumer; while this process lives, leases are
        extended by themselves, for `extend_max_s` at the most. With `tries_max`, a message that was delivered so
        often goes to `dead_topic` (TOPIC.dead). With `key_order`, of messages with the same key only one is out.

        Of this consumer: `prefetch` messages are taken before they are asked for (None: about what it works on in
        a second); `unsettled_max` may be in its hands.

        >>> workers = client.subscribe_shared("orders", "packers", tries_max=5)
        >>> for task in workers.tasks(timeout_s=10):
        ...     pack(task.value)
        ...     task.ack()
        """
        sharing = _sharing_of(topic, lease_s, tries_max, dead_topic, key_order)
        # First of all: what it can't be is found before anything is made.
        found = self._shared_subscription_type(
            self,
            topic,
            subscriber,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            unsettled_max=unsettled_max,
            auto_extend=auto_extend,
            extend_max_s=extend_max_s,
        )
        reply = yield from self._call(Subscribe(topic, subscriber, start_of(start), sharing), SubscribeReply)
        found.created = reply.created
        return (yield from self._joined(found))

    @method
    def shared_subscription(
        self,
        topic: str,
        subscriber: str,
        *,
        prefetch: int | None = None,
        prefetch_bytes: int = 1024 * 1024,
        unsettled_max: int = 1000,
        auto_extend: bool = True,
        extend_max_s: float = 3600.0,
    ) -> Flow[W]:
        """Join an existing shared subscription.

        >>> task = client.shared_subscription("orders", "packers").take(timeout_s=1)
        """
        found = self._shared_subscription_type(
            self,
            topic,
            subscriber,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            unsettled_max=unsettled_max,
            auto_extend=auto_extend,
            extend_max_s=extend_max_s,
        )
        yield from self._refuse_owned(topic, subscriber)
        return (yield from self._joined(found))

    def _joined(self, found: W) -> Flow[W]:
        yield from found._join()
        self._subscriptions.add(found)
        return found

    def _refuse_owned(self, topic: str, subscriber: str) -> Flow[None]:
        """Opening a subscription that is not shared would take it from its owner."""
        after = subscriber[:-1]
        while True:
            page = yield from self._ask(Subscriptions(topic, after), SubscriptionsReply)
            for info in page.subscriptions:
                if info.subscriber == subscriber and not info.pattern and info.sharing is None:
                    raise errors.KindMismatch(f"'{subscriber}' on '{topic}' is not shared: use client.subscription")
            after = page.after
            if not after or after >= subscriber:
                return


def _sharing_of(topic: str, lease_s: float, tries_max: int, dead_topic: str | None, key_order: bool) -> Sharing:
    if dead_topic is not None and not tries_max:
        raise ValueError("a dead-letter topic needs tries_max")
    if tries_max and dead_topic is None:
        dead_topic = f"{topic}.dead"
    return Sharing(round(lease_s * 1000), tries_max, dead_topic or "", bool(key_order))
