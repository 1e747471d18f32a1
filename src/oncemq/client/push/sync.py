"""A subscription by the live feed, as threads use it; what it does is in consumer.py."""

from __future__ import annotations

from functools import partial

from oncemq.client.consumer.sync import Subscription
from oncemq.client.push.consumer import Pushing
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Outside


class PushSubscription(Pushing, Subscription):
    """A subscriber's messages, each once and in order, by way of the live feed. For one thread at a time.

    >>> for message in client.push("orders", "kitchen").messages(timeout_s=1):
    ...     cook(message.value)
    """

    def _wait_for_feed(self, until_ms: float) -> Flow[None]:
        yield Outside(partial(self._feed.wait, until_ms - now_ms()))
