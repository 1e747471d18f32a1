"""What a campaign has found: counts, and every way in which they are not what was promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

#: More of them say nothing new.
_NAMED_MAX = 5


class Account(msgspec.Struct, kw_only=True):
    campaign: str
    problems: list[str] = msgspec.field(default_factory=list)
    #: Of clients, by the point at which they died.
    kills: dict[str, int] = msgspec.field(default_factory=dict)
    broker_kills: dict[str, int] = msgspec.field(default_factory=dict)
    #: Messages that somebody began to put, and those of which he was told that they are safe.
    attempted: int = 0
    promised: int = 0
    #: What lay where it should in the end, and what of that should not have been there, or was missing.
    stored: int = 0
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    #: Processes that were told that another one has taken their place.
    fenced: int = 0
    #: What else the campaign counts.
    more: dict[str, int] = msgspec.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def kills_count(self) -> int:
        return sum(self.kills.values())

    @property
    def broker_kills_count(self) -> int:
        return sum(self.broker_kills.values())

    def compare(
        self,
        attempted: Sequence[str],
        promised: Collection[str],
        stored: Sequence[str],
        stream_of: Callable[[str], str] = lambda _: "",
        what: str = "messages",
    ) -> None:
        """Each of the promised once, of the others once or not at all, nothing else, and in order within a stream."""
        places = {message_id: place for place, message_id in enumerate(attempted)}
        counts = Counter(stored)
        lost = [message_id for message_id in promised if message_id not in counts]
        doubled = [message_id for message_id, count in counts.items() if count > 1]
        foreign = [message_id for message_id in counts if message_id not in places]
        reordered = list(_out_of_order(places, stored, stream_of))
        for name, found in (("lost", lost), ("doubled", doubled), ("nobody's", foreign), ("out of order", reordered)):
            if found:
                self.problems.append(f"{len(found)} {what} are {name}, such as {', '.join(found[:_NAMED_MAX])}")
        self.attempted += len(attempted)
        self.promised += len(promised)
        self.stored += len(stored)
        self.lost += len(lost)
        self.doubled += len(doubled)
        self.reordered += len(reordered)

    def expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.problems.append(f"{what}: {found}, and not {expected}")


def _out_of_order(places: dict[str, int], stored: Iterable[str], stream_of: Callable[[str], str]) -> Iterable[str]:
    last: dict[str, int] = {}
    for message_id in stored:
        place = places.get(message_id, -1)
        stream = stream_of(message_id)
        if place < last.get(stream, -1):
            yield message_id
        last[stream] = max(place, last.get(stream, -1))
