"""What the queue's endpoints keep between requests: caches with bounds (places.keep), and whose turn it is.

All of it can be lost: the broker's registry knows the same.
"""

from __future__ import annotations

from oncemq.gateways.keyed_delivery import Giving
from oncemq.gateways.keyed_lock import Turns


class QueueState:
    def __init__(self) -> None:
        #: Producer's id → its topic. It never gets another one.
        self.producers: dict[str, str] = {}
        #: Ids of consumers that are known to be registered.
        self.consumers: dict[str, bool] = {}
        #: Topics that had consumers when the last message was published here.
        self.consumed: dict[str, bool] = {}
        self.giving = Giving()
        #: By (topic, consumer's id): two requests at a time get two messages.
        self.turns = Turns()
