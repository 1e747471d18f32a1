"""Shared subscriptions: each message is leased to one member at a time until it is acked."""

from __future__ import annotations

import random

import pytest

from oncemq.engine.decide.decision import Decision
from oncemq.engine.decide.subscriptions.leases import has_work
from oncemq.engine.decide.subscriptions.takes import decide_take
from oncemq.engine.engine import Engine
from oncemq.engine.events import Leased, LeasesExpired, LeasesRestarted, MembersLeft
from oncemq.engine.snapshot.shared_image import capture_shared
from oncemq.engine.state.shared_subscription import SharedState
from oncemq.engine.state.topic import Topic
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import BLOCKED_MAX, RANGES_MAX, Limits
from tests.engine.world import EXTENT_BYTES, ROOMY, World, code, image_of, put

LEASE_MS = 1_000
#: An idle member is removed after this time.
IDLE_MS = 600_000


class Workers(World):
    """A topic with one shared subscription."""

    def __init__(self, key_order: bool = False, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.do(
            commands.Subscribe("orders", "workers", commands.START_NEW, commands.Sharing(LEASE_MS, key_order=key_order))
        )
        self.epoch = self.open("orders", "workers").epoch
        self.takes: dict[str, int] = {}

    @property
    def topic(self) -> Topic:
        return self.engine.state.topics["orders"]

    @property
    def shared(self) -> SharedState:
        shared = self.topic.subscriptions["workers"].shared
        assert shared is not None
        return shared

    @property
    def acked(self) -> int:
        return self.topic.subscriptions["workers"].acked

    def put_keyed(self, *keys: int, ttl_ms: int = 0) -> None:
        hashes = b"".join(key.to_bytes(8, "little") for key in keys)
        self.do(commands.Put("orders", commands.Envelope(len(keys), 100, 0, ttl_ms, 0, hashes)))

    def command(self, member: str, count: int, number: int, bytes_max: int = ROOMY) -> commands.Take:
        return commands.Take(self.topic.id, "workers", self.epoch, member, number, count, bytes_max)

    def take(self, member: str = "m", count: int = 1, bytes_max: int = ROOMY) -> Decision:
        """Return the next take of a member."""
        self.takes[member] = self.takes.get(member, 0) + 1
        return self.send(self.command(member, count, self.takes[member], bytes_max))

    def take_again(self, member: str = "m", number: int = 0) -> Decision:
        return self.send(self.command(member, 1, number or self.takes[member]))

    def settle(
        self, *done: tuple[int, int, int], returned: tuple[tuple[int, int, int, int], ...] = ()
    ) -> tuple[tuple[int, int], ...]:
        reply = self.do(commands.Settle(self.topic.id, "workers", self.epoch, done, returned))
        assert isinstance(reply, replies.SettleReply), reply
        return reply.lost

    def extend(self, *tokens: int) -> replies.Reply:
        return self.send(commands.Extend(self.topic.id, "workers", self.epoch, tokens)).reply

    def leave(self, member: str = "m") -> None:
        assert self.send(commands.Leave(self.topic.id, "workers", self.epoch, member)).reply == replies.Done()

    def info(self) -> tuple[int, int, int]:
        return self.shared.acked_ranges.count, self.shared.leased, len(self.shared.members)


def token_of(decision: Decision) -> int:
    assert isinstance(decision.reply, replies.TakeReply), decision.reply
    return decision.reply.token


def tries_of(decision: Decision) -> dict[int, int]:
    """Return offset → number of deliveries of a take's messages."""
    assert isinstance(decision.reply, replies.TakeReply), decision.reply
    return {
        offset: head.tries
        for head in decision.reply.heads
        for offset in range(head.first_offset, head.first_offset + head.count)
    }


def offsets(decision: Decision) -> list[int]:
    return list(tries_of(decision))


def with_messages(count: int, batch: int = 1, key_order: bool = False) -> Workers:
    world = Workers(key_order)
    for _ in range(count // batch):
        world.do(put(count=batch))
    return world


# Takes.


def test_each_message_goes_to_one_member() -> None:
    world = with_messages(6)
    assert offsets(world.take("a", 4)) == [0, 1, 2, 3]
    assert offsets(world.take("b", 4)) == [4, 5]
    assert world.info() == (0, 6, 2)


def test_a_repeated_take_returns_the_same_lease_and_records_nothing() -> None:
    world = with_messages(6)
    first = world.take("a", 4)
    world.now_ms += 300
    again = world.take_again("a")
    assert (token_of(again), tries_of(again), again.slices) == (token_of(first), tries_of(first), first.slices)
    assert again.event is None
    assert isinstance(again.reply, replies.TakeReply)
    assert again.reply.lease_ms == LEASE_MS - 300


def test_a_repeated_take_returns_what_the_lease_still_holds() -> None:
    world = with_messages(4)
    token = token_of(world.take("a", 4))
    world.settle((token, 1, 2))
    assert offsets(world.take_again("a")) == [0, 3]


def test_an_earlier_take_in_flight_can_be_retried_too() -> None:
    world = with_messages(4)
    first = world.take("a", 1)
    world.take("a", 1)
    assert token_of(world.take_again("a", number=1)) == token_of(first)


def test_a_repeated_take_whose_lease_is_gone_finds_nothing() -> None:
    world = with_messages(4)
    token = token_of(world.take("a", 2))
    world.settle((token, 0, 2))
    again = world.take_again("a")
    assert (again.reply, again.event, again.waits_for) == (replies.TakeReply(world.topic.id, 0, 0), None, 0)


def test_an_empty_take_may_wait_and_consumes_no_number() -> None:
    world = Workers()
    decision = world.take("a")
    assert (token_of(decision), decision.waits_for) == (0, world.topic.id)
    world.do(put())
    assert offsets(world.take_again("a")) == [0]


def test_a_take_respects_bytes_max_but_gets_at_least_one_payload() -> None:
    world = with_messages(6, batch=2)
    assert offsets(world.take(count=6, bytes_max=1)) == [0, 1]
    assert offsets(world.take(count=6, bytes_max=200)) == [2, 3, 4, 5]


def test_contiguous_messages_of_many_batches_are_one_range() -> None:
    world = with_messages(1_000, batch=10)
    event = world.take(count=1_000).event
    assert isinstance(event, Leased)
    assert event.ranges == ((0, 1_000, 1),)


def test_a_payload_is_sent_once_though_several_heads_point_into_it() -> None:
    world = with_messages(10, batch=10)
    token = token_of(world.take(count=10))
    world.settle((token, 3, 2))
    world.leave()
    decision = world.take("b", 10)
    assert isinstance(decision.reply, replies.TakeReply)
    heads = [(head.first_offset, head.count, head.skip, head.payload) for head in decision.reply.heads]
    assert heads == [(0, 3, 0, 0), (5, 5, 5, 0)]
    assert [(entry.first_offset, entry.count) for entry in decision.slices] == [(0, 10)]
    assert decision.reply.payloads == 1


def test_deciding_changes_nothing() -> None:
    world = with_messages(6, key_order=True)
    token = token_of(world.take(count=3))
    world.settle(returned=((token, 1, 1, 0), (token, 2, 1, 10)))
    world.now_ms += 10
    before = capture_shared(world.shared)
    subscription = world.topic.subscriptions["workers"]
    command = world.command("a", 5, 1)
    first = decide_take(world.engine.state, world.limits, world.now_ms, world.topic, subscription, command)
    assert first == decide_take(world.engine.state, world.limits, world.now_ms, world.topic, subscription, command)
    assert capture_shared(world.shared) == before


def test_leased_and_returned_messages_are_limited_together() -> None:
    world = Workers(limits=Limits(leased_max=5))
    world.do(put(count=20))
    token = token_of(world.take("a", 10))
    assert world.info() == (0, 5, 1)
    world.settle(returned=((token, 0, 5, 60_000),))
    blocked = world.take("b", 10)
    assert (offsets(blocked), blocked.waits_for) == ([], world.topic.id)
    assert not has_work(world.topic, world.shared, world.limits, world.now_ms)
    world.now_ms += 60_000
    assert has_work(world.topic, world.shared, world.limits, world.now_ms)
    assert offsets(world.take_again("b")) == [0]


def test_the_number_of_members_is_limited() -> None:
    world = Workers(limits=Limits(members_max=1))
    world.do(put(count=4))
    world.take("a")
    assert code(world.take("b").reply) == "LIMIT_REACHED"
    assert offsets(world.take("a")) == [1]


@pytest.mark.parametrize(("member", "count", "number"), [("m", 0, 1), ("m", 1, 0), ("", 1, 1), ("a\nb", 1, 1)])
def test_a_malformed_take_is_refused(member: str, count: int, number: int) -> None:
    world = with_messages(1)
    assert code(world.send(world.command(member, count, number)).reply) in ("MALFORMED", "NAME_INVALID")
    assert world.info() == (0, 0, 0)


# Settles.


def test_the_position_rises_over_contiguous_acks() -> None:
    world = with_messages(6)
    token = token_of(world.take(count=6))
    assert world.settle((token, 2, 2)) == ()
    assert (world.acked, world.info()) == (0, (2, 4, 1))
    world.settle((token, 0, 2))
    assert (world.acked, world.info()) == (4, (0, 2, 1))
    assert len(world.topic.index) == 2
    world.settle((token, 4, 2))
    assert (world.acked, len(world.topic.index)) == (6, 0)


def test_a_nacked_message_is_redelivered_with_a_higher_delivery_count() -> None:
    world = with_messages(3)
    token = token_of(world.take("a", 3))
    world.settle(returned=((token, 1, 1, 0),))
    again = world.take("b", 3)
    assert tries_of(again) == {1: 2}
    world.settle(returned=((token_of(again), 1, 1, 0),))
    assert tries_of(world.take("b", 3)) == {1: 3}


def test_a_nack_with_a_delay_delays_the_redelivery() -> None:
    world = with_messages(3)
    token = token_of(world.take("a", 2))
    world.settle(returned=((token, 0, 1, 500),))
    assert offsets(world.take("b", 3)) == [2]
    assert world.engine.next_tick_ms() == world.now_ms + 500
    world.now_ms += 499
    assert not has_work(world.topic, world.shared, world.limits, world.now_ms)
    world.now_ms += 1
    assert has_work(world.topic, world.shared, world.limits, world.now_ms)
    assert tries_of(world.take("b", 3)) == {0: 2}


def test_a_tick_wakes_takes_that_wait_for_a_delayed_redelivery_once() -> None:
    world = with_messages(1)
    token = token_of(world.take("a"))
    world.settle(returned=((token, 0, 1, 500),))
    world.engine.take_wakeups()
    assert world.tick(500) == []
    assert world.engine.take_wakeups() == {world.topic.id}
    due_ms = world.engine.next_tick_ms()
    assert due_ms is not None
    assert due_ms > world.now_ms


def test_redeliveries_come_before_new_messages_oldest_first() -> None:
    world = with_messages(6)
    token = token_of(world.take("a", 4))
    world.settle(returned=((token, 3, 1, 0), (token, 1, 1, 0)))
    assert tries_of(world.take("b", 3)) == {1: 2, 3: 2, 4: 1}


def test_messages_outside_the_lease_are_lost_and_the_rest_is_settled() -> None:
    world = with_messages(6)
    a, b = token_of(world.take("a", 3)), token_of(world.take("b", 3))
    world.settle((a, 1, 1))
    assert world.settle((a, 0, 5), (b, 3, 1)) == ((1, 1), (3, 2))
    assert world.acked == 4
    assert world.settle((999, 4, 2)) == ((4, 2),)
    assert world.acked == 4


def test_a_repeated_settle_gets_the_same_answer() -> None:
    world = with_messages(2)
    token = token_of(world.take("a", 2))
    command = commands.Settle(world.topic.id, "workers", world.epoch, ((token, 0, 2),))
    assert world.do(command) == replies.SettleReply()
    assert world.again(command) == replies.SettleReply()
    assert world.do(command) == replies.SettleReply(((0, 2),))


def test_a_settle_in_a_transaction_needs_every_lease() -> None:
    world = with_messages(4)
    token = token_of(world.take("a", 2))
    settle = commands.Settle(world.topic.id, "workers", world.epoch, ((token, 0, 3),))
    assert code(world.do(commands.Transact(settles=(settle,)))) == "LEASE_LOST"
    assert world.info() == (0, 2, 1)
    settle = commands.Settle(world.topic.id, "workers", world.epoch, ((token, 0, 2),))
    assert isinstance(world.do(commands.Transact(settles=(settle,), puts=(put(),))), replies.TransactReply)
    assert world.acked == 2


@pytest.mark.parametrize(
    ("done", "returned"),
    [
        (((4, 0, 0),), ()),
        (((4, -1, 1),), ()),
        (((4, 0, 2), (4, 1, 2)), ()),
        (((4, 0, 2),), ((4, 1, 1, 0),)),
        ((), ((4, 0, 1, -1),)),
        ((), ((4, 0, 1, 1 << 62),)),
        (((4, 0, 1),) * (RANGES_MAX + 1), ()),
    ],
)
def test_a_malformed_settle_is_refused_and_changes_nothing(
    done: tuple[tuple[int, int, int], ...], returned: tuple[tuple[int, int, int, int], ...]
) -> None:
    world = with_messages(4)
    world.take("a", 4)
    before = capture_shared(world.shared)
    settle = commands.Settle(world.topic.id, "workers", world.epoch, done, returned)
    assert code(world.do(settle)) == "MALFORMED"
    assert capture_shared(world.shared) == before


def test_a_settle_beyond_the_end_is_refused() -> None:
    world = with_messages(4)
    settle = commands.Settle(world.topic.id, "workers", world.epoch, ((1, 0, 1 << 63),))
    assert code(world.do(settle)) == "OFFSET_OUT_OF_RANGE"


# Leases.


def test_an_expired_lease_returns_its_messages() -> None:
    world = with_messages(4)
    token = token_of(world.take("a", 3))
    world.settle((token, 1, 1))
    assert world.tick(LEASE_MS - 1) == []
    assert world.tick(1) == [LeasesExpired(world.topic.id, "workers", (token,))]
    assert world.engine.take_wakeups() == {world.topic.id}
    assert tries_of(world.take("b", 3)) == {0: 2, 2: 2, 3: 1}
    assert world.settle((token, 0, 3)) == ((0, 3),)
    assert world.acked == 0


def test_an_extended_lease_continues_and_a_lost_one_is_reported() -> None:
    world = with_messages(2)
    first, second = token_of(world.take("a")), token_of(world.take("a"))
    world.tick(LEASE_MS - 1)
    assert world.extend(first, 999) == replies.ExtendReply((999,))
    assert world.tick(1) == [LeasesExpired(world.topic.id, "workers", (second,))]
    assert world.extend(second) == replies.ExtendReply((second,))
    assert world.settle((first, 0, 1)) == ()
    assert world.acked == 1


def test_after_a_recovery_every_lease_has_its_full_time() -> None:
    world = with_messages(2)
    token = token_of(world.take("a"))
    world.now_ms += LEASE_MS - 1
    world.engine.apply(world.now_ms, LeasesRestarted(world.now_ms))
    assert world.tick(LEASE_MS - 1) == []
    assert world.tick(1) == [LeasesExpired(world.topic.id, "workers", (token,))]


def test_a_leaving_member_returns_its_messages_immediately() -> None:
    world = with_messages(4)
    token = token_of(world.take("a", 2))
    world.leave("a")
    assert tries_of(world.take("b", 3)) == {0: 2, 1: 2, 2: 1}
    assert world.settle((token, 0, 2)) == ((0, 2),)
    world.leave("a")
    assert world.info() == (0, 3, 1)


def test_an_idle_member_is_removed() -> None:
    world = with_messages(2)
    idle, busy = token_of(world.take("idle")), token_of(world.take("busy"))
    world.settle((idle, 0, 1))
    for _ in range(IDLE_MS // LEASE_MS):
        assert world.tick(LEASE_MS - 1) == []
        world.extend(busy)
    assert world.tick(LEASE_MS - 1) == [MembersLeft(world.topic.id, "workers", ("idle",))]
    assert list(world.shared.members) == ["busy"]


# Seeks and drops.


def test_after_a_seek_old_tokens_are_lost_and_messages_are_taken_again() -> None:
    world = Workers()
    world.do(commands.CreateTopic("orders", retain_bytes=10_000))
    world.do(put(count=4))
    token = token_of(world.take("a", 2))
    world.settle((token, 0, 1))
    world.do(commands.Seek("orders", "workers", 0))
    assert code(world.take("a").reply) == "SOUGHT"
    world.epoch = world.open("orders", "workers").epoch
    assert world.settle((token, 1, 1)) == ((1, 1),)
    assert token_of(world.take_again("a", number=1)) == 0
    assert tries_of(world.take("a", 9)) == dict.fromkeys(range(4), 1)


def test_messages_dropped_by_a_quota_leave_their_leases() -> None:
    world = Workers()
    world.do(commands.CreateTopic("orders", quota_bytes=300, overflow=commands.DROP))
    for _ in range(3):
        world.do(put(size=100))
    token = token_of(world.take("a", 2))
    for _ in range(2):
        world.do(put(size=100))
        world.tick()
    assert world.topic.index.first == 2
    assert world.settle((token, 0, 2)) == ((0, 2),)
    assert offsets(world.take("a", 9)) == [2, 3, 4]
    assert world.topic.subscriptions["workers"].dropped == 2


# Time to live.


def test_expired_messages_are_skipped_and_count_as_acked() -> None:
    world = Workers()
    for ttl_ms in (0, 100, 100, 0):
        world.do(commands.Put("orders", commands.Envelope(2, 100, 0, ttl_ms)))
    world.tick(100)
    decision = world.take("a", 9)
    assert offsets(decision) == [0, 1, 6, 7]
    assert isinstance(decision.event, Leased)
    assert decision.event.skipped == ((2, 4),)
    world.settle((token_of(decision), 0, 2))
    assert world.acked == 6


def test_a_message_that_expired_while_leased_is_not_redelivered() -> None:
    world = Workers()
    world.do(commands.Put("orders", commands.Envelope(2, 100, 0, 500)))
    world.do(put())
    world.take("a", 2)
    world.tick(LEASE_MS)
    assert len(world.topic.index) == 1
    assert offsets(world.take("b", 9)) == [2]
    assert world.acked == 2


def test_if_everything_has_expired_the_position_rises_and_the_take_waits() -> None:
    world = Workers()
    world.do(commands.Put("orders", commands.Envelope(2, 100, 0, 500)))
    world.tick(500)
    decision = world.take("a")
    assert (offsets(decision), decision.waits_for, world.acked) == ([], world.topic.id, 2)
    world.do(put())
    assert offsets(world.take_again("a")) == [2]


def test_a_repeated_take_of_deleted_messages_finds_nothing() -> None:
    world = Workers()
    world.do(commands.Put("orders", commands.Envelope(2, 100, 0, 500)))
    token = token_of(world.take("a", 2))
    world.tick(500)
    assert len(world.topic.index) == 0
    assert token_of(world.take_again("a")) == 0
    assert world.settle((token, 0, 2)) == ()
    assert world.acked == 2


# Key order.


def test_only_the_oldest_message_of_a_key_is_in_flight() -> None:
    world = Workers(key_order=True)
    world.put_keyed(7, 7, 8, 0, 0, 7)
    first = world.take("a", 9)
    assert offsets(first) == [0, 2, 3, 4]
    assert world.take("b", 9).waits_for
    world.settle((token_of(first), 2, 1))
    assert offsets(world.take("b", 9)) == []
    world.settle((token_of(first), 0, 1))
    assert tries_of(world.take("b", 9)) == {1: 1}


def test_a_nacked_message_keeps_its_key_busy() -> None:
    world = Workers(key_order=True)
    world.put_keyed(7, 7)
    token = token_of(world.take("a", 9))
    world.settle(returned=((token, 0, 1, 500),))
    assert offsets(world.take("b", 9)) == []
    world.now_ms += 500
    again = world.take("b", 9)
    assert tries_of(again) == {0: 2}
    world.settle((token_of(again), 0, 1))
    assert tries_of(world.take("b", 9)) == {1: 1}


def test_an_expired_message_does_not_block_its_key() -> None:
    world = Workers(key_order=True)
    world.put_keyed(7, ttl_ms=500)
    world.put_keyed(7, ttl_ms=500)
    world.put_keyed(7)
    world.take("a", 9)
    world.tick(LEASE_MS)
    found: list[int] = []
    for _ in range(3):
        found += offsets(world.take("b", 9))
    assert found == [2]
    assert world.acked == 2


def test_a_message_deleted_while_leased_frees_its_key() -> None:
    world = Workers(key_order=True)
    world.put_keyed(7, ttl_ms=500)
    world.put_keyed(7)
    token = token_of(world.take("a", 9))
    world.tick(500)
    assert world.topic.index.first == 1
    world.settle((token, 0, 1))
    assert offsets(world.take("a", 9)) == [1]


def test_a_hot_key_is_skipped_in_steps_up_to_the_limit() -> None:
    world = Workers(key_order=True)
    for _ in range(12):
        world.put_keyed(*[7] * 10_000)
    world.put_keyed(8)
    first = world.take("a", 9)
    assert offsets(first) == [0]
    looks = 0
    while not (decision := world.take("b", 9)).waits_for:
        assert offsets(decision) == []
        looks += 1
    assert looks < 20
    assert world.shared.keys.blocked == BLOCKED_MAX
    assert not has_work(world.topic, world.shared, world.limits, world.now_ms)
    world.settle((token_of(first), 0, 1))
    assert offsets(world.take("b", 9)) == [1]


def test_messages_behind_a_hot_key_are_reached_by_repeated_takes() -> None:
    world = Workers(key_order=True)
    for _ in range(3):
        world.put_keyed(*[7] * 10_000)
    world.put_keyed(8)
    world.take("a", 9)
    for _ in range(9):
        decision = world.take("b", 9)
        assert not decision.waits_for
        if offsets(decision):
            break
    assert offsets(decision) == [30_000]


# Random commands, compared with a model of each message.


class Model:
    """A model of every message."""

    def __init__(self, world: Workers, rng: random.Random, key_order: bool) -> None:
        self.world = world
        self.rng = rng
        self.key_order = key_order
        #: Per offset: key, time at which it expires (0 = never).
        self.messages: list[tuple[int, int]] = []
        self.start = 0
        self.done: set[int] = set()
        #: Offset → token.
        self.out: dict[int, int] = {}
        self.tries: dict[int, int] = {}
        self.not_before: dict[int, int] = {}
        self.tokens: list[int] = []
        self.members: dict[int, str] = {}

    def step(self) -> None:
        acts = [self.put, self.put, self.take, self.take, self.take, self.settle, self.settle, self.settle]
        acts += [self.extend, self.leave, self.tick, self.take_again]
        if self.rng.random() < 0.02:
            acts = [self.seek]
        self.rng.choice(acts)()
        self.check()

    def put(self) -> None:
        keys = [self.rng.randint(0, 3) for _ in range(self.rng.randint(1, 4))]
        ttl_ms = self.rng.choice([0, 0, 0, 700])
        self.world.put_keyed(*keys, ttl_ms=ttl_ms)
        self.messages += [(key, self.world.now_ms + ttl_ms if ttl_ms else 0) for key in keys]

    def member(self) -> str:
        return self.rng.choice(["a", "b", "c"])

    def take(self) -> None:
        member = self.member()
        bytes_max = self.rng.choice([1, 250, ROOMY])
        self.taken(self.world.take(member, self.rng.randint(1, 6), bytes_max), member)

    def taken(self, decision: Decision, member: str) -> None:
        if isinstance(decision.event, Leased):
            self.skip(decision.event.skipped)
        token = token_of(decision)
        if not token:
            assert not (decision.waits_for and self.deliverable())
            return
        assert token not in self.members
        self.tokens.append(token)
        self.members[token] = member
        for offset, tries in tries_of(decision).items():
            assert offset not in self.out, f"{offset} is out twice"
            assert offset not in self.done, f"{offset} was done"
            assert self.not_before.get(offset, 0) <= self.world.now_ms
            assert tries == self.tries.get(offset, 0) + 1
            assert self.is_oldest(offset), f"{offset} overtook another of its key"
            self.out[offset] = token
            self.tries[offset] = tries

    def skip(self, skipped: tuple[tuple[int, int], ...]) -> None:
        for first, count in skipped:
            for offset in range(first, first + count):
                assert offset not in self.out
                assert offset not in self.done
                assert self.has_expired(offset), f"{offset} was skipped"
                self.done.add(offset)

    def has_expired(self, offset: int) -> bool:
        return 0 < self.messages[offset][1] <= self.world.now_ms

    def is_oldest(self, offset: int) -> bool:
        """Check that no earlier message of the same key is undone."""
        key = self.messages[offset][0]
        if not self.key_order or not key:
            return True
        before = (other for other in range(self.start, offset) if self.messages[other][0] == key)
        return all(other in self.done for other in before)

    def deliverable(self) -> list[int]:
        return [
            offset
            for offset in range(self.start, len(self.messages))
            if offset not in self.done
            and offset not in self.out
            and self.not_before.get(offset, 0) <= self.world.now_ms
            and not self.messages[offset][1]
            and self.is_oldest(offset)
        ]

    def take_again(self) -> None:
        member = self.member()
        number = self.world.takes.get(member, 0)
        known = self.world.shared.members.get(member)
        if known is None or number > known.last_number:
            return
        decision = self.world.take_again(member)
        assert decision.event is None
        token = token_of(decision)
        assert all(self.out[offset] == token for offset in offsets(decision))

    def settle(self) -> None:
        if not self.tokens:
            return
        done, returned, lost = [], [], set()
        named: set[tuple[int, int]] = set()
        for _ in range(self.rng.randint(1, 4)):
            token = self.rng.choice(self.tokens[-4:])
            first = self.rng.choice([*self.held(token), self.rng.randrange(len(self.messages))])
            count = min(self.rng.randint(1, 3), len(self.messages) - first)
            pairs = {(token, offset) for offset in range(first, first + count)}
            if pairs & named:
                continue
            named |= pairs
            lost |= {offset for _, offset in pairs if self.out.get(offset) != token}
            if self.rng.random() < 0.7:
                done.append((token, first, count))
            else:
                returned.append((token, first, count, self.rng.choice([0, 0, 300])))
        replied = self.world.settle(*done, returned=tuple(returned))
        assert {offset for first, count in replied for offset in range(first, first + count)} == lost
        for token, first, count in done:
            self.done |= set(self.give_up(token, first, count))
        for token, first, count, delay_ms in returned:
            for offset in self.give_up(token, first, count):
                self.not_before[offset] = self.world.now_ms + delay_ms

    def held(self, token: int) -> list[int]:
        return [offset for offset, holder in self.out.items() if holder == token]

    def give_up(self, token: int, first: int, count: int) -> list[int]:
        given = [offset for offset in range(first, first + count) if self.out.get(offset) == token]
        for offset in given:
            del self.out[offset]
        return given

    def return_lease(self, tokens: set[int]) -> None:
        for offset in [offset for offset, token in self.out.items() if token in tokens]:
            del self.out[offset]
            self.not_before[offset] = 0

    def extend(self) -> None:
        tokens = tuple(self.tokens[-3:])
        reply = self.world.extend(*tokens)
        assert reply == replies.ExtendReply(tuple(token for token in tokens if not self.held(token)))

    def leave(self) -> None:
        if self.rng.random() < 0.3:
            member = self.member()
            self.world.leave(member)
            self.return_lease({token for token, name in self.members.items() if name == member})

    def tick(self) -> None:
        events = self.world.tick(self.rng.choice([10, 300, LEASE_MS]))
        while more := self.world.tick():
            events += more
        for event in events:
            if isinstance(event, LeasesExpired):
                assert all(self.held(token) for token in event.tokens)
                self.return_lease(set(event.tokens))
        assert all(lease.until_ms > self.world.now_ms for lease in self.world.shared.leases.values())

    def seek(self) -> None:
        first, end = self.world.topic.index.first, self.world.topic.next_offset
        self.start = self.rng.randint(first, end)
        assert isinstance(self.world.do(commands.Seek("orders", "workers", self.start)), replies.SeekReply)
        self.world.epoch = self.world.open("orders", "workers").epoch
        self.done, self.out, self.tries, self.not_before = set(), {}, {}, {}

    def check(self) -> None:
        world = self.world
        end = len(self.messages)
        floor = next((offset for offset in range(self.start, end) if offset not in self.done), end)
        assert world.acked == max(floor, self.start)
        above = {offset for offset in self.done if offset >= floor}
        assert world.info()[:2] == (len(above), len(self.out))
        leased = {
            offset: token
            for token, lease in world.shared.leases.items()
            for first, last, _ in lease.spans
            for offset in range(first, last)
        }
        assert leased == self.out

    def finish(self) -> None:
        """Check that no message is lost: take and ack everything."""
        for _ in range(10_000):
            self.tick()
            decision = self.world.take("last", 50)
            self.taken(decision, "last")
            if token := token_of(decision):
                self.world.settle(*((token, offset, 1) for offset in self.held(token)))
                self.done |= set(self.held(token))
                self.return_lease({token})
            elif (
                decision.waits_for
                and not self.out
                and not any(time_ms > self.world.now_ms for time_ms in self.not_before.values())
            ):
                break
        self.check()
        assert self.world.acked == len(self.messages)
        assert set(range(self.start, len(self.messages))) <= self.done


@pytest.mark.parametrize("key_order", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_no_message_is_leased_twice_lost_or_overtaken(seed: int, key_order: bool) -> None:
    world = Workers(key_order)
    model = Model(world, random.Random(seed), key_order)
    for _ in range(120):
        model.step()
    assert image_of(world.replayed()) == world.image()
    assert image_of(snapshot_of(world)) == world.image()
    model.finish()
    assert image_of(world.replayed()) == world.image()


def snapshot_of(world: Workers) -> Engine:
    capture, chunks = world.engine.capture(), []
    while (chunk := capture.chunk()) is not None:
        chunks.append(chunk)
    engine = Engine("broker", 1, EXTENT_BYTES, world.limits)
    engine.restore(chunks)
    return engine


@pytest.mark.parametrize("key_order", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_recovered_broker_decides_like_the_one_before(seed: int, key_order: bool) -> None:
    world = Workers(key_order)
    model = Model(world, random.Random(seed), key_order)
    for _ in range(80):
        model.step()
    for engine in (snapshot_of(world), world.replayed()):
        replica = engine.state.topics["orders"]
        for now_ms in (world.now_ms, world.now_ms + 300):
            decisions = [
                decide_take(world.engine.state, world.limits, now_ms, topic, topic.subscriptions["workers"], command)
                for topic in (world.topic, replica)
                for command in [world.command("fresh", 50, 1)]
            ]
            assert decisions[0] == decisions[1]
