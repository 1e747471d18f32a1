"""A stream's offsets, as they stand in Spark's checkpoint:

    {"broker": "5f2a…", "topics": {"orders": [TOPIC_ID, OFFSET], …}, "from": {"orders": OFFSET}}

Each offset is the first that was not read. The ids say which broker and which topic is meant: a topic that was
deleted and made again has another id, and its messages are not those that the checkpoint speaks of.

Spark keeps where a batch ends; where it starts is where the one before ended. The first batch has none before it, and
a topic that joins later was not in it: `from` says where such topics start, so that a replay reads the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec


class Position(msgspec.Struct, frozen=True, gc=False):
    topic_id: int
    offset: int


class Offsets(msgspec.Struct, frozen=True):
    broker: str
    topics: Mapping[str, Position]
    #: Of the topics that are new in the batch which ends here: where they start.
    begins: Mapping[str, int] = {}
    #: Before the first batch. Spark does not keep this one.
    is_initial: bool = False

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "broker": self.broker,
            "topics": {name: [at.topic_id, at.offset] for name, at in sorted(self.topics.items())},
        }
        if self.begins:
            found["from"] = dict(sorted(self.begins.items()))
        if self.is_initial:
            found["initial"] = True
        return found


def offsets_of(raw: Mapping[str, Any] | str) -> Offsets:
    """Out of what Spark kept: a mapping, or its JSON."""
    if isinstance(raw, str):
        raw = json.loads(raw)
    assert not isinstance(raw, str)
    topics = {name: Position(*at) for name, at in raw["topics"].items()}
    return Offsets(raw["broker"], topics, raw.get("from", {}), bool(raw.get("initial")))


def lag_of(reached: Offsets, latest: Offsets) -> int:
    """Messages that are stored and not yet read."""
    return sum(
        at.offset - reached.topics[name].offset if name in reached.topics else at.offset
        for name, at in latest.topics.items()
    )
