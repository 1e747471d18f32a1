"""Time to live: expired messages are skipped by gets, returned by reads, and deleted even if a subscriber is behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemq.engine.decide.ticks import BATCHES_PER_TICK_MAX, EXPIRED_PER_TICK_MAX
from oncemq.engine.events import Expired
from oncemq.engine.state.batch_index import EXPIRED, BatchIndex
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import TTL_MS_MAX
from tests.engine.invariants import check, check_invariants, engine_from
from tests.engine.world import World, code, offsets_of, put


def subscribed(*subscribers: str) -> World:
    world = World()
    for subscriber in subscribers or ("a",):
        world.do(commands.Subscribe("orders", subscriber))
    return world


def with_ttls(world: World, *ttls_ms: int) -> World:
    for ttl_ms in ttls_ms:
        world.do(put(ttl_ms=ttl_ms))
    return world


def got(world: World, subscriber: str = "a", position: int = -1) -> tuple[list[int], int]:
    """Return offsets and the next position."""
    decision = world.get(world.open("orders", subscriber), subscriber, position)
    assert isinstance(decision.reply, replies.GetReply), decision.reply
    return offsets_of(decision.slices), decision.reply.next_position


# Gets and reads.


def test_a_message_is_delivered_until_it_expires() -> None:
    world = with_ttls(subscribed(), 500)
    world.tick(499)
    assert got(world) == ([0], 1)
    [expired] = world.tick(1)
    assert expired == Expired(1, (0,))
    assert got(world) == ([], 1)
    check(world)


def test_a_get_skips_expired_messages_and_returns_the_next_position() -> None:
    world = with_ttls(subscribed(), 0, 500, 500, 0, 500)
    world.tick(500)
    assert got(world) == ([0, 3], 5)
    assert got(world, position=1) == ([3], 5)
    assert got(world, position=4) == ([], 5)
    check(world)


def test_a_whole_batch_expires_together() -> None:
    world = subscribed()
    world.do(put(count=5, ttl_ms=500))
    world.do(put())
    world.tick(500)
    assert got(world, position=2) == ([5], 6)


def test_a_get_waits_after_expired_messages_if_there_are_no_others() -> None:
    world = with_ttls(subscribed(), 500, 500)
    world.tick(500)
    owner = world.open("orders", "a")
    decision = world.get(owner, "a")
    assert decision.waits_for == owner.topic_id
    assert isinstance(decision.reply, replies.GetReply)
    assert (decision.reply.next_position, decision.reply.end_offset) == (2, 2)


def test_a_read_returns_expired_messages_while_they_are_stored() -> None:
    world = with_ttls(subscribed(), 0, 500, 0)
    world.tick(500)
    assert offsets_of(world.send(commands.Read("orders", 0, 1000)).slices) == [0, 1, 2]


def test_positions_advance_over_expired_messages() -> None:
    world = with_ttls(subscribed(), 500, 500, 0)
    world.tick(500)
    owner = world.open("orders", "a")
    assert owner.acked == 0
    assert got(world) == ([2], 3)
    world.get(owner := world.open("orders", "a"), "a", position=3, ack=3)
    assert world.open("orders", "a").acked == 3
    check(world)


def test_a_get_from_an_acked_and_deleted_position_is_still_refused() -> None:
    world = with_ttls(subscribed(), 0, 500, 0)
    owner = world.open("orders", "a")
    world.get(owner, "a", ack=1)
    world.tick(500)
    assert code(world.get(owner, "a", position=0).reply) == "RANGE_GONE"
    assert world.offsets(owner, "a", 1) == [2]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 0, 7, EXPIRED]), st.integers(1, 50)), max_size=12),
    st.integers(0, 60),
    st.integers(0, 120),
    st.integers(1, 5),
)
def test_visible_slices_are_stored_slices_without_expired_ones(
    batches: list[tuple[int, int, int]], start: int, bytes_max: int, slices_max: int
) -> None:
    index = BatchIndex()
    living: list[int] = []
    sizes: dict[int, int] = {}
    for count, expires_ms, size in batches:
        if expires_ms != EXPIRED:
            living += range(index.end, index.end + count)
            sizes.update(dict.fromkeys(range(index.end, index.end + count), size))
        index.add(count, 1, size, 0, 0, expires_ms)
    start = min(start, index.end)
    found, following = index.visible(start, bytes_max, slices_max)
    expected = [offset for offset in living if offset >= start]
    offsets = offsets_of(found)
    assert offsets == expected[: len(offsets)]
    assert len(found) <= slices_max
    assert sum(one.size for one in found[1:]) <= max(0, bytes_max - (found[0].size if found else 0))
    rest = expected[len(offsets) :]
    assert [offset for offset in expected if offset >= following] == rest
    if rest:
        too_large = sum(one.size for one in found) + sizes[rest[0]] > bytes_max
        assert found
        assert too_large or len(found) == slices_max
    else:
        assert following == index.end


# Deletion.


def test_expired_messages_are_deleted_although_a_subscriber_is_behind() -> None:
    world = with_ttls(subscribed("a", "slow"), 500, 500)
    world.tick(500)
    assert not world.engine.state.live
    assert world.topic_of().stored_bytes == 0
    check(world)


def test_expired_messages_after_needed_ones_are_deleted_later() -> None:
    world = with_ttls(subscribed("a", "slow"), 0, 500, 500, 0)
    world.tick(500)
    index = world.topic_of().index
    assert (len(index), index.expiring) == (4, 2)
    for subscriber in ("a", "slow"):
        world.get(world.open("orders", subscriber), subscriber, ack=1)
    assert (index.first, len(index), index.expiring) == (3, 1, 0)
    check(world)


def test_expired_messages_do_not_count_as_lag() -> None:
    world = with_ttls(subscribed(), 500, 500, 0)
    world.do(commands.Subscribe("#", "all", commands.START_EARLIEST))
    world.tick(500)
    listed = world.send(commands.Subscriptions("orders")).reply
    assert isinstance(listed, replies.SubscriptionsReply)
    assert {entry.lag for entry in listed.subscriptions} == {1}
    assert {(entry.acked, entry.confirmed) for entry in listed.subscriptions} == {(2, 0)}
    patterns = world.send(commands.Patterns()).reply
    assert isinstance(patterns, replies.PatternsReply)
    assert [entry.lag for entry in patterns.patterns] == [1]


def test_retention_keeps_expired_messages_for_readers() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", retain_ms=1_000))
    world.do(commands.Subscribe("orders", "a"))
    with_ttls(world, 500, 0)
    world.tick(500)
    assert offsets_of(world.send(commands.Read("orders", commands.START_EARLIEST, 1000)).slices) == [0, 1]
    assert got(world) == ([1], 2)
    check(world)
    world.tick(500)
    assert world.topic_of().index.first == 1, "it is kept no longer than that"
    check(world)


def test_a_subscription_from_earliest_skips_expired_messages() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", retain_bytes=10_000))
    with_ttls(world, 500, 0)
    world.tick(500)
    world.do(commands.Subscribe("orders", "a", commands.START_EARLIEST))
    assert got(world) == ([1], 2)
    check(world)


# Times.


def test_batches_expire_in_the_order_of_their_times_not_of_their_offsets() -> None:
    world = with_ttls(subscribed(), 900, 300, 0, 600)
    for forward_ms, expected in [(300, [0, 2, 3]), (300, [0, 2]), (300, [2])]:
        world.tick(forward_ms)
        assert got(world)[0] == expected
        check(world)


def test_the_next_tick_is_known() -> None:
    world = with_ttls(subscribed(), 900, 300)
    assert world.engine.next_tick_ms() == 1_300
    world.tick(300)
    assert world.engine.next_tick_ms() == 1_900
    world.tick(600)
    assert world.engine.next_tick_ms() is None


def test_one_tick_expires_a_limited_number_of_batches() -> None:
    world = with_ttls(subscribed(), *[10] * (2 * BATCHES_PER_TICK_MAX + 1))
    expired = [event.first_offsets for event in world.tick(10) if isinstance(event, Expired)]
    assert [len(offsets) for offsets in expired] == [BATCHES_PER_TICK_MAX]
    assert (world.engine.next_tick_ms() or 0) <= world.now_ms
    world.tick()
    world.tick()
    assert got(world) == ([], 2 * BATCHES_PER_TICK_MAX + 1)
    check(world)


def test_many_topics_share_a_tick() -> None:
    world = World()
    for number in range(EXPIRED_PER_TICK_MAX + 5):
        world.do(commands.Subscribe(f"topic {number}", "a"))
        world.do(put(f"topic {number}", ttl_ms=10))
    assert len(world.tick(10)) == EXPIRED_PER_TICK_MAX
    assert len(world.tick()) == 5
    assert world.tick() == []
    check(world)


def test_the_batches_of_all_topics_are_limited_together() -> None:
    world = World()
    for topic in ("a", "b", "c"):
        world.do(commands.Subscribe(topic, "a"))
        for _ in range(BATCHES_PER_TICK_MAX // 2 + 1):
            world.do(put(topic, ttl_ms=10))
    expired = []
    for forward_ms in (10, 0, 0):
        events = [event for event in world.tick(forward_ms) if isinstance(event, Expired)]
        expired.append(sum(len(event.first_offsets) for event in events))
    assert expired == [BATCHES_PER_TICK_MAX, BATCHES_PER_TICK_MAX // 2 + 3, 0]
    check(world)


@pytest.mark.parametrize("ttl_ms", [-1, TTL_MS_MAX + 1])
def test_a_time_to_live_must_be_within_a_hundred_years(ttl_ms: int) -> None:
    assert code(subscribed().do(put(ttl_ms=ttl_ms))) == "MALFORMED"


def test_messages_acked_before_they_expire_are_not_checked() -> None:
    world = with_ttls(subscribed(), *[500] * 200)
    world.get(world.open("orders", "a"), "a", ack=200)
    assert world.tick(500) == []
    with_ttls(world, *[500] * 200)
    assert len(world.topic_of().expiries) <= 400
    world.tick(500)
    check(world)


def test_the_time_to_live_of_staged_messages_starts_at_the_commit() -> None:
    world = subscribed()
    world.do(commands.Stage("s", "orders", "w", 0, commands.Envelope(1, 10, 0, 500)))
    world.tick(400)
    world.do(commands.Commit("w", 0, "orders", (("s", 1),)))
    world.tick(499)
    assert got(world) == ([0], 1)
    world.tick(1)
    assert got(world) == ([], 1)
    check(world)


# Recovery.


def test_messages_expire_after_a_snapshot() -> None:
    world = with_ttls(subscribed(), 0, 500, 300, 0)
    world.tick(300)
    replica = engine_from(world.engine, world.limits)
    check_invariants(replica, world.now_ms)
    assert replica.next_tick_ms() == 1_500
    assert replica.tick(1_500) == [Expired(1, (1,))]
    assert offsets_of(replica.state.topics["orders"].index.visible(0, 10_000, 10)[0]) == [0, 3]


def test_expired_messages_remain_expired_after_a_replay() -> None:
    world = with_ttls(subscribed(), 0, 500)
    world.tick(500)
    replica = world.replayed()
    assert replica.tick(5_000) == []
    assert replica.state.topics["orders"].index.expires[1] == EXPIRED


# Shared subscriptions and patterns.


def shared(world: World) -> tuple[int, int]:
    world.do(commands.Subscribe("orders", "workers", sharing=commands.Sharing(lease_ms=1_000)))
    opened = world.open("orders", "workers")
    return opened.topic_id, opened.epoch


def test_a_message_that_expires_while_it_is_leased_can_be_settled() -> None:
    world = World()
    topic_id, epoch = shared(world)
    with_ttls(world, 500, 500, 0)
    taken = world.send(commands.Take(topic_id, "workers", epoch, "m", 1, 2, 1000)).reply
    assert isinstance(taken, replies.TakeReply)
    world.tick(500)
    assert world.topic_of().index.first == 2
    check(world)
    assert world.do(commands.Settle(topic_id, "workers", epoch, ((taken.token, 0, 1),))) == replies.SettleReply(())
    world.tick(500)
    check(world)
    taken = world.send(commands.Take(topic_id, "workers", epoch, "m", 2, 2, 1000)).reply
    assert isinstance(taken, replies.TakeReply)
    assert [head.first_offset for head in taken.heads] == [2], "the one that came back has expired"
    assert world.topic_of().subscriptions["workers"].acked == 2
    check(world)


def test_expired_messages_do_not_make_a_topic_pending_for_a_pattern() -> None:
    world = World()
    world.do(commands.Subscribe("*", "all"))
    world.do(put("gone", create=True, ttl_ms=500))
    world.do(put("some", create=True, ttl_ms=500))
    world.do(put("some"))
    pattern = world.engine.state.patterns[("*", "all")]
    world.tick(500)
    assert list(pattern.pending) == [world.topic_of("some").id]
    assert world.get_any(world.open("*", "all"), "*", "all") == {"some": [1]}
    check(world)


def test_a_pattern_get_continues_after_expired_messages() -> None:
    world = World()
    world.do(commands.Subscribe("*", "all"))
    for ttl_ms in (0, 500, 0):
        world.do(put("some", create=True, ttl_ms=ttl_ms))
    world.tick(500)
    owner = world.open("*", "all")
    assert world.get_any(owner, "*", "all") == {"some": [0, 2]}
    world.ack_any(owner, "*", "all", {world.topic_of("some").id: 1})
    assert world.get_any(owner, "*", "all") == {"some": [2]}
    check(world)
