"""What the queue's endpoints keep between requests: bounded caches, and locks.

All of it can be lost: the broker's registry has the same data.
"""

from __future__ import annotations

from copy import copy

from oncemq.gateways.bounded_dict import BoundedDict
from oncemq.gateways.keyed_delivery import KeyedDelivery
from oncemq.gateways.keyed_lock import KeyedLock
from oncemq.gateways.link import Link


class QueueState:
    def __init__(self, link: Link) -> None:
        #: Producer's id → its topic. It never changes.
        self.producers: BoundedDict[str, str] = BoundedDict()
        #: Ids of consumers that are known to be registered.
        self.consumers: BoundedDict[str, bool] = BoundedDict()
        #: Topics that had consumers when the last message was published here.
        self.consumed: BoundedDict[str, bool] = BoundedDict()
        self.delivery = KeyedDelivery(link)
        #: By (topic, consumer's id): two concurrent requests get two messages.
        self.lock = KeyedLock()

    def for_link(self, link: Link) -> QueueState:
        """Return the same for another caller of the same user."""
        state = copy(self)
        state.delivery = self.delivery.for_link(link)
        return state
