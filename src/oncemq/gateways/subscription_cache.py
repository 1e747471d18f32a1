"""Subscriptions that a gateway owns on behalf of callers without an epoch: it opens each one once, keeps its epoch, and
opens it again when another consumer has taken it over.

It is a cache with bounds: the broker knows everything that is lost with the process.
"""

from __future__ import annotations

import asyncio
from copy import copy

from oncemq.gateways.bounded_dict import BoundedDict
from oncemq.gateways.link import Link
from oncemq.gateways.subscription import OpenSubscription, SubscriptionKey, open_subscription
from oncemq.gateways.tasks import start_awaited


class SubscriptionCache:
    def __init__(self, link: Link) -> None:
        self._link = link
        #: The openings of this gateway.
        self.opened: BoundedDict[SubscriptionKey, OpenSubscription] = BoundedDict()
        #: Openings in progress, so that concurrent requests of a caller share one.
        self._opening: dict[tuple[SubscriptionKey, str], asyncio.Task[OpenSubscription]] = {}
        self.topic_ids: BoundedDict[str, int] = BoundedDict()

    def for_link(self, link: Link) -> SubscriptionCache:
        """Return this cache for another caller of the same user."""
        cache = copy(self)
        cache._link = link
        return cache

    async def open(self, key: SubscriptionKey, stale_epoch: int = 0) -> OpenSubscription:
        """Return the gateway's opening. Open the subscription if there is none, or if it has the stale epoch. Raises
        what the broker refuses it with."""
        known = self.opened.get(key)
        if known is not None and known.epoch != stale_epoch:
            return known.for_link(self._link)
        mine = key, self._link.caller
        task = self._opening.get(mine)
        if task is None:
            task = self._opening[mine] = start_awaited(self.open_anew(key))
            task.add_done_callback(lambda _: self._opening.pop(mine, None))
        # A caller that is cancelled must not cancel the opening for the others.
        return await asyncio.shield(task)

    async def open_anew(self, key: SubscriptionKey, former: int = 0) -> OpenSubscription:
        """Open the subscription: its owner is fenced, even if that is this gateway. With the `former` epoch, only if
        no other consumer has opened it since."""
        if not former:
            self.opened.pop(key, None)
        opened = await open_subscription(self._link, *key, former=former)
        self.opened[key] = opened
        if not former:
            self.topic_ids[key[0]] = opened.topic_id
        return opened

    def drop(self, key: SubscriptionKey, epoch: int) -> None:
        """Forget an opening whose epoch is not the subscription's any more."""
        known = self.opened.get(key)
        if known is not None and known.epoch == epoch:
            del self.opened[key]
