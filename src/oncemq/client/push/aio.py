"""A subscription by the live feed, as tasks of an event loop use it; what it does is in consumer.py."""

from __future__ import annotations

from typing import Any

from oncemq.client.consumer.aio import Subscription
from oncemq.client.context import ClientContext
from oncemq.client.push.consumer import Pushing
from oncemq.client.runtime.flow import Flow, Until


class PushSubscription(Pushing, Subscription):
    """A subscriber's messages, each once and in order, by way of the live feed. For one task at a time.

    >>> async for message in (await client.push("orders", "kitchen")).messages(timeout_s=1):
    ...     cook(message.value)
    """

    def __init__(self, context: ClientContext, topic: str, subscriber: str, *, feed: str, **options: Any) -> None:
        super().__init__(context, topic, subscriber, feed=feed, **options)
        # Whatever comes, who waits looks for it in the next pump.
        self._driver.loop.add_reader(self._feed.descriptor, self._driver.pump_soon)

    def _wait_for_feed(self, until_ms: float) -> Flow[None]:
        yield Until(self._feed.is_ready, until_ms)

    def _end_feed(self) -> None:
        if not self._feed.is_closed:
            self._driver.loop.remove_reader(self._feed.descriptor)
        super()._end_feed()
