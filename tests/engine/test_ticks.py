"""The events of a tick fit the space that is reserved for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncemq.engine.decide import ticks as ticks_module
from oncemq.engine.decide.ticks import EXPIRED_PER_TICK_MAX, TICK_BYTES_MAX
from oncemq.engine.events import (
    Event,
    Expired,
    KeysExpired,
    LeasesExpired,
    MembersLeft,
    PatternUnsubscribed,
    Released,
    SessionEnded,
    StagesExpired,
    SubscriptionExpired,
    Trimmed,
    Unsubscribed,
)
from oncemq.protocol import commands
from oncemq.protocol.limits import KEY_BYTES_MAX, NAME_BYTES_MAX, Limits
from tests.engine.invariants import check, event_bytes
from tests.engine.world import World, put

DAY_MS = 24 * 3600 * 1000
MANY = EXPIRED_PER_TICK_MAX + 2


def long(number: int, size: int = NAME_BYTES_MAX) -> str:
    return f"{number}".rjust(size, "x")


def make_everything_due(world: World) -> None:
    """Everything is due within a day, with the longest names."""
    for number in range(MANY):
        world.hello(f"anonymous {number}", anonymous=True)
        world.send(commands.Keyed("web", f"{number}", commands.Void()))
        world.do(commands.CreateTopic(f"old {number}", retain_ms=1_000))
        world.do(commands.CreateTopic(f"large {number}", retain_bytes=10))
        world.do(commands.Subscribe(f"brief {number}", "a"))
        for topic in (f"old {number}", f"large {number}"):
            world.do(put(topic))
        for _ in range(4):
            world.do(put(f"brief {number}", ttl_ms=1_000))
            world.do(put(f"brief {number}", due_ms=2_000))
        world.do(commands.Stage(long(number, KEY_BYTES_MAX), "old 1", "w", 0, commands.Envelope(1, 10, 0)))
    for number in range(8):
        for topic in (f"idle {number}", long(number, NAME_BYTES_MAX - 2) + ".*"):
            world.do(commands.Subscribe(topic, long(number), idle_ms=1_000))
            world.do(commands.Open(topic, long(number)))
        _make_tasks_due(world, f"work {number}")
        _fill(world, f"full {number}", long(number))


def _make_tasks_due(world: World, topic: str) -> None:
    group = long(0)
    world.do(commands.Subscribe(topic, group, sharing=commands.Sharing(lease_ms=1_000)))
    opened = world.open(topic, group)
    for number in range(60):
        world.do(put(topic, 2))
        for take in (1, 2):
            world.send(commands.Take(opened.topic_id, group, opened.epoch, long(number), take, 1, 1000))


def _fill(world: World, topic: str, subscriber: str) -> None:
    world.do(commands.CreateTopic(topic, quota_bytes=150, overflow=commands.EXPIRE))
    world.do(commands.Subscribe(topic, subscriber))
    for _ in range(2):
        world.do(put(topic))


def ticks_of(world: World) -> Iterator[list[Event]]:
    """Return a count within sensible limits."""
    for _ in range(1_000):
        next_ms = world.engine.next_tick_ms()
        if next_ms is None or next_ms > world.now_ms:
            return
        yield world.tick()
    raise AssertionError("ticks are asked for although nothing is due")


def test_each_tick_fits_its_reserved_space() -> None:
    world = World(Limits(session_idle_ms=DAY_MS, stage_ms=DAY_MS, key_ms=DAY_MS))
    make_everything_due(world)
    seen: list[Event] = []
    sizes: list[int] = []
    for _ in range(2):
        world.now_ms += 2 * DAY_MS
        for events in ticks_of(world):
            seen += events
            sizes.append(sum(map(event_bytes, events)))
    assert max(sizes) <= TICK_BYTES_MAX
    assert max(sizes) > TICK_BYTES_MAX / 2, "the room is not kept in vain"
    kinds = {type(event) for event in seen}
    assert {Released, Expired, SubscriptionExpired, LeasesExpired, MembersLeft} <= kinds
    assert {SessionEnded, StagesExpired, KeysExpired, Trimmed, Unsubscribed, PatternUnsubscribed} <= kinds
    check(world)


def test_after_a_replay_processed_entries_are_not_due_again() -> None:
    world = World()
    for number in range(1_500):
        world.do(put("orders", create=True, due_ms=world.now_ms + 1))
        world.do(commands.Stage(f"{number}", "orders", "w", number, commands.Envelope(1, 10, 0)))
        world.do(commands.Abort((f"{number}",)))
        world.do(commands.Subscribe(f"topic {number}", "workers", sharing=commands.Sharing(lease_ms=100)))
        world.do(commands.Unsubscribe(f"topic {number}", "workers"))
        world.tick(1)
    replica = world.replayed()
    next_ms = replica.next_tick_ms()
    assert next_ms is None or next_ms > world.now_ms


def test_retention_deletes_many_batches_over_several_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks_module, "TRIMMED_PER_TICK_MAX", 10)
    world = World()
    world.do(commands.CreateTopic("kept", retain_ms=1_000))
    for _ in range(35):
        world.do(put("kept"))
    topic = world.engine.state.topics["kept"]
    world.now_ms += 1_000
    lengths = []
    while len(topic.index):
        world.tick(0)
        lengths.append(len(topic.index))
    assert lengths == [25, 15, 5, 0]


def test_a_smaller_quota_deletes_many_batches_over_several_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks_module, "TRIMMED_PER_TICK_MAX", 10)
    world = World()
    world.do(commands.CreateTopic("kept", retain_bytes=1 << 30, quota_bytes=1 << 30, overflow=commands.DROP))
    for _ in range(35):
        world.do(put("kept"))
    topic = world.engine.state.topics["kept"]
    size = topic.stored_bytes // 35
    world.do(commands.CreateTopic("kept", 0, 1 << 30, 10 * size, commands.DROP, True))
    lengths = []
    while topic.is_over_quota:
        world.tick(0)
        lengths.append(len(topic.index))
    assert lengths == [25, 15, 10]
