"""What the gateway keeps between requests. All of it is a cache: whatever is lost with the process, the broker knows.

The epochs of subscriptions that the gateway consumes on behalf of callers without an epoch of their own, and the ids
of topics (places.py); and what the queue's endpoints keep.
"""

from __future__ import annotations

from oncemq.gateways.http.queue_state import QueueState
from oncemq.gateways.places import Place, Places, keep

__all__ = ["Place", "State", "keep"]


class State(Places):
    def __init__(self) -> None:
        super().__init__()
        self.queue = QueueState()
