"""Delayed messages are invisible until they are due. Then they get their offsets, in the order of their due times."""

from __future__ import annotations

import pytest

from oncemq.engine.decide.ticks import BATCHES_PER_TICK_MAX
from oncemq.engine.engine import Engine
from oncemq.engine.events import Delayed, Released, Stored
from oncemq.engine.record_locator import RecordLocator
from oncemq.journal.contract import RecordHead, record_bytes
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import TTL_MS_MAX, Limits
from tests.engine.invariants import check, check_invariants, engine_from
from tests.engine.world import EXTENT_BYTES, World, code, put

DUE_MS = 5_000


def subscribed(limits: Limits | None = None) -> World:
    world = World(limits)
    world.do(commands.Subscribe("orders", "a"))
    return world


def delayed(count: int = 1, due_ms: int = DUE_MS, size: int = 100, ttl_ms: int = 0) -> commands.Put:
    return put(count=count, size=size, due_ms=due_ms, ttl_ms=ttl_ms)


def counts(world: World) -> list[int]:
    """Return the number of messages of each visible batch, which identifies the batch."""
    return [entry.count for entry in world.get(world.open("orders", "a"), "a").slices]


def wait_until(world: World, time_ms: int) -> None:
    world.tick(time_ms - world.now_ms)


# Before it is due.


def test_a_delayed_put_is_answered_without_an_offset() -> None:
    world = subscribed()
    assert world.do(delayed(3)) == replies.PutReply(1, -1, 3, world.now_ms, 1)
    assert isinstance(world.log[-1][1], Delayed)


def test_it_is_invisible_before_it_is_due() -> None:
    world = subscribed()
    world.do(commands.Subscribe("#", "all"))
    world.do(delayed())
    wait_until(world, DUE_MS - 1)
    owner = world.open("orders", "a")
    assert world.get(owner, "a").waits_for == owner.topic_id
    assert world.get_any(world.open("#", "all"), "#", "all") == {}
    read = world.send(commands.Read("orders", commands.START_EARLIEST, 1000))
    assert (read.slices, read.waits_for) == ((), owner.topic_id)
    assert world.send(commands.Find("orders", 0)).reply == replies.FindReply(owner.topic_id, 0)
    assert world.do(commands.Seek("orders", "a", time_ms=1)) == replies.SeekReply(owner.topic_id, 0)
    assert code(world.do(commands.Seek("orders", "a", 1))) == "OFFSET_OUT_OF_RANGE"
    check(world)


def test_it_uses_no_offset_before_it_is_due() -> None:
    world = subscribed()
    world.do(delayed())
    assert world.do(put()) == replies.PutReply(1, 0, 1, world.now_ms, 1)


def test_a_due_time_in_the_past_means_immediately() -> None:
    world = subscribed()
    for due_ms in (1, world.now_ms):
        world.do(delayed(due_ms=due_ms))
        assert isinstance(world.log[-1][1], Stored)
    assert world.engine.state.delayed == 0


@pytest.mark.parametrize("due_ms", [-1, 1_001 + TTL_MS_MAX])
def test_a_due_time_must_be_within_a_hundred_years(due_ms: int) -> None:
    assert code(subscribed().do(delayed(due_ms=due_ms))) == "MALFORMED"


def test_the_next_tick_is_known() -> None:
    world = subscribed()
    world.do(delayed(due_ms=7_000))
    world.do(delayed(due_ms=6_000))
    assert world.engine.next_tick_ms() == 6_000


def test_delayed_messages_are_listed() -> None:
    world = subscribed()
    world.do(delayed(3))
    world.do(delayed(2))
    listed = world.send(commands.Topics()).reply
    assert isinstance(listed, replies.TopicsReply)
    assert [topic.delayed for topic in listed.topics] == [5]


# When it is due.


def test_it_gets_its_offset_and_its_time_when_it_is_due() -> None:
    world = subscribed()
    world.do(delayed(2))
    world.do(put())
    [released] = world.tick(DUE_MS - world.now_ms)
    assert isinstance(released, Released)
    assert released.first_offset == 1
    first, second = world.get(world.open("orders", "a"), "a").slices
    assert (first.first_offset, first.time_ms) == (0, 1_000)
    assert (second.first_offset, second.count, second.time_ms) == (1, 2, DUE_MS)
    check(world)


