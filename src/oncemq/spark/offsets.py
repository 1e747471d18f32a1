"""A stream's offsets, as they stand in Spark's checkpoint:

    {"broker": "5f2a…", "topics": {"orders": [TOPIC_ID, OFFSET], …}}

Each offset is the first that was not read. The ids say which broker and which topic is meant: a topic that was
deleted and made again has another id, and its messages are not those that the checkpoint speaks of.
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

    def as_json(self) -> dict[str, Any]:
        return {
            "broker": self.broker,
            "topics": {name: [at.topic_id, at.offset] for name, at in sorted(self.topics.items())},
        }


def offsets_of(raw: Mapping[str, Any] | str) -> Offsets:
    """Out of what Spark kept: a mapping, or its JSON."""
    if isinstance(raw, str):
        raw = json.loads(raw)
    assert not isinstance(raw, str)
    return Offsets(raw["broker"], {name: Position(*at) for name, at in raw["topics"].items()})


def lag_of(reached: Offsets, latest: Offsets) -> int:
    """Messages that are stored and not yet read."""
    return sum(
        at.offset - reached.topics[name].offset if name in reached.topics else at.offset
        for name, at in latest.topics.items()
    )
