"""Looks after places: opens those that are to be opened, until they are, and asks the broker about quiet ones now and
then. A seek, or a topic that was deleted, shows only when it is asked."""

from __future__ import annotations

import asyncio
import logging
import time

from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.subscriber_cursor import Place
from oncemq.protocol import errors

#: Places that the broker is asked about at a time.
_LOOKS_MAX = 100
#: A quiet place waits so many times as long as a message that is not acknowledged; and so long at least.
_QUIET = 3
_QUIET_S_MIN = 1.0


class Tending:
    def __init__(self, settings: PushSettings, counters: Counters) -> None:
        self._retry_s = settings.retransmit_ms / 1000
        self._quiet_s = max(_QUIET * self._retry_s, _QUIET_S_MIN)
        self._counters = counters
        self._looking: dict[Place, asyncio.Task[None]] = {}

    def look_after(self, place: Place, now_s: float) -> None:
        """Ask about it, if it is time and nobody does."""
        if not place.is_registered or place.is_lost or place.is_left:
            return
        if now_s < place.look_again_s and not place.is_in_doubt:
            return
        if place not in self._looking and len(self._looking) < _LOOKS_MAX:
            self._looking[place] = task = asyncio.ensure_future(self._look(place))
            task.add_done_callback(lambda _: self._looking.pop(place))

    async def _look(self, place: Place) -> None:
        pause_s = self._retry_s
        try:
            await place.look()
            pause_s = self._quiet_s
        except errors.Refused as error:
            text = f"'{place.subscriber}' can't be subscribed to '{place.topic}' any more: {error.text}"
            self._counters.trouble("places_refused", text, level=logging.ERROR)
        except errors.OnceMQError as error:
            text = f"the place of '{place.subscriber}' on '{place.topic}' has to wait: {error.text}"
            self._counters.trouble("places_waiting", text)
        finally:
            place.look_again_s = time.monotonic() + pause_s

    async def stop(self) -> None:
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