def test_they_are_released_in_the_order_of_due_times_then_of_puts() -> None:
    world = subscribed()
    for count, due_ms in [(1, 7_000), (2, 6_000), (3, 7_000), (4, 6_000)]:
        world.do(delayed(count, due_ms))
    wait_until(world, 8_000)
    assert counts(world) == [2, 4, 1, 3]
    check(world)


def test_a_tick_releases_a_limited_number_and_keeps_the_order() -> None:
    world = subscribed()
    many = BATCHES_PER_TICK_MAX + 10
    for number in range(many):
        world.do(delayed(1 + number % 3, due_ms=DUE_MS + number))
    wait_until(world, DUE_MS + many)
    assert len(counts(world)) == BATCHES_PER_TICK_MAX
    due_ms = world.engine.next_tick_ms()
    assert due_ms is not None
    assert due_ms <= world.now_ms
    world.tick()
    assert counts(world) == [1 + number % 3 for number in range(many)]
    check(world)


def test_a_subscriber_after_the_put_gets_it() -> None:
    world = World()
    world.do(put(create=True, due_ms=DUE_MS))
    world.do(commands.Subscribe("orders", "a"))
    wait_until(world, DUE_MS)
    assert counts(world) == [1]
    check(world)


def test_without_a_subscriber_when_due_it_is_deleted() -> None:
    world = subscribed()
    world.do(commands.CreateTopic("orders"))
    world.do(delayed())
    world.do(commands.Unsubscribe("orders", "a"))
    assert world.engine.state.live
    wait_until(world, DUE_MS)
    assert not world.engine.state.live
    assert world.topic_of().next_offset == 1
    check(world)


def test_deleting_a_topic_deletes_its_delayed_messages() -> None:
    world = subscribed()
    world.do(delayed())
    world.do(commands.DeleteTopic("orders"))
    assert (world.engine.state.delayed, world.engine.state.live) == (0, {})
    world.do(commands.Subscribe("orders", "a"))
    assert world.tick(DUE_MS) == []
    assert counts(world) == []
    check(world)


def test_a_topic_deleted_with_its_last_subscriber_loses_its_delayed_messages() -> None:
    world = subscribed()
    world.do(delayed())
    world.do(commands.Unsubscribe("orders", "a"))
    assert (world.engine.state.delayed, world.engine.state.live) == (0, {})
    check(world)


def test_the_time_to_live_starts_when_it_is_due() -> None:
    world = subscribed()
    world.do(delayed(ttl_ms=100))
    wait_until(world, DUE_MS + 70)
    assert counts(world) == [1]
    wait_until(world, DUE_MS + 169)
    assert counts(world) == [1]
    wait_until(world, DUE_MS + 170)
    assert counts(world) == []
    check(world)


def test_it_reaches_shared_subscriptions_and_patterns() -> None:
    world = World()
    world.do(commands.Subscribe("orders", "workers", sharing=commands.Sharing()))
    world.do(commands.Subscribe("*", "all"))
    world.do(delayed())
    wait_until(world, DUE_MS)
    workers = world.open("orders", "workers")
    taken = world.send(commands.Take(workers.topic_id, "workers", workers.epoch, "m", 1, 5, 1000)).reply
    assert isinstance(taken, replies.TakeReply)
    assert [head.first_offset for head in taken.heads] == [0]
    assert world.get_any(world.open("*", "all"), "*", "all") == {"orders": [0]}
    check(world)


def test_key_order_holds_for_batches_delayed_before_the_subscription() -> None:
    world = World()
    hashes = (7).to_bytes(8, "little") * 2
    for topic in ("orders", "made"):
        world.do(commands.Put(topic, commands.Envelope(2, 100, 0, 0, DUE_MS, hashes), True))
        world.do(commands.Subscribe(topic, "workers", sharing=commands.Sharing(key_order=True)))
    wait_until(world, DUE_MS)
    for topic in ("orders", "made"):
        owner = world.open(topic, "workers")
        taken = world.send(commands.Take(owner.topic_id, "workers", owner.epoch, "m", 1, 5, 1000)).reply
        assert isinstance(taken, replies.TakeReply)
        assert [(head.first_offset, head.count) for head in taken.heads] == [(0, 1)]
    check(world)


def test_key_hashes_are_not_stored_without_key_order() -> None:
    world = subscribed()
    world.do(commands.Put("orders", commands.Envelope(1, 100, 0, 0, DUE_MS, bytes(8))))
    wait_until(world, DUE_MS)
    assert world.topic_of().index.keys == {}


# Limits.


