"""Snapshots show one group boundary, and events and snapshots restore the same state."""

from __future__ import annotations

import random

import msgspec

from oncemq.engine.engine import Engine
from oncemq.engine.record_locator import RecordLocator
from oncemq.engine.snapshot.capture import CHUNK_INDEX_BYTES
from oncemq.journal.contract import RecordHead
from oncemq.protocol.commands import (
    START_EARLIEST,
    START_NEW,
    Abort,
    Ack,
    Commit,
    CreateTopic,
    DeleteTopic,
    Envelope,
    Keyed,
    Open,
    Operation,
    RegistrySet,
    Stage,
    Subscribe,
    Unsubscribe,
)
from oncemq.protocol.limits import Limits
from tests.engine.world import EXTENT_BYTES, World, image_of, put

NAMES = ["a", "b", "c"]


def random_command(world: World, rng: random.Random) -> None:
    name, session = rng.choice(NAMES), rng.choice(NAMES)
    operations: list[Operation] = [
        put(name, rng.randint(1, 3), rng.randint(1, 200), rng.random() < 0.3),
        put(name),
        Subscribe(name, session, rng.choice([START_NEW, START_EARLIEST])),
        Unsubscribe(name, session),
        CreateTopic(name, 0, rng.choice([0, 300])),
        DeleteTopic(name),
        Stage(f"s{rng.randint(0, 3)}", name, "w", rng.randint(0, 5), Envelope(1, 10, 0)),
        Commit("w", rng.randint(0, 5), name, ((f"s{rng.randint(0, 3)}", 1),)),
        Abort((f"s{rng.randint(0, 3)}",)),
        RegistrySet(name, session, rng.choice([None, b"x"])),
        Open(name, session),
    ]
    operation = rng.choice(operations)
    if rng.random() < 0.2:
        world.send(Keyed("web", f"key{rng.randint(0, 9)}", operation))
    else:
        world.do(operation, session)
    topic = world.engine.state.topics.get(name)
    if topic is not None and (subscription := topic.subscriptions.get(session)):
        upto = rng.randint(0, topic.next_offset)
        world.send(Ack(topic.id, session, subscription.epoch, upto))
    if rng.random() < 0.1:
        world.tick(rng.randint(0, 300))


def random_world(seed: int, commands: int) -> tuple[World, random.Random]:
    world, rng = World(Limits(stage_ms=500, key_ms=700)), random.Random(seed)
    for _ in range(commands):
        random_command(world, rng)
    return world, rng


def restored(chunks: list[bytes]) -> Engine:
    engine = Engine("broker", 1, EXTENT_BYTES, Limits(stage_ms=500, key_ms=700))
    engine.restore(chunks)
    return engine


def comparable(images: list[object]) -> list[str]:
    return sorted(map(repr, images))


def test_the_same_events_end_in_the_same_state() -> None:
    for seed in range(30):
        world, _ = random_world(seed, 200)
        replica = world.replayed()
        assert image_of(replica) == world.image()
        assert replica.state.live == world.engine.state.live


def test_a_snapshot_brings_the_state_back() -> None:
    for seed in range(30):
        world, _ = random_world(seed, 200)
        capture = world.engine.capture()
        replica = restored(list(iter(capture.chunk, None)))
        assert comparable(image_of(replica)) == comparable(world.image())
        assert replica.state.live == world.engine.state.live
        assert replica.state.subscriptions == world.engine.state.subscriptions


def test_a_capture_shows_its_boundary_whatever_happens_meanwhile() -> None:
    for seed in range(30):
        world, rng = random_world(seed, 150)
        expected = comparable(world.image())
        capture = world.engine.capture()
        chunks = []
        while (chunk := capture.chunk(2)) is not None:
            chunks.append(chunk)
            for _ in range(3):
                random_command(world, rng)
        found = [image for chunk in chunks for image in msgspec.msgpack.decode(chunk)]
        assert comparable(found) == expected


def test_events_after_the_boundary_continue_from_the_snapshot() -> None:
    for seed in range(20):
        world, rng = random_world(seed, 100)
        capture = world.engine.capture()
        boundary = len(world.log)
        for _ in range(100):
            random_command(world, rng)
        replica = restored(list(iter(capture.chunk, None)))
        for time_ms, event in world.log[boundary:]:
            replica.apply(time_ms, event)
        assert comparable(image_of(replica)) == comparable(world.image())


def move(world: World, head: RecordHead, position: int) -> None:
    offset = RecordLocator(world.engine.state).offset_of(head)
    assert offset is not None
    world.engine.move(world.now_ms, head, offset, position)


def test_a_moved_batch_is_found_at_its_new_position() -> None:
    world = World()
    world.do(Subscribe("orders", "a"))
    world.do(put(count=2))
    world.do(put(count=1))
    owner = world.open("orders", "a")
    old = world.get(owner, "a").slices[1]
    head = RecordHead(old.position, owner.topic_id, old.first_offset, 1, 0, old.size)
    move(world, head, 5 * EXTENT_BYTES)
    assert RecordLocator(world.engine.state).offset_of(head) is None
    assert [s.position for s in world.get(owner, "a").slices] == [EXTENT_BYTES, 5 * EXTENT_BYTES]
    assert set(world.engine.state.live) == {1, 5}


def test_a_record_that_all_have_acked_is_not_needed() -> None:
    world = World()
    world.do(Subscribe("orders", "a"))
    world.do(put())
    owner = world.open("orders", "a")
    [entry] = world.get(owner, "a").slices
    head = RecordHead(entry.position, owner.topic_id, 0, 1, 0, entry.size)
    assert RecordLocator(world.engine.state).offset_of(head) == 0
    world.get(owner, "a", ack=1)
    assert RecordLocator(world.engine.state).offset_of(head) is None


def test_a_staged_batch_moves_before_and_after_its_commit() -> None:
    world = World()
    world.do(Subscribe("out", "a"))
    world.do(put("out"))
    world.do(Stage("s", "out", "w", 0, Envelope(1, 10, 0)))
    position = world.engine.state.stages["s"].batches[0].position
    move(world, RecordHead(position, 1, -1, 1, 0, 10), 2 * EXTENT_BYTES)
    world.do(Commit("w", 0, "out", (("s", 1),)))
    move(world, RecordHead(2 * EXTENT_BYTES, 1, -1, 1, 0, 10), 3 * EXTENT_BYTES)
    assert world.get(world.open("out", "a"), "a").slices[1].position == 3 * EXTENT_BYTES
    gone = RecordHead(position, 1, -1, 1, 0, 10)
    assert RecordLocator(world.engine.state).offset_of(gone) is None


def test_a_chunk_ends_when_the_indexes_of_its_topics_are_large() -> None:
    world = World()
    entries = 3_000
    for number in range(20):
        world.do(Subscribe(f"t{number}", "a"))
        index = world.engine.state.topics[f"t{number}"].index
        for entry in range(entries):
            index.add(1, entry, 0, 0, world.now_ms)
    capture = world.engine.capture()
    sizes = []
    while (chunk := capture.chunk()) is not None:
        sizes.append(len(chunk))
    one_topic = 50 * entries
    assert len(sizes) > 3
    assert max(sizes) < 2 * CHUNK_INDEX_BYTES + one_topic
