"""A subscription by the live feed, as threads use it; what it does is in pushing.py."""

from __future__ import annotations

from functools import partial

from oncemq.client.driver import now_ms
from oncemq.client.flow import Flow, Outside
from oncemq.client.pushing import Pushing
from oncemq.client.subscription import Subscription


class PushSubscription(Pushing, Subscription):
    """A subscriber's messages, each once and in order, by way of the live feed. For one thread at a time.

    >>> for message in client.push("orders", "kitchen").messages(timeout_s=1):
    ...     cook(message.value)
    """

    def _wait_for_feed(self, until_ms: float) -> Flow[None]:
        yield Outside(partial(self._feed.wait, until_ms - now_ms()))
