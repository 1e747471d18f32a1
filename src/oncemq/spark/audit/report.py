"""The report of an audit, as data and as text. Does not import Spark."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

#: The faults of a subscription, as text.
_FAULTS = {
    "lost": "lost",
    "duplicated": "duplicated",
    "out_of_order": "out of order",
    "corrupted": "corrupted",
    "unknown": "never put",
}
_TOPIC_FAULTS = {
    "same_offset": "offsets used by two puts",
    "stored_twice": "stored twice",
    "vanished": "stored and missing",
}
#: Counts that are not faults, as text.
_REMARKS = {
    "redelivered": "redelivered",
    "expired": "expired",
    "dropped": "dropped by quota",
    "passed": "filtered out",
    "left": "acked unread",
    "unexplained": "missing, put by a producer without records",
    "given": "delivered and not acked",
    "waiting": "not delivered yet",
}


class Finding(msgspec.Struct, frozen=True):
    """A fault of one message."""

    kind: str
    broker: str
    topic: str
    topic_id: int
    offset: int
    #: Empty for a fault of the topic itself.
    subscriber: str = ""
    pattern: str = ""
    detail: str = ""


class TopicResult(msgspec.Struct, frozen=True, kw_only=True):
    """The puts of one topic. Counts are numbers of messages."""

    broker: str
    topic: str
    topic_id: int
    put: int
    #: The offsets of the recorded puts.
    first_offset: int = 0
    end_offset: int = 0
    same_offset: int = 0
    stored_twice: int = 0
    #: Stored after the end of the topic that the broker reports.
    vanished: int = 0

    @property
    def faults(self) -> dict[str, int]:
        return {name: count for name in _TOPIC_FAULTS if (count := getattr(self, name))}

    @property
    def summary(self) -> str:
        faults = [f"{count:,} {_TOPIC_FAULTS[name].upper()}" for name, count in self.faults.items()]
        return f"{self.topic}: " + ", ".join([f"{self.put:,} put", *faults])


class SubscriptionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one subscription received of one topic. Counts are numbers of messages."""

    broker: str
    topic: str
    topic_id: int
    subscriber: str
    pattern: str = ""
    shared: bool = False
    #: False: no delivery to it was recorded.
    judged: bool = True
    #: Put after its start position.
    put: int = 0
    #: Delivered and acked.
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
    duplicated: int = 0
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
    def summary(self) -> str:
        if not self.judged:
            return f"{self.name}: not judged; no delivery to it was recorded"
        consumed = f"{self.consumed:,} consumed"
        if not self.faults:
            consumed += " once" if self.shared else " once, in order"
        faults = [f"{count:,} {_FAULTS[name].upper()}" for name, count in self.faults.items()]
        remarks = [f"{count:,} {text}" for name, text in _REMARKS.items() if (count := getattr(self, name))]
        text = f"{self.name}: {self.put:,} put, " + ", ".join([consumed, *faults])
        return f"{text} ({', '.join(remarks)})" if remarks else text


def fault_kinds(topics: Iterable[TopicResult], subscriptions: Iterable[SubscriptionResult]) -> set[str]:
    """The kinds of faults of all results."""
    found = {kind for topic in topics for kind in topic.faults}
    return found | {kind for each in subscriptions for kind in each.faults}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    files: int
    lines: int
    #: Files whose last line was truncated.
    torn: int
    #: Other lines that are missing or can't be parsed.
    unreadable: int
    #: Files whose client could not record everything.
    incomplete: int
    #: Messages that were sent, but for which it is not known whether they are stored, or at which offset.
    in_doubt: int
    topics: list[TopicResult]
    subscriptions: list[SubscriptionResult]
    #: At most the limit of each kind. The counts are exact.
    findings: list[Finding]

    @property
    def is_proved(self) -> bool:
        """There are no faults, and the records are complete."""
        return not (fault_kinds(self.topics, self.subscriptions) or self.unreadable or self.incomplete)

    @property
    def summaries(self) -> list[str]:
        faulty = [topic.summary for topic in self.topics if topic.faults]
        read_by = {(each.broker, each.topic_id) for each in self.subscriptions}
        unread = [each for each in self.topics if not each.faults and (each.broker, each.topic_id) not in read_by]
        return [
            *faulty,
            *(f"{each.summary}, read by no recorded subscription" for each in unread),
            *(each.summary for each in self.subscriptions),
            *self._warnings(),
        ]

    def _warnings(self) -> list[str]:
        found = []
        if self.in_doubt:
            found.append(f"in doubt: {self.in_doubt:,} messages were sent and not confirmed, or have no known offset")
        if self.unreadable:
            found.append(f"NOT PROVED: {self.unreadable:,} lines of the records are missing or can't be parsed")
        if self.incomplete:
            found.append(f"NOT PROVED: {self.incomplete:,} files are incomplete: their clients could not write them")
        return found
