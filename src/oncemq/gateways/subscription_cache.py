"""Subscriptions that a gateway consumes on behalf of callers who have no epoch: it opens each once, keeps the epoch,
and opens it again when somebody else has taken it over.

All of it is a cache with bounds: whatever is lost with the process, the broker knows.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from oncemq.gateways.link import Link, expect
from oncemq.protocol.commands import Open
from oncemq.protocol.replies import OpenReply

K = TypeVar("K")
V = TypeVar("V")

#: (topic, subscriber)
Place = tuple[str, str]

_ENTRIES_MAX = 10_000


def keep(cache: dict[K, V], key: K, value: V) -> None:
    """The newest entry; the oldest one goes when there are too many."""
    cache.pop(key, None)
    cache[key] = value
    if len(cache) > _ENTRIES_MAX:
        del cache[next(iter(cache))]


class Places:
    def __init__(self) -> None:
        #: How the gateway opened it; `acked` is what it last heard.
        self.opened: dict[Place, OpenReply] = {}
        #: What is being opened, so that callers who come at once share it.
        self.opening: dict[Place, asyncio.Task[OpenReply]] = {}
        self.topic_ids: dict[str, int] = {}

    async def open(self, link: Link, place: Place, stale_epoch: int = 0) -> OpenReply:
        """Opened anew where it is not open, or has the stale epoch. Raises what the broker refuses."""
        known = self.opened.get(place)
        if known is not None and known.epoch != stale_epoch:
            return known
        task = self.opening.get(place)
        if task is None:
            task = self.opening[place] = asyncio.ensure_future(self.open_anew(link, place))
            task.add_done_callback(lambda _: self.opening.pop(place, None))
        # A caller that goes does not take the others' answer along.
        return await asyncio.shield(task)

    async def open_anew(self, link: Link, place: Place) -> OpenReply:
        """Whoever owned it is fenced, the gateway's former epoch too."""
        self.opened.pop(place, None)
        reply = expect(await link.operate(Open(*place)), OpenReply)
        keep(self.opened, place, reply)
        keep(self.topic_ids, place[0], reply.topic_id)
        return reply

    def drop(self, place: Place, epoch: int) -> None:
        """The gateway's epoch is not the subscription's any more."""
        known = self.opened.get(place)
        if known is not None and known.epoch == epoch:
            del self.opened[place]

    def note_acked(self, place: Place, epoch: int, acked: int) -> None:
        """Where the gateway's own subscription stands."""
        known = self.opened.get(place)
        if known is not None and known.epoch == epoch and acked > known.acked:
            self.opened[place] = msgspec.structs.replace(known, acked=acked)
