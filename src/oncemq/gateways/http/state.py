"""What the HTTP gateway keeps between the requests of one user. All of it is a cache: the broker knows everything that
is lost with the process."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any

import msgspec

from oncemq.gateways.bounded_dict import BoundedDict
from oncemq.gateways.http.framework.endpoint import Call
from oncemq.gateways.http.queue.state import QueueState
from oncemq.gateways.link import Link
from oncemq.gateways.subscription import SubscriptionKey
from oncemq.gateways.subscription_cache import SubscriptionCache
from oncemq.protocol.replies import OpenReply


class StreamSuccessor(msgspec.Struct, frozen=True, gc=False):
    """A stream of events that continues an earlier one of the same reader."""

    former_epoch: int
    epoch: int
    #: There was a seek between them: the subscription is not where the reader left it.
    is_moved: bool


class State:
    def __init__(self, link: Link, scrape_lock: asyncio.Lock) -> None:
        self.subscriptions = SubscriptionCache(link)
        #: The epochs of shared subscriptions, which have no owner.
        self.shared: BoundedDict[SubscriptionKey, OpenReply] = BoundedDict()
        #: A reader that comes back may not have heard of its successor's epoch yet.
        self.successors: BoundedDict[SubscriptionKey, StreamSuccessor] = BoundedDict()
        self.queue = QueueState(link)
        #: One scrape of the metrics at a time, of all users, so that scrapes can't overload the broker.
        self.scrape_lock = scrape_lock

    def for_link(self, link: Link) -> State:
        """Return the same for another caller of the same user."""
        state = copy(self)
        state.subscriptions = self.subscriptions.for_link(link)
        state.queue = self.queue.for_link(link)
        return state


def state_of(call: Call[Any, Any]) -> State:
    """Return the state of the caller's user, with its type: the framework does not know it."""
    state: State = call.state
    return state
