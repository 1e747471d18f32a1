"""A push subscription as tasks of an event loop use it. What it does is in fetch.py."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from oncemq.client.consumer.aio import Subscription
from oncemq.client.consumer.options import ConsumerOptions
from oncemq.client.context import ClientContext
from oncemq.client.push.feed import PushFeed
from oncemq.client.push.fetch import FeedFetcher
from oncemq.client.runtime.flow import Until

if TYPE_CHECKING:
    from oncemq.client.runtime.event_loop import EventLoopDriver


class PushSubscription(Subscription):
    """As `oncemq.client.push.sync.PushSubscription`, with methods that are awaited. For one task at a time.

    >>> async for message in (await client.push("orders", "kitchen")).messages(timeout_s=1):
    ...     cook(message.value)
    """

    def __init__(
        self, context: ClientContext, topic: str, subscriber: str, options: ConsumerOptions, address: str
    ) -> None:
        """Raises SettingInvalid."""
        driver = cast("EventLoopDriver", context.driver)
        feed = PushFeed(address, topic, context.credentials.curve)
        # Whatever the feed brings, a task that waits looks for it in the next pump.
        driver.loop.add_reader(feed.descriptor, driver.pump_soon)
        self._fetcher = FeedFetcher(
            feed,
            lambda until_ms: Until(feed.is_ready, until_ms),
            on_close=partial(driver.loop.remove_reader, feed.descriptor),
        )
        super().__init__(context, topic, subscriber, options, self._fetcher)

    @property
    def pushed(self) -> int:
        """How many messages came by the feed."""
        return self._fetcher.pushed
