"""Random commands of every kind: invariants hold, and events and snapshots restore the same state."""

from __future__ import annotations

from typing import get_args

import pytest

from oncemq.engine import events
from oncemq.engine.engine import Engine
from tests.engine.invariants import check_invariants, comparable, engine_from, through_journal
from tests.engine.random_commands import LIMITS, RandomWorld
from tests.engine.world import EXTENT_BYTES, image_of

STEPS = 300


class Replica:
    """An engine that sees only the events, from the start or from a snapshot."""

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
    replica = Replica(Engine("broker", 1, EXTENT_BYTES, LIMITS), 0)
    for _ in range(STEPS):
        world.step()
        replica.catch_up(world)
        check_invariants(world.engine, world.now_ms)
        check_invariants(replica.engine, world.now_ms)
        assert image_of(replica.engine) == world.image()


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_snapshot_at_any_boundary_and_the_events_behind_it_lead_to_the_same_state(seed: int) -> None:
    world = RandomWorld(seed)
    replicas: list[Replica] = []
    for step in range(STEPS):
        world.step()
        if step % 10 == 0:
            replicas.append(Replica(engine_from(world.engine, LIMITS), len(world.log)))
            check_invariants(replicas[-1].engine, world.now_ms)
    expected = comparable(world.engine)
    for replica in replicas:
        replica.catch_up(world)
        check_invariants(replica.engine, world.now_ms)
        assert comparable(replica.engine) == expected
        assert {key: set(each.pending) for key, each in replica.engine.state.patterns.items()} == {
            key: set(each.pending) for key, each in world.engine.state.patterns.items()
        }


@pytest.mark.parametrize("seed", range(200, 206))
def test_a_capture_shows_its_boundary_while_the_engine_continues(seed: int) -> None:
    world = RandomWorld(seed)
    for _ in range(150):
        world.step()
    expected = comparable(world.engine)
    capture = world.engine.capture()
    chunks = []
    while (chunk := capture.chunk(2)) is not None:
        chunks.append(chunk)
        _steps_beside_a_capture(world, 5)
    replica = Engine("broker", 1, EXTENT_BYTES, LIMITS)
    replica.restore(chunks)
    assert comparable(replica) == expected


def _steps_beside_a_capture(world: RandomWorld, count: int) -> None:
    """Run without the checks, which take their own captures."""
    world.checks = False
    for _ in range(count):
        world.step()
    world.checks = True


#: Events that are not about messages have their own tests.
NOT_ABOUT_MESSAGES = {
    events.KeysRemoved,
    events.LeasesRestarted,
    events.RegistryChanged,
    events.SessionEnded,
    events.SessionDeleted,
}


def test_every_kind_of_event_occurs() -> None:
    seen: set[type] = set()
    codes: set[str] = set()
    for seed in range(24):
        world = RandomWorld(seed)
        world.checks = False
        for _ in range(STEPS):
            world.step()
        seen |= {type(event) for _, event in world.log}
        codes |= {event.code for _, event in world.log if isinstance(event, events.Declined)}
    assert set(get_args(events.Event)) - seen <= NOT_ABOUT_MESSAGES
    assert {"SUBSCRIPTION_FENCED", "SOUGHT", "LEASE_LOST", "UNSUPPORTED", "LIMIT_REACHED", "RANGE_GONE"} <= codes
