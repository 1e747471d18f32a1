"""A reliable subscriber: where it is called, its places, and how it answers."""

from __future__ import annotations

import asyncio
from collections import Counter

from oncemq.gateways.push.subscribers.registry import TOPICS_PER_ENTRY, Registered
from oncemq.gateways.push.subscribers.subscriber_cursor import Place
from oncemq.protocol.commands import START_NEW


class Subscriber:
    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        #: By topic.
        self.places: dict[str, Place] = {}
        #: Its entries, as the broker's registry has them; None: that is in doubt.
        self.registered: dict[int, Registered | None] = {}
        #: Hello and goodbye, one at a time.
        self.lock = asyncio.Lock()
        self.calling: asyncio.Task[None] | None = None
        #: Forgets the places that it has left.
        self.forgetting: asyncio.Task[None] | None = None
        #: It did not answer, and is left alone until then; the next time for longer.
        self.not_before_s = 0.0
        self.pause_s = 0.0

    def has_answered(self) -> None:
        self.pause_s = self.not_before_s = 0.0

    def entries(self, address: str) -> dict[int, Registered]:
        """What the registry should have of it, by number; nothing of one without places."""
        self._find_room()
        places: dict[int, list[Place]] = {0: []} if self.places else {}
        for place in self.places.values():
            places.setdefault(place.entry, []).append(place)
        return {number: _entry("" if number else address, found) for number, found in places.items()}

    def _find_room(self) -> None:
        """A topic stays in the entry that it has."""
        counts = Counter(place.entry for place in self.places.values())
        number = 0
        for place in self.places.values():
            if place.entry < 0:
                while counts[number] >= TOPICS_PER_ENTRY:
                    number += 1
                place.entry = number
                counts[number] += 1


def _entry(address: str, places: list[Place]) -> Registered:
    new = tuple(place.topic for place in places if place.start == START_NEW)
    return Registered(address, tuple(place.topic for place in places), new)
