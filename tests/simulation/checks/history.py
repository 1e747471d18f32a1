"""All attempts to store messages, and all messages that were observed.

Every message has a unique value, so that a value identifies its attempt. As in Jepsen, an attempt is acknowledged or
refused, or its outcome is unknown. Violations are

    lost          acknowledged, but not stored
    duplicated    one value at two offsets
    unexpected    a value that was never put, or whose attempt was refused, voided or aborted
    inconsistent  two replies that contradict each other
    out of order  the messages of a session in a different order than it put them
    too early     a delayed message before its due time
    torn          stored on one topic of a commit, but not on another
"""

from __future__ import annotations

from oncemq.protocol.message import Message
from oncemq.protocol.replies import CommitReply, PutReply
from tests.simulation.environment.world import Violation, World


class Attempt:
    """Messages that get consecutive offsets, all or none: the batch of a put, or the stages of a commit."""

    __slots__ = (
        "acked",
        "dead",
        "done",
        "due_ms",
        "group",
        "label",
        "open",
        "place",
        "together",
        "topic",
        "ttl_ms",
        "values",
    )

    def __init__(self, label: str, topic: str, values: list[bytes], group: tuple[str, int] | None = None) -> None:
        self.label = label
        self.topic = topic
        self.values = values
        #: (writer, batch): at most one attempt of a group takes effect.
        self.group = group
        #: All attempts of the same commit, on all topics, including this one.
        self.together: tuple[Attempt, ...] = (self,)
        #: (topic id, first offset), once a message was observed.
        self.place: tuple[int, int] | None = None
        self.acked: PutReply | CommitReply | None = None
        #: Number of tries (session and number, or key) that are undecided, successful and failed.
        self.open = 0
        self.done = 0
        self.dead = 0
        #: Due time and time to live; 0 = none.
        self.due_ms = 0
        self.ttl_ms = 0

    @property
    def may_appear(self) -> bool:
        return self.open > 0 or self.done > 0


class History:
    def __init__(self, world: World) -> None:
        self._world = world
        self.attempts: list[Attempt] = []
        self._by_value: dict[bytes, tuple[Attempt, int]] = {}
        #: topic id → offset → (value, time)
        self.log: dict[int, dict[int, tuple[bytes, int]]] = {}
        #: (writer, batch) → the attempt that took effect
        self._effects: dict[tuple[str, int], Attempt] = {}

    def attempt(self, label: str, topic: str, values: list[bytes], group: tuple[str, int] | None = None) -> Attempt:
        attempt = Attempt(label, topic, values, group)
        self.attempts.append(attempt)
        self.add_values(attempt, values, 0)
        return attempt

    @staticmethod
    def together(attempts: list[Attempt]) -> tuple[Attempt, ...]:
        """Mark attempts that take effect together or not at all."""
        for attempt in attempts:
            attempt.together = tuple(attempts)
        return tuple(attempts)

    def add_values(self, attempt: Attempt, values: list[bytes], start: int) -> None:
        for index, value in enumerate(values, start):
            self._by_value[value] = (attempt, index)

    # Tries.

    def acknowledged(self, attempt: Attempt, reply: PutReply | CommitReply) -> None:
        if attempt.acked is not None and attempt.acked != reply:
            raise Violation(f"inconsistent: {attempt.label} was answered by {attempt.acked} and by {reply}")
        if reply.count != len(attempt.values):
            raise Violation(f"inconsistent: {attempt.label} has {len(attempt.values)} messages, answered by {reply}")
        attempt.acked = reply
        if reply.first_offset < 0:
            if not attempt.due_ms:
                raise Violation(f"inconsistent: {attempt.label} is due at once, and was answered by {reply}")
            return
        for index, value in enumerate(attempt.values):
            self.observe(reply.topic_id, reply.first_offset + index, value, reply.time_ms, "the reply")

    # Observations.

    def observe_message(self, message: Message, who: str) -> None:
        self.observe(message.topic_id, message.offset, message.value, message.timestamp_ms, who)

    def observe(self, topic_id: int, offset: int, value: bytes, time_ms: int, who: str) -> None:
        log = self.log.setdefault(topic_id, {})
        known = log.get(offset)
        if known is not None:
            if known[0] != value or known[1] != time_ms:
                raise Violation(
                    f"inconsistent: {who} saw {value!r} of time {time_ms} at {topic_id:x}:{offset}, "
                    f"and others saw {known[0]!r} of time {known[1]}"
                )
            return
        found = self._by_value.get(value)
        if found is None:
            raise Violation(f"unexpected: {who} saw {value!r} at {topic_id:x}:{offset}, but it was never put")
        self._place(*found, topic_id, offset, value, who)
        if time_ms < found[0].due_ms:
            raise Violation(f"too early: {found[0].label} is due at {found[0].due_ms} and was stored at {time_ms}")
        self._check_times(log, topic_id, offset, time_ms)
        log[offset] = (value, time_ms)

    def _place(self, attempt: Attempt, index: int, topic_id: int, offset: int, value: bytes, who: str) -> None:
        place = (topic_id, offset - index)
        if attempt.place is not None and attempt.place != place:
            raise Violation(
                f"duplicated: {who} saw {value!r} at {topic_id:x}:{offset}, and {attempt.label} "
                f"is at {attempt.place[0]:x}:{attempt.place[1]} already"
            )
        if not attempt.may_appear:
            raise Violation(
                f"unexpected: {who} saw {value!r} at {topic_id:x}:{offset}; {attempt.label} can't have happened"
            )
        attempt.place = place
        other = self._effects.setdefault(attempt.group, attempt) if attempt.group is not None else attempt
        if other not in attempt.together:
            raise Violation(f"duplicated: {attempt.label} and {other.label} both took effect")

    def attempt_at(self, topic_id: int, offset: int) -> Attempt | None:
        """Return the attempt of the message at an offset, if it was observed."""
        known = self.log.get(topic_id, {}).get(offset)
        return self._by_value[known[0]][0] if known is not None else None

    def effect(self, group: tuple[str, int]) -> Attempt | None:
        """Return the attempt of a group that took effect, if it was observed."""
        return self._effects.get(group)

    @staticmethod
    def _check_times(log: dict[int, tuple[bytes, int]], topic_id: int, offset: int, time_ms: int) -> None:
        before, behind = log.get(offset - 1), log.get(offset + 1)
        if (before is not None and before[1] > time_ms) or (behind is not None and behind[1] < time_ms):
            raise Violation(f"inconsistent: time falls context {topic_id:x}:{offset}")

    # At the end.

    def check_outcomes(self) -> None:
        for attempt in self.attempts:
            if attempt.place is not None and not attempt.may_appear:
                raise Violation(f"unexpected: {attempt.label} was refused or voided, and is at {attempt.place}")

    def check_together(self, known: set[str]) -> None:
        """Check on completely known topics that a commit with an observed part has all of its parts."""
        for attempt in self.attempts:
            if attempt.place is None and attempt.topic in known:
                seen = [other for other in attempt.together if other.place is not None]
                if seen:
                    raise Violation(f"torn: {attempt.label} is in '{seen[0].topic}', and not in '{attempt.topic}'")

    def check_order(self, label: str, attempts: list[Attempt]) -> None:
        """Check the order of the puts of one session."""
        last: dict[int, tuple[int, Attempt]] = {}
        for attempt in attempts:
            if attempt.place is None:
                continue
            topic_id, offset = attempt.place
            before = last.get(topic_id)
            if before is not None and before[0] >= offset:
                raise Violation(f"out of order: {label} put {before[1].label} before {attempt.label}")
            last[topic_id] = (offset, attempt)
