"""A push subscription as threads use it. What it does is in fetch.py."""

from __future__ import annotations

from functools import partial

from oncemq.client.consumer.options import ConsumerOptions
from oncemq.client.consumer.sync import Subscription
from oncemq.client.context import ClientContext
from oncemq.client.push.feed import PushFeed
from oncemq.client.push.fetch import FeedFetcher
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Outside


class PushSubscription(Subscription):
    """A subscriber's messages, each once and in order, from a push gateway's live feed. For one thread at a time.

    It has the methods of `Subscription`.

    >>> for message in client.push("orders", "kitchen").messages(timeout_s=1):
    ...     cook(message.value)
    """

    def __init__(
        self, context: ClientContext, topic: str, subscriber: str, options: ConsumerOptions, address: str
    ) -> None:
        """Raises SettingInvalid."""
        feed = PushFeed(address, topic, context.credentials.curve)
        self._fetcher = FeedFetcher(feed, lambda until_ms: Outside(partial(feed.wait, until_ms - now_ms())))
        super().__init__(context, topic, subscriber, options, self._fetcher)

    @property
    def pushed(self) -> int:
        """How many messages came by the feed."""
        return self._fetcher.pushed
