"""What version 1 wrote is read for ever: events and a snapshot, as they were written then.

A change that breaks this needs a new format version, and a way to read the old one."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import msgspec

from oncemq.engine.engine import Engine
from oncemq.engine.events import Event
from oncemq.limits import Limits
from tests.engine.test_capture import comparable, random_world, restored
from tests.engine.world import EXTENT_BYTES, image_of

GOLDEN = Path(__file__).parent / "golden" / "state-1.json"

_decode = msgspec.msgpack.Decoder(list[Event]).decode
_encode = msgspec.msgpack.Encoder().encode


def write() -> None:
    """Only for a new format version."""
    world, _ = random_world(7, 600)
    capture = world.engine.capture()
    golden = {
        "groups": [[time_ms, base64.b64encode(_encode([event])).decode()] for time_ms, event in world.log],
        "snapshot": [base64.b64encode(chunk).decode() for chunk in iter(capture.chunk, None)],
    }
    GOLDEN.write_text(json.dumps(golden, indent=0))


def replayed(groups: list[tuple[int, str]]) -> Engine:
    engine = Engine("broker", 1, EXTENT_BYTES, Limits(stage_ms=500, key_ms=700))
    for time_ms, events in groups:
        for event in _decode(base64.b64decode(events)):
            engine.apply(time_ms, event)
    return engine


def test_events_and_snapshot_of_version_1_are_read_and_agree() -> None:
    golden = json.loads(GOLDEN.read_text())
    from_events = replayed(golden["groups"])
    from_snapshot = restored([base64.b64decode(chunk) for chunk in golden["snapshot"]])
    assert comparable(image_of(from_events)) == comparable(image_of(from_snapshot))
    assert from_events.state.live == from_snapshot.state.live


def test_events_are_written_as_version_1_wrote_them() -> None:
    golden = json.loads(GOLDEN.read_text())
    for _, events in golden["groups"]:
        raw = base64.b64decode(events)
        assert _encode(_decode(raw)) == raw


def test_the_golden_file_has_most_kinds_of_events() -> None:
    golden = json.loads(GOLDEN.read_text())
    kinds = {type(event) for _, events in golden["groups"] for event in _decode(base64.b64decode(events))}
    assert len(kinds) >= 15
