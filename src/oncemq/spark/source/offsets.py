"""The offsets of a streaming query, in the format of Spark's checkpoint:

    {"broker": "5f2a…", "topics": {"orders": [TOPIC_ID, OFFSET], …}, "from": {"orders": OFFSET}}

Each offset is that of the first message that was not read. The ids identify the broker and the topics: a topic that
was deleted and created again has another id, and its messages are not those that the checkpoint refers to.

Spark stores where a micro-batch ends; it starts where the previous one ended. The first micro-batch has no previous
one, and a topic that joins later is not in the previous one. `from` stores where such topics start, so that a replay
reads the same messages.
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
    #: The start offsets of the topics that are new in the micro-batch that ends here.
    starts: Mapping[str, int] = {}
    #: These are the offsets before the first micro-batch. Spark does not store them.
    is_initial: bool = False

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "broker": self.broker,
            "topics": {name: [at.topic_id, at.offset] for name, at in sorted(self.topics.items())},
        }
        if self.starts:
            found["from"] = dict(sorted(self.starts.items()))
        if self.is_initial:
            found["initial"] = True
        return found


def parse_offsets(raw: Mapping[str, Any] | str) -> Offsets:
    """Parse offsets that Spark stored: a mapping, or its JSON."""
    if isinstance(raw, str):
        raw = json.loads(raw)
    assert not isinstance(raw, str)
    topics = {name: Position(*at) for name, at in raw["topics"].items()}
    return Offsets(raw["broker"], topics, raw.get("from", {}), bool(raw.get("initial")))


def lag(reached: Offsets, latest: Offsets) -> int:
    """The number of messages that are stored and not yet read."""
    return sum(
        at.offset - reached.topics[name].offset if name in reached.topics else at.offset
        for name, at in latest.topics.items()
    )
