"""What the gateway keeps between requests. All of it is a cache: whatever is lost with the process, the broker knows.

The epochs of subscriptions that the gateway consumes on behalf of callers without an epoch of their own, and the ids
of topics (places.py); which streams have followed which; what the queue's endpoints keep; and whose turn it is.
"""

from __future__ import annotations

import asyncio

import msgspec

from oncemq.gateways.http.queue.state import QueueState
from oncemq.gateways.subscription_cache import Place, Places, keep

__all__ = ["Heir", "Place", "State", "keep"]


class Heir(msgspec.Struct, frozen=True, gc=False):
    """A stream of events that has followed another one of the same reader."""

    former_epoch: int
    epoch: int
    #: A seek lies between them: what was seen before is not where it stands.
    is_moved: bool


class State(Places):
    def __init__(self) -> None:
        super().__init__()
        #: A reader may not have heard of the heir yet, when it comes back.
        self.heirs: dict[Place, Heir] = {}
        self.queue = QueueState()
        #: One scrape of the metrics at a time, so that they can't wear the broker down.
        self.scraping = asyncio.Lock()
