"""What the diaries of a crash campaign prove: each acknowledged message once, in order, at every subscription."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tests.acceptance.workers import Plan

#: More of them say nothing new.
PROBLEMS_MAX = 50


class Verdict(msgspec.Struct, frozen=True):
    problems: list[str]
    announced: int
    acknowledged: int
    stored: int
    deliveries: int
    redeliveries: int
    lost: int = 0
    doubled: int = 0
    reordered: int = 0


def entries(path: Path) -> Iterator[list[str]]:
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        yield line.split(" ")


class Evidence:
    def __init__(self, folder: Path, ends: Mapping[str, int]) -> None:
        self._folder = folder
        self._ends = ends
        self._counts: Counter[str] = Counter()
        self.problems: list[str] = []
        #: Topic → id → offset, or -1 where the answer did not say.
        self._done: dict[str, dict[str, int]] = defaultdict(dict)
        self._announced: dict[str, str] = {}
        #: Topic → the ids by offset, as the first consumer saw them.
        self._stored: dict[str, list[str]] = {}

    def judge(self, publishers: Sequence[Plan], consumers: Sequence[Plan]) -> Verdict:
        for plan in publishers:
            self._read_publisher(plan)
        for plan in consumers:
            self._read_consumer(plan)
        for topic in self._ends:
            self._check_topic(topic)
        return Verdict(
            self.problems[:PROBLEMS_MAX],
            len(self._announced),
            sum(map(len, self._done.values())),
            sum(map(len, self._stored.values())),
            self._counts["deliveries"],
            self._counts["redeliveries"],
            self._counts["lost"],
            self._counts["doubled"],
            self._counts["reordered"],
        )

    def _read_publisher(self, plan: Plan) -> None:
        for entry in entries(self._folder / f"{plan.name}.diary"):
            match entry:
                case ["will", topic, message_id]:
                    self._announced[message_id] = topic
                case ["done", topic, message_id, offset]:
                    self._done[topic][message_id] = int(offset)
                case _:
                    self.problems.append(f"{plan.name}: {' '.join(entry)}")

    def _read_consumer(self, plan: Plan) -> None:
        """Within a life offsets rise by one; a new life may go back, but not behind what was acked."""
        seen: list[str] = []
        acked = 0
        expected: int | None = None
        for entry in entries(self._folder / f"{plan.name}.diary"):
            match entry:
                case ["life", _]:
                    expected = None
                case ["acked", upto]:
                    acked = max(acked, int(upto))
                case ["got", offset_text, message_id]:
                    offset = int(offset_text)
                    self._counts["deliveries"] += 1
                    if expected is None and not acked <= offset <= len(seen):
                        self.problems.append(f"{plan.name}: began at {offset}; acked {acked}, seen {len(seen)}")
                    if expected is not None and offset != expected:
                        self.problems.append(f"{plan.name}: got {offset} where {expected} was next")
                    self._note(plan, seen, offset, message_id)
                    expected = offset + 1
                case _:
                    self.problems.append(f"{plan.name}: {' '.join(entry)}")
        self._compare(plan, seen)

    def _note(self, plan: Plan, seen: list[str], offset: int, message_id: str) -> None:
        if offset < len(seen):
            self._counts["redeliveries"] += 1
            if seen[offset] != message_id:
                self.problems.append(f"{plan.name}: offset {offset} was {seen[offset]}, then {message_id}")
        elif offset == len(seen):
            seen.append(message_id)

    def _compare(self, plan: Plan, seen: list[str]) -> None:
        topic = plan.topics[0]
        if len(seen) != self._ends[topic]:
            self.problems.append(f"{plan.name}: {len(seen)} messages; topic {topic} has {self._ends[topic]}")
        if self._stored.setdefault(topic, seen) != seen:
            self.problems.append(f"{plan.name}: saw other messages than the topic's first consumer")

    def _check_topic(self, topic: str) -> None:
        stored = self._stored.get(topic, [])
        places = {message_id: offset for offset, message_id in enumerate(stored)}
        for message_id, count in Counter(stored).items():
            if count > 1:
                self._counts["doubled"] += 1
                self.problems.append(f"{topic}: {message_id} is there {count} times")
            if self._announced.get(message_id) != topic:
                self.problems.append(f"{topic}: {message_id} was never put there")
        for message_id, offset in self._done[topic].items():
            if message_id not in places:
                self._counts["lost"] += 1
                self.problems.append(f"{topic}: {message_id} was acknowledged and is lost")
            elif offset not in (-1, places[message_id]):
                self.problems.append(f"{topic}: {message_id} lies at {places[message_id]}, not at {offset}")
        self._check_order(topic, stored)

    def _check_order(self, topic: str, stored: Sequence[str]) -> None:
        last: dict[str, int] = {}
        for message_id in stored:
            stream, _, number = message_id.rpartition(".")
            if last.get(stream, -1) >= int(number):
                self._counts["reordered"] += 1
                self.problems.append(f"{topic}: {message_id} came after number {last[stream]} of its stream")
            last[stream] = int(number)
