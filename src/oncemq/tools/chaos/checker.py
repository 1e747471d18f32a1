"""The verdict: every acknowledged message once and in order in its topic, and at every subscriber that was subscribed
for it. Pure: it knows neither files nor processes.

The words are Jepsen's for a queue:

    attempted      somebody began to put it
    acknowledged   somebody was told that it is safe
    recovered      stored, though nobody was told so: its publisher died, or the answer got lost with it
    lost           acknowledged, and not there; or not given to a subscriber that was subscribed for it
    duplicated     there twice; or given twice
    unexpected     there, or given, though nobody put it there
    out of order   there, or given, before one that comes before it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from oncemq.tools.chaos.event_log import place_of

Kind = Literal["lost", "duplicated", "unexpected", "out of order", "error"]
#: More of one kind in one place say nothing new.
_ALIKE_MAX = 3
_BROKER = "the broker"


class Delivery(msgspec.Struct):
    """What one subscription to one topic gave, in the order in which it was processed."""

    subscriber: str
    topic: str
    #: The offset at which the subscription began.
    start: int
    #: (offset, message)
    got: list[tuple[int, str]] = msgspec.field(default_factory=list)
    #: It was ended before the topic was: what it had not got by then is not owed to it.
    is_ended: bool = False


class Evidence(msgspec.Struct):
    """By topic."""

    attempted: dict[str, set[str]] = msgspec.field(default_factory=dict)
    #: Message → its offset; -1: the answer did not say.
    acknowledged: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    #: By offset, as the broker had them in the end.
    stored: dict[str, list[str]] = msgspec.field(default_factory=dict)
    deliveries: list[Delivery] = msgspec.field(default_factory=list)
    #: What workers could not explain.
    errors: list[str] = msgspec.field(default_factory=list)


class Problem(msgspec.Struct, frozen=True):
    kind: Kind
    #: "" where it is about none.
    message: str
    topic: str
    #: The broker, or a subscriber.
    where: str
    text: str

    def __str__(self) -> str:
        what = f"{self.message} in '{self.topic}' at {self.where}: " if self.message else f"{self.where}: "
        return f"{self.kind}: {what}{self.text}"


class Verdict(msgspec.Struct, frozen=True):
    attempted: int
    acknowledged: int
    stored: int
    recovered: int
    #: Messages that were given to subscribers, and the subscriptions.
    delivered: int
    subscriptions: int
    lost: int
    duplicated: int
    unexpected: int
    out_of_order: int
    errors: int
    #: The first few of each kind and place.
    problems: tuple[Problem, ...]

    @property
    def is_good(self) -> bool:
        return not self.problems


def judge(evidence: Evidence) -> Verdict:
    problems = [Problem("error", "", "", "a worker", text) for text in evidence.errors]
    for topic in sorted({*evidence.stored, *evidence.acknowledged}):
        problems += _check_topic(evidence, topic)
    for delivery in evidence.deliveries:
        problems += _check_delivery(evidence.stored.get(delivery.topic, []), delivery)
    kinds = Counter(problem.kind for problem in problems)
    return Verdict(
        attempted=_count(evidence.attempted),
        acknowledged=_count(evidence.acknowledged),
        stored=_count(evidence.stored),
        recovered=_recovered(evidence),
        delivered=sum(len(delivery.got) for delivery in evidence.deliveries),
        subscriptions=len(evidence.deliveries),
        lost=kinds["lost"],
        duplicated=kinds["duplicated"],
        unexpected=kinds["unexpected"],
        out_of_order=kinds["out of order"],
        errors=kinds["error"],
        problems=tuple(_telling(problems)),
    )


def _telling(problems: Sequence[Problem]) -> Iterator[Problem]:
    """The first few of each kind and place."""
    told: Counter[tuple[str, str]] = Counter()
    for problem in problems:
        told[(problem.kind, problem.where)] += 1
        if told[(problem.kind, problem.where)] <= _ALIKE_MAX:
            yield problem


def _count(by_topic: Mapping[str, Sequence[str] | set[str] | dict[str, int]]) -> int:
    return sum(map(len, by_topic.values()))


def _recovered(evidence: Evidence) -> int:
    return sum(
        message in evidence.attempted.get(topic, ()) and message not in evidence.acknowledged.get(topic, ())
        for topic, stored in evidence.stored.items()
        for message in set(stored)
    )


# What the broker has stored.


def _check_topic(evidence: Evidence, topic: str) -> Iterator[Problem]:
    stored = evidence.stored.get(topic, [])
    acknowledged = evidence.acknowledged.get(topic, {})
    attempted = evidence.attempted.get(topic, set())
    places = {message: offset for offset, message in enumerate(stored)}
    for message, number in Counter(stored).items():
        if message not in attempted:
            yield Problem("unexpected", message, topic, _BROKER, "nobody put it there")
        elif number > 1:
            yield Problem("duplicated", message, topic, _BROKER, f"it is stored {number} times")
    for message, offset in acknowledged.items():
        if message not in places:
            yield Problem("lost", message, topic, _BROKER, "it was acknowledged, and is not stored")
        elif offset != -1 and stored[offset : offset + 1] != [message]:
            text = f"it was acknowledged at offset {offset:,}, and lies at {places[message]:,}"
            yield Problem("out of order", message, topic, _BROKER, text)
    yield from _check_order(topic, stored, attempted)


def _check_order(topic: str, stored: Sequence[str], attempted: set[str]) -> Iterator[Problem]:
    last: dict[str, tuple[int, int]] = {}
    seen: set[str] = set()
    for message in stored:
        if message in seen or message not in attempted:
            continue
        seen.add(message)
        publisher, *place = place_of(message)
        now = (place[0], place[1])
        if now < last.get(publisher, (0, -1)):
            text = f"it lies behind {publisher}.{last[publisher][0]}.{last[publisher][1]}, which was put later"
            yield Problem("out of order", message, topic, _BROKER, text)
        last[publisher] = max(now, last.get(publisher, now))


# What subscribers were given.


def _check_delivery(stored: Sequence[str], delivery: Delivery) -> Iterator[Problem]:
    def problem(kind: Kind, message: str, text: str) -> Problem:
        return Problem(kind, message, delivery.topic, delivery.subscriber, text)

    known = {*stored}
    counts: Counter[int] = Counter()
    highest = delivery.start - 1
    for offset, message in delivery.got:
        counts[offset] += 1
        if message not in known or not delivery.start <= offset < len(stored):
            yield problem("unexpected", message, f"given at offset {offset:,}, and not stored for this subscriber")
        elif stored[offset] != message:
            yield problem("out of order", message, f"given at offset {offset:,}, where {stored[offset]} is stored")
        elif counts[offset] > 1:
            yield problem("duplicated", message, f"given {counts[offset]} times")
        elif offset < highest:
            yield problem("out of order", message, f"given at offset {offset:,}, after offset {highest:,}")
        highest = max(highest, offset)
    end = highest + 1 if delivery.is_ended else len(stored)
    for offset in range(delivery.start, min(end, len(stored))):
        if not counts[offset]:
            yield problem("lost", stored[offset], f"it lies at offset {offset:,}, and was never given")