def test_the_number_of_delayed_batches_is_limited() -> None:
    world = subscribed(Limits(delayed_max=2))
    world.do(delayed())
    world.do(delayed())
    assert code(world.do(delayed())) == "LIMIT_REACHED"
    wait_until(world, DUE_MS)
    assert isinstance(world.do(delayed(due_ms=2 * DUE_MS)), replies.PutReply)


def test_a_full_disk_refuses_a_delayed_put() -> None:
    world = subscribed()
    world.writable_bytes = record_bytes(100) - 1
    before = world.image()
    assert code(world.do(delayed())) == "DISK_FULL"
    assert world.image() == before
    world.writable_bytes += 1
    assert isinstance(world.again(delayed()), replies.PutReply)


def test_a_quota_counts_delayed_messages() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", quota_bytes=250))
    world.do(commands.Subscribe("orders", "a"))
    world.do(delayed())
    world.do(put())
    assert code(world.do(put())) == "TOPIC_FULL"
    assert code(world.again(delayed())) == "TOPIC_FULL"
    wait_until(world, DUE_MS)
    assert code(world.again(put())) == "TOPIC_FULL"
    world.get(world.open("orders", "a"), "a", ack=2)
    assert isinstance(world.again(put()), replies.PutReply)
    check(world)


# Recovery.


def test_they_survive_a_snapshot() -> None:
    world = subscribed()
    for count, due_ms in [(1, 7_000), (2, 6_000)]:
        world.do(delayed(count, due_ms, ttl_ms=3_000))
    replica = engine_from(world.engine, world.limits)
    check_invariants(replica, world.now_ms)
    assert replica.next_tick_ms() == 6_000
    replica.tick(9_500)
    index = replica.state.topics["orders"].index
    assert list(index.ends) == [2, 3]
    assert list(index.expires) == [12_500, 12_500]


def test_a_released_batch_is_not_released_again_after_a_replay() -> None:
    world = subscribed()
    for _ in range(1_500):
        world.do(delayed(due_ms=world.now_ms + 1))
        world.tick(1)
    world.do(delayed(due_ms=world.now_ms + 1))
    replica = world.replayed()
    [released] = replica.tick(world.now_ms + 1)
    assert isinstance(released, Released)
    assert replica.state.topics["orders"].next_offset == 1_501


def head_of(world: World, size: int = 100) -> RecordHead:
    [(position, _)] = world.engine.state.unpublished.items()
    return RecordHead(position, world.topic_of().id, -1, 1, 0, size)


def move(world: World, head: RecordHead, position: int) -> None:
    offset = RecordLocator(world.engine.state).offset_of(head)
    assert offset is not None
    world.log.append((world.now_ms, world.engine.move(world.now_ms, head, offset, position)))


def test_a_delayed_batch_moves_before_and_after_it_is_due() -> None:
    world = subscribed()
    world.do(put())
    world.do(delayed())
    old = head_of(world)
    move(world, old, 5 * EXTENT_BYTES)
    assert RecordLocator(world.engine.state).offset_of(old) is None
    check(world)
    wait_until(world, DUE_MS)
    assert world.get(world.open("orders", "a"), "a").slices[1].position == 5 * EXTENT_BYTES
    move(world, RecordHead(5 * EXTENT_BYTES, old.topic_id, -1, 1, 0, 100), 7 * EXTENT_BYTES)
    assert world.get(world.open("orders", "a"), "a").slices[1].position == 7 * EXTENT_BYTES
    assert set(world.engine.state.live) == {1, 7}
    check(world)


def test_a_delayed_batch_of_a_deleted_topic_is_not_needed() -> None:
    world = subscribed()
    world.do(delayed())
    head = head_of(world)
    assert RecordLocator(world.engine.state).offset_of(head) == -1
    world.do(commands.DeleteTopic("orders"))
    assert RecordLocator(world.engine.state).offset_of(head) is None


def test_a_capture_contains_a_delayed_batch_that_is_released_during_it() -> None:
    world = subscribed()
    world.do(delayed())
    expected = world.image()
    capture = world.engine.capture()
    wait_until(world, DUE_MS)
    replica = Engine("broker", 1, EXTENT_BYTES, world.limits)
    replica.restore(list(iter(capture.chunk, None)))
    assert replica.state.delayed == 1
    fresh = World()
    fresh.engine = replica
    assert sorted(map(repr, fresh.image())) == sorted(map(repr, expected))
