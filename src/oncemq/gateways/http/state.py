"""What the gateway keeps between requests. All of it is a cache: whatever is lost with the process, the broker knows.

The epochs of subscriptions that the gateway consumes on behalf of callers without an epoch of their own, and the ids
of topics.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from oncemq.engine.replies import OpenReply
from oncemq.gateways.http.queue_state import QueueState

K = TypeVar("K")
V = TypeVar("V")

#: (topic, subscriber)
Place = tuple[str, str]

_ENTRIES_MAX = 10_000


class State:
    def __init__(self) -> None:
        #: How the gateway opened it; `acked` is what it last heard.
        self.opened: dict[Place, OpenReply] = {}
        #: What is being opened, so that callers who come at once share it.
        self.opening: dict[Place, asyncio.Task[OpenReply]] = {}
        self.topic_ids: dict[str, int] = {}
        self.queue = QueueState()


def keep(cache: dict[K, V], key: K, value: V) -> None:
    """The newest entry; the oldest one goes when there are too many."""
    cache.pop(key, None)
    cache[key] = value
    if len(cache) > _ENTRIES_MAX:
        del cache[next(iter(cache))]
