"""A reliable subscriber: its address, its cursors, and whether it answers."""

from __future__ import annotations

import asyncio
from collections import Counter

from oncemq.gateways.link import Link
from oncemq.gateways.push.subscribers.registry import TOPICS_PER_ENTRY, Registered
from oncemq.gateways.push.subscribers.subscriber_cursor import SubscriberCursor
from oncemq.protocol.commands import START_NEW


class Subscriber:
    def __init__(self, name: str, link: Link, user: str = "") -> None:
        """`link` is its own, if it has a user: its caller is the one that the user has used last."""
        self.name = name
        self.user = user
        self.link = link
        self.address = ""
        #: By topic.
        self.cursors: dict[str, SubscriberCursor] = {}
        #: Its entries in the broker's registry; None: the content of an entry is unknown.
        self.registered: dict[int, Registered | None] = {}
        #: Held during hello and goodbye.
        self.lock = asyncio.Lock()
        self.calling: asyncio.Task[None] | None = None
        #: Drops its cursors whose subscriptions were deleted.
        self.dropping: asyncio.Task[None] | None = None
        #: It did not answer: no call before this time, and a longer pause the next time.
        self.not_before_s = 0.0
        self.pause_s = 0.0

    @property
    def caller(self) -> str:
        """For whom the gateway acts; empty if there are no users."""
        return self.link.caller if self.user else ""

    @property
    def holder(self) -> tuple[str, str]:
        """As what it holds the topics that it follows."""
        return self.user, self.name

    def use(self, caller: str) -> None:
        """From now on, act for this caller of its user: the credential before may have been removed."""
        if self.caller != caller:
            self.link.caller = caller
            for cursor in self.cursors.values():
                cursor.check_due_s = 0.0

    def note_answer(self) -> None:
        """It has answered: calls need no pause."""
        self.pause_s = self.not_before_s = 0.0

    def end_call(self) -> None:
        """The call in progress has ended."""
        self.calling = None

    def entries(self, address: str) -> dict[int, Registered]:
        """Return the entries that the registry should have, by number; none for a subscriber without cursors."""
        self._assign_entries()
        cursors: dict[int, list[SubscriberCursor]] = {0: []} if self.cursors else {}
        for cursor in self.cursors.values():
            cursors.setdefault(cursor.entry, []).append(cursor)
        return {number: _entry("" if number else address, found, self.caller) for number, found in cursors.items()}

    def _assign_entries(self) -> None:
        """Assign new topics to entries. A topic stays in its entry."""
        counts = Counter(cursor.entry for cursor in self.cursors.values())
        number = 0
        for cursor in self.cursors.values():
            if cursor.entry < 0:
                while counts[number] >= TOPICS_PER_ENTRY:
                    number += 1
                cursor.entry = number
                counts[number] += 1


def _entry(address: str, cursors: list[SubscriberCursor], caller: str) -> Registered:
    new = tuple(cursor.topic for cursor in cursors if cursor.start == START_NEW)
    return Registered(address, tuple(cursor.topic for cursor in cursors), new, caller)
