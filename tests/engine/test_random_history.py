"""Every kind of event: the same events lead to the same state, also from a snapshot at any time."""

from __future__ import annotations

import msgspec
import pytest

from oncemq.engine.engine import Engine
from tests.engine.random_history import LIMITS, History
from tests.engine.test_capture import comparable
from tests.engine.world import EXTENT_BYTES, image_of

SEEDS = range(20)


def restored(chunks: list[bytes]) -> Engine:
    engine = Engine("broker", 1, EXTENT_BYTES, LIMITS)
    engine.restore(chunks)
    return engine


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_events_end_in_the_same_state(seed: int) -> None:
    world = History(seed).run(300)
    replica = world.replayed()
    assert image_of(replica) == world.image()
    assert replica.state.live == world.engine.state.live


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_shows_its_boundary_whatever_happens_meanwhile(seed: int) -> None:
    history = History(seed)
    history.run(200)
    expected = comparable(history.world.image())
    capture = history.world.engine.capture()
    chunks = []
    while (chunk := capture.chunk(2)) is not None:
        chunks.append(chunk)
        history.run(3)
    found = [image for chunk in chunks for image in msgspec.msgpack.decode(chunk)]
    assert comparable(found) == expected
    assert comparable(image_of(restored(chunks))) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_events_after_a_snapshot_continue_from_it(seed: int) -> None:
    history = History(seed)
    history.run(150)
    capture = history.world.engine.capture()
    boundary = len(history.world.log)
    history.run(150)
    replica = restored(list(iter(capture.chunk, None)))
    for time_ms, event in history.world.log[boundary:]:
        replica.apply(time_ms, event)
    assert comparable(image_of(replica)) == comparable(history.world.image())
    assert replica.state.live == history.world.engine.state.live
