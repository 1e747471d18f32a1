"""Making and finding shared subscriptions."""

from __future__ import annotations

from typing import Generic

from oncemq.client.consumer.reader import Start
from oncemq.client.runtime.flow import Flow, method
from oncemq.client.runtime.rpc import Calling
from oncemq.client.worker.options import WorkerOptions
from oncemq.client.worker.subscriptions import SharedSubscriptions, W, sharing_of


class SharedSubscribing(Calling, Generic[W]):
    """The part of a client that joins shared subscriptions."""

    _shared_subscription_type: type[W]

    @property
    def _shared_part(self) -> SharedSubscriptions[W]:
        return SharedSubscriptions(self._context, self._shared_subscription_type)

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
        sharing = sharing_of(topic, lease_s, tries_max, dead_topic, key_order)
        options = WorkerOptions(
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            unsettled_max=unsettled_max,
            auto_extend=auto_extend,
            extend_max_s=extend_max_s,
        )
        return self._shared_part.subscribe(topic, subscriber, start, sharing, options)

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
        options = WorkerOptions(
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            unsettled_max=unsettled_max,
            auto_extend=auto_extend,
            extend_max_s=extend_max_s,
        )
        return self._shared_part.subscription(topic, subscriber, options)
