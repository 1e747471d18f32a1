"""Random commands of every kind: whatever happens, the state is in order, and comes back the same."""

from __future__ import annotations

from typing import get_args

import pytest

from oncemq.engine import events
from oncemq.engine.engine import Engine
from tests.engine.invariants import check_invariants, comparable, engine_from, through_journal
from tests.engine.random_commands import LIMITS, RandomWorld
from tests.engine.world import EXTENT_BYTES, image_of

STEPS = 300


class Twin:
    """An engine that only sees the events, from the beginning or from a snapshot on."""

    def __init__(self, engine: Engine, seen: int) -> None:
        self.engine = engine
        self._seen = seen

    def catch_up(self, world: RandomWorld) -> None:
        for time_ms, event in world.log[self._seen :]:
            self.engine.apply(time_ms, through_journal(event))
        self._seen = len(world.log)


@pytest.mark.parametrize("seed", range(12))
def test_after_every_command_the_events_alone_lead_to_the_same_state(seed: int) -> None:
    world = RandomWorld(seed)
    twin = Twin(Engine("broker", 1, EXTENT_BYTES, LIMITS), 0)
    for _ in range(STEPS):
        world.step()
        twin.catch_up(world)
        check_invariants(world.engine, world.now_ms)
        check_invariants(twin.engine, world.now_ms)
        assert image_of(twin.engine) == world.image()


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_snapshot_at_any_boundary_and_the_events_behind_it_lead_to_the_same_state(seed: int) -> None:
    world = RandomWorld(seed)
    twins: list[Twin] = []
    for step in range(STEPS):
        world.step()
        if step % 10 == 0:
            twins.append(Twin(engine_from(world.engine, LIMITS), len(world.log)))
            check_invariants(twins[-1].engine, world.now_ms)
    expected = comparable(world.engine)
    for twin in twins:
        twin.catch_up(world)
        check_invariants(twin.engine, world.now_ms)
        assert comparable(twin.engine) == expected
        assert {key: set(each.pending) for key, each in twin.engine.state.patterns.items()} == {
            key: set(each.pending) for key, each in world.engine.state.patterns.items()
        }


@pytest.mark.parametrize("seed", range(200, 206))
def test_a_capture_shows_its_boundary_while_everything_goes_on(seed: int) -> None:
    world = RandomWorld(seed)
    for _ in range(150):
        world.step()
    expected = comparable(world.engine)
    capture = world.engine.capture()
    chunks = []
    while (chunk := capture.chunk(2)) is not None:
        chunks.append(chunk)
        _steps_beside_a_capture(world, 5)
    twin = Engine("broker", 1, EXTENT_BYTES, LIMITS)
    twin.restore(chunks)
    assert comparable(twin) == expected


def _steps_beside_a_capture(world: RandomWorld, count: int) -> None:
    """Without the checks, which take captures of their own."""
    world.checks = False
    for _ in range(count):
        world.step()
    world.checks = True


#: What has nothing to do with messages has tests of its own.
BESIDE = {events.LeasesRestarted, events.RegistryChanged, events.SessionEnded, events.SessionDeleted}


def test_chance_brings_about_every_kind_of_event() -> None:
    seen: set[type] = set()
    codes: set[str] = set()
    for seed in range(24):
        world = RandomWorld(seed)
        world.checks = False
        for _ in range(STEPS):
            world.step()
        seen |= {type(event) for _, event in world.log}
        codes |= {event.code for _, event in world.log if isinstance(event, events.Declined)}
    assert set(get_args(events.Event)) - seen <= BESIDE
    assert {"SUBSCRIPTION_FENCED", "SOUGHT", "LEASE_LOST", "UNSUPPORTED", "LIMIT_REACHED", "RANGE_GONE"} <= codes
