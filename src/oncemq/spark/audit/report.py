"""What an audit has found, as data and in words. Knows nothing of Spark."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

#: What a subscription may be found guilty of, in words.
_FAULTS = {
    "lost": "lost",
    "doubled": "doubled",
    "out_of_order": "out of order",
    "corrupted": "corrupted",
    "unknown": "never put",
}
_TOPIC_FAULTS = {
    "same_offset": "offsets given to two puts",
    "stored_twice": "stored twice",
    "vanished": "stored and not there",
}
#: What is no fault, in words.
_REMARKS = {
    "redelivered": "redelivered",
    "expired": "expired",
    "dropped": "dropped by quota",
    "passed": "filtered out",
    "left": "acked unread",
    "unexplained": "missing, put by a producer without records",
    "given": "given and not acked",
    "waiting": "not given yet",
}


class Finding(msgspec.Struct, frozen=True):
    """One message that something is wrong with."""

    kind: str
    broker: str
    topic: str
    topic_id: int
    offset: int
    #: Empty where the topic itself is meant.
    subscriber: str = ""
    pattern: str = ""
    detail: str = ""


class TopicResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was put, and whether it has a place of its own."""

    broker: str
    topic: str
    topic_id: int
    #: Messages, as all that follow.
    put: int
    #: Of what was put.
    first_offset: int = 0
    end_offset: int = 0
    same_offset: int = 0
    stored_twice: int = 0
    #: Beyond the end that the broker says the topic has.
    vanished: int = 0

    @property
    def faults(self) -> dict[str, int]:
        return {name: count for name in _TOPIC_FAULTS if (count := getattr(self, name))}

    @property
    def sentence(self) -> str:
        faults = [f"{count:,} {_TOPIC_FAULTS[name].upper()}" for name, count in self.faults.items()]
        return f"{self.topic}: " + ", ".join([f"{self.put:,} put", *faults])


class SubscriptionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one subscription was given of one topic. Counts are of messages."""

    broker: str
    topic: str
    topic_id: int
    subscriber: str
    pattern: str = ""
    shared: bool = False
    #: False: of what it was given nothing was recorded.
    judged: bool = True
    #: From where it began.
    put: int = 0
    #: Given, and the broker has said that they are done.
    consumed: int = 0
    given: int = 0
    waiting: int = 0
    redelivered: int = 0
    expired: int = 0
    dropped: int = 0
    passed: int = 0
    left: int = 0
    unexplained: int = 0
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    corrupted: int = 0
    unknown: int = 0

    @property
    def faults(self) -> dict[str, int]:
        return {name: count for name in _FAULTS if (count := getattr(self, name))}

    @property
    def name(self) -> str:
        by = f" ({self.pattern})" if self.pattern else ""
        return f"{self.topic} / {self.subscriber}{by}"

    @property
    def sentence(self) -> str:
        if not self.judged:
            return f"{self.name}: not judged; of what it was given nothing was recorded"
        consumed = f"{self.consumed:,} consumed"
        if not self.faults:
            consumed += " once" if self.shared else " once, in order"
        faults = [f"{count:,} {_FAULTS[name].upper()}" for name, count in self.faults.items()]
        remarks = [f"{count:,} {text}" for name, text in _REMARKS.items() if (count := getattr(self, name))]
        text = f"{self.name}: {self.put:,} put, " + ", ".join([consumed, *faults])
        return f"{text} ({', '.join(remarks)})" if remarks else text


def kinds_of(topics: Iterable[TopicResult], subscriptions: Iterable[SubscriptionResult]) -> set[str]:
    """What was found, of any of them."""
    found = {kind for topic in topics for kind in topic.faults}
    return found | {kind for each in subscriptions for kind in each.faults}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole audit."""

    files: int
    lines: int
    #: Files whose last line was cut off.
    torn: int
    #: Lines that are missing or can't be read, other than those.
    unreadable: int
    #: Files that say that their client could not write everything down.
    incomplete: int
    #: Messages that were sent, and of which it is not known whether or where they are stored.
    in_doubt: int
    topics: list[TopicResult]
    subscriptions: list[SubscriptionResult]
    #: Up to the limit of each kind; the counts are exact.
    findings: list[Finding]

    @property
    def is_proved(self) -> bool:
        """Nothing was lost, doubled, out of order or corrupted, and the records are whole."""
        return not (kinds_of(self.topics, self.subscriptions) or self.unreadable or self.incomplete)

    @property
    def sentences(self) -> list[str]:
        faulty = [topic.sentence for topic in self.topics if topic.faults]
        read_by = {(each.broker, each.topic_id) for each in self.subscriptions}
        unread = [each for each in self.topics if not each.faults and (each.broker, each.topic_id) not in read_by]
        return [
            *faulty,
            *(f"{each.sentence}, read by no recorded subscription" for each in unread),
            *(each.sentence for each in self.subscriptions),
            *self._complaints(),
        ]

    def _complaints(self) -> list[str]:
        found = []
        if self.in_doubt:
            found.append(f"in doubt: {self.in_doubt:,} messages were sent without an answer, or without an offset")
        if self.unreadable:
            found.append(f"NOT PROVED: {self.unreadable:,} lines of the records are missing or can't be read")
        if self.incomplete:
            found.append(f"NOT PROVED: {self.incomplete:,} files are incomplete, their clients could not write them")
        return found
