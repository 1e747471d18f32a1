"""Events and snapshots of every version can be read: golden files contain them as they were written.

A change that breaks this needs a new format version, and code that reads the old one. A new version needs its own
golden file: `python -m tests.engine.test_golden`."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from oncemq.engine.engine import Engine
from oncemq.engine.events import Committed, Event
from oncemq.engine.snapshot import capture as capture_module
from oncemq.engine.snapshot.capture import PatternImage, SessionImage, TopicImage
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import CommitReply
from oncemq.protocol.version import JOURNAL_VERSION, SNAPSHOT_VERSION
from tests.engine.random_history import LIMITS, fixed_history, random_history
from tests.engine.test_capture import comparable
from tests.engine.world import EXTENT_BYTES, image_of

FOLDER = Path(__file__).parent / "golden"
VERSIONS = range(1, SNAPSHOT_VERSION + 1)
#: A history in which every kind of event occurs.
SEED = 16
COMMANDS = 500

_decode = msgspec.msgpack.Decoder(list[Event]).decode
_decode_images = msgspec.msgpack.Decoder(list[capture_module.Image]).decode
_encode = msgspec.msgpack.Encoder().encode


class Golden(msgspec.Struct):
    """The (time, events) of each group, and a snapshot of the final state."""

    groups: list[tuple[int, bytes]]
    snapshot: list[bytes]


def read(version: int) -> Golden:
    found: Any = json.loads((FOLDER / f"state-{version}.json").read_text())
    groups = [(time_ms, base64.b64decode(events)) for time_ms, events in found["groups"]]
    return Golden(groups, [base64.b64decode(chunk) for chunk in found["snapshot"]])


def write() -> None:
    """Write a golden file. Do this only for a new format version."""
    world = random_history(SEED, COMMANDS)
    fixed_history(world)
    capture = world.engine.capture()
    golden = {
        "groups": [[time_ms, base64.b64encode(_encode([event])).decode()] for time_ms, event in world.log],
        "snapshot": [base64.b64encode(chunk).decode() for chunk in iter(capture.chunk, None)],
    }
    (FOLDER / f"state-{SNAPSHOT_VERSION}.json").write_text(json.dumps(golden, indent=0) + "\n")


def _engine(version: int) -> Engine:
    limits = Limits(stage_ms=500, key_ms=700) if version == 1 else LIMITS
    return Engine("broker", 1, EXTENT_BYTES, limits)


def replayed(version: int) -> Engine:
    engine = _engine(version)
    for time_ms, events in read(version).groups:
        for event in _decode(events):
            engine.apply(time_ms, event)
    return engine


def restored(version: int) -> Engine:
    engine = _engine(version)
    engine.restore(read(version).snapshot)
    return engine


def test_events_and_snapshots_have_a_version_in_common() -> None:
    """Events and snapshots have the same version, which numbers the golden files."""
    assert JOURNAL_VERSION == SNAPSHOT_VERSION


@pytest.mark.parametrize("version", VERSIONS)
def test_events_and_snapshot_of_every_version_are_read_and_agree(version: int) -> None:
    from_events, from_snapshot = replayed(version), restored(version)
    assert comparable(image_of(from_events)) == comparable(image_of(from_snapshot))
    assert from_events.state.live == from_snapshot.state.live
    assert from_events.state.unpublished == from_snapshot.state.unpublished
    assert from_events.state.subscriptions == from_snapshot.state.subscriptions


@pytest.mark.parametrize("version", VERSIONS)
def test_a_state_of_every_version_is_written_as_this_one(version: int) -> None:
    engine = replayed(version)
    capture = engine.capture()
    replica = _engine(version)
    replica.restore(list(iter(capture.chunk, None)))
    assert comparable(image_of(replica)) == comparable(image_of(engine))


def test_events_are_written_as_this_version_wrote_them() -> None:
    for _, events in read(JOURNAL_VERSION).groups:
        assert _encode(_decode(events)) == events


def test_a_snapshot_is_written_as_this_version_wrote_it() -> None:
    capture = replayed(SNAPSHOT_VERSION).capture()
    assert list(iter(capture.chunk, None)) == read(SNAPSHOT_VERSION).snapshot


@pytest.mark.parametrize("version", VERSIONS)
def test_events_have_not_lost_fields(version: int) -> None:
    """Fields may be added at the end, but not removed."""
    for _, events in read(version).groups:
        for was, is_now in zip(msgspec.msgpack.decode(events), _decode(events), strict=True):
            assert msgspec.msgpack.decode(_encode(is_now))[: len(was)] == was


def test_the_golden_file_has_every_kind_of_event() -> None:
    kinds = {type(event) for _, events in read(JOURNAL_VERSION).groups for event in _decode(events)}
    assert kinds == set(get_args(Event))


def test_the_golden_file_has_a_commit_to_several_topics() -> None:
    events = [event for _, group in read(JOURNAL_VERSION).groups for event in _decode(group)]
    commits = [event for event in events if isinstance(event, Committed)]
    assert any(len(event.parts) > 1 and not event.writer for event in commits)
    assert any(event.topic_id and event.count for event in commits)


def test_the_golden_snapshot_contains_every_kind_of_state() -> None:
    images = [image for chunk in read(SNAPSHOT_VERSION).snapshot for image in _decode_images(chunk)]
    verdicts = [verdict for image in images if isinstance(image, SessionImage) for *_, verdict in image.verdicts]
    assert any(isinstance(verdict, CommitReply) and verdict.parts for verdict in verdicts)
    assert {type(image) for image in images} == set(get_args(capture_module.Image))
    topics = [image for image in images if isinstance(image, TopicImage)]
    for field in ("expires", "keys", "keyed_from", "quota_bytes", "delayed", "more", "expired_names", "idle", "schema"):
        assert any(getattr(topic, field) for topic in topics), field
    assert any(image.idle_ms for image in images if isinstance(image, PatternImage))
    assert any(sought_epoch for topic in topics for _, sought_epoch, _, _ in topic.more)
    assert any(dropped for topic in topics for _, _, dropped, _ in topic.more)
    shared = [entry for topic in topics for *_, entry in topic.more if entry is not None]
    for field in ("done", "leases", "members", "returned", "key_offsets", "blocked_offsets"):
        assert any(getattr(entry, field) for entry in shared), field


if __name__ == "__main__":
    write()
