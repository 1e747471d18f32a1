"""The exactly-once checker. Each acknowledged message must be in its topic once and in order, and must be delivered
once and in order to every subscription.

It is a pure function of the evidence: it knows neither files nor processes. The terms are those of Jepsen for a queue:

    attempted      a producer began to put it
    acknowledged   a producer was told that it is stored
    recovered      stored but not acknowledged: the producer died, or the answer was lost
    lost           acknowledged and not stored; or not delivered to a subscription that it was stored for
    duplicated     stored twice, or delivered twice
    unexpected     stored or delivered, although no producer put it
    out of order   stored or delivered before a message that precedes it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

Kind = Literal["lost", "duplicated", "unexpected", "out of order", "error"]
#: Maximum number of problems of one kind at one location that are named.
_NAMED_MAX = 3
_BROKER = "the broker"


class Delivery(msgspec.Struct):
    """What one subscription to one topic delivered, in the order of processing."""

    subscriber: str
    topic: str
    #: The offset at which the subscription starts.
    start: int
    #: (offset, message)
    got: list[tuple[int, str]] = msgspec.field(default_factory=list)
    #: It was deleted before the end: messages that were not delivered by then are not missing.
    is_ended: bool = False
    #: Index in `got` at which a new process continued → the offset that was acked by then. Messages from that offset on
    #: may be delivered again.
    restarts: dict[int, int] = msgspec.field(default_factory=dict)

    @property
    def redelivered(self) -> int:
        return len(self.got) - len({offset for offset, _ in self.got})


class Evidence(msgspec.Struct):
    """Everything that is known about a run, by topic."""

    #: Messages in the order in which each stream put them.
    attempted: dict[str, list[str]] = msgspec.field(default_factory=dict)
    #: Message → its offset; -1: the answer had no offset.
    acknowledged: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    #: By offset, as the broker has them at the end.
    stored: dict[str, list[str]] = msgspec.field(default_factory=dict)
    deliveries: list[Delivery] = msgspec.field(default_factory=list)
    #: Events that must not happen.
    errors: list[str] = msgspec.field(default_factory=list)
    #: The stream of a message: order is guaranteed within a stream.
    stream_of: Callable[[str], str] = lambda _: ""


class Problem(msgspec.Struct, frozen=True):
    """One violation of a guarantee."""

    kind: Kind
    #: "" if it concerns no message.
    message: str
    topic: str
    #: The broker, or a subscriber.
    where: str
    text: str

    def __str__(self) -> str:
        what = f"{self.message} in '{self.topic}' at {self.where}: " if self.message else f"{self.where}: "
        return f"{self.kind}: {what}{self.text}"


class Verdict(msgspec.Struct, frozen=True):
    """The result of a run."""

    attempted: int
    acknowledged: int
    stored: int
    recovered: int
    #: Messages delivered to subscribers, and the number of subscriptions.
    delivered: int
    subscriptions: int
    lost: int
    duplicated: int
    unexpected: int
    out_of_order: int
    errors: int
    #: The first few of each kind and location.
    problems: tuple[Problem, ...]

    @property
    def is_good(self) -> bool:
        return not self.problems


def judge(evidence: Evidence) -> Verdict:
    """Compare the evidence with the guarantees."""
    problems = [Problem("error", "", "", "a process", text) for text in evidence.errors]
    for topic in sorted({*evidence.stored, *evidence.acknowledged}):
        problems += _check_topic(evidence, topic)
    for delivery in evidence.deliveries:
        problems += _check_delivery(evidence.stored.get(delivery.topic, []), delivery)
    kinds = Counter(problem.kind for problem in problems)
    return Verdict(
        attempted=_total(evidence.attempted),
        acknowledged=_total(evidence.acknowledged),
        stored=_total(evidence.stored),
        recovered=_count_recovered(evidence),
        delivered=sum(len(delivery.got) for delivery in evidence.deliveries),
        subscriptions=len(evidence.deliveries),
        lost=kinds["lost"],
        duplicated=kinds["duplicated"],
        unexpected=kinds["unexpected"],
        out_of_order=kinds["out of order"],
        errors=kinds["error"],
        problems=tuple(_first_of_each_kind(problems)),
    )


def _first_of_each_kind(problems: Sequence[Problem]) -> Iterator[Problem]:
    named: Counter[tuple[str, str]] = Counter()
    for problem in problems:
        named[(problem.kind, problem.where)] += 1
        if problem.kind == "error" or named[(problem.kind, problem.where)] <= _NAMED_MAX:
            yield problem


def _total(by_topic: Mapping[str, Collection[str]]) -> int:
    return sum(map(len, by_topic.values()))


def _count_recovered(evidence: Evidence) -> int:
    return sum(
        len(
            set(stored).intersection(evidence.attempted.get(topic, ())).difference(evidence.acknowledged.get(topic, ()))
        )
        for topic, stored in evidence.stored.items()
    )


# What the broker has stored.


def _check_topic(evidence: Evidence, topic: str) -> Iterator[Problem]:
    stored = evidence.stored.get(topic, [])
    order = {message: index for index, message in enumerate(evidence.attempted.get(topic, ()))}
    offsets = {message: offset for offset, message in enumerate(stored)}
    for message, number in Counter(stored).items():
        if message not in order:
            yield Problem("unexpected", message, topic, _BROKER, "it was never put there")
        elif number > 1:
            yield Problem("duplicated", message, topic, _BROKER, f"it is stored {number} times")
    for message, offset in evidence.acknowledged.get(topic, {}).items():
        if message not in offsets:
            yield Problem("lost", message, topic, _BROKER, "it was acknowledged, and is not stored")
        elif offset != -1 and stored[offset : offset + 1] != [message]:
            text = f"it was acknowledged at offset {offset:,}, and is stored at {offsets[message]:,}"
            yield Problem("out of order", message, topic, _BROKER, text)
    yield from _check_order(topic, stored, order, evidence.stream_of)


def _check_order(
    topic: str, stored: Sequence[str], order: Mapping[str, int], stream_of: Callable[[str], str]
) -> Iterator[Problem]:
    last: dict[str, str] = {}
    for message in dict.fromkeys(stored):
        if message not in order:
            continue
        stream = stream_of(message)
        previous = last.get(stream, message)
        if order[message] < order[previous]:
            yield Problem(
                "out of order", message, topic, _BROKER, f"it is stored after {previous}, which was put later"
            )
        else:
            last[stream] = message


# What was delivered to subscribers.


def _check_delivery(stored: Sequence[str], delivery: Delivery) -> Iterator[Problem]:
    def problem(kind: Kind, message: str, text: str) -> Problem:
        return Problem(kind, message, delivery.topic, delivery.subscriber, text)

    known = {*stored}
    counts: Counter[int] = Counter()
    highest = delivery.start - 1
    #: After a restart, offsets up to this one may be delivered again, in order.
    redelivery_end = highest
    expected: int | None = None
    for index, (offset, message) in enumerate(delivery.got):
        acked = delivery.restarts.get(index)
        if acked is not None:
            redelivery_end, expected = highest, None
        is_redelivery = offset <= redelivery_end and expected in (None, offset)
        counts[offset] += 1
        if message not in known or not delivery.start <= offset < len(stored):
            yield problem("unexpected", message, f"delivered at offset {offset:,}, and not stored for this subscriber")
        elif stored[offset] != message:
            yield problem("out of order", message, f"delivered at offset {offset:,}, where {stored[offset]} is stored")
        elif acked is not None and offset < acked:
            yield problem("duplicated", message, f"delivered again at offset {offset:,}, although {acked:,} was acked")
        elif counts[offset] > 1 and not is_redelivery:
            yield problem("duplicated", message, f"delivered {counts[offset]} times")
        elif counts[offset] == 1 and offset < highest:
            yield problem("out of order", message, f"delivered at offset {offset:,}, after offset {highest:,}")
        highest, expected = max(highest, offset), offset + 1
    end = highest + 1 if delivery.is_ended else len(stored)
    for offset in range(delivery.start, min(end, len(stored))):
        if not counts[offset]:
            yield problem("lost", stored[offset], f"it is stored at offset {offset:,}, and was never delivered")
