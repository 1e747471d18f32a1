"""Quotas: a full topic refuses puts, drops the oldest messages, or deletes the slowest subscription."""

from __future__ import annotations

import pytest

from oncemq.engine.events import Dropped, SubscriptionExpired
from oncemq.engine.state.topic import Subscription
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import EXPIRED_NAMES_MAX
from tests.engine.invariants import check, without_verdicts
from tests.engine.world import World, code, offsets_of, put

QUOTA = 350


class Full(World):
    """A topic with a quota of three messages of 100 bytes; `a` and `b` are subscribed to it."""

    def __init__(self, overflow: str, retain_bytes: int = 0) -> None:
        super().__init__()
        self.do(commands.CreateTopic("orders", 0, retain_bytes, QUOTA, overflow))
        for subscriber in ("a", "b"):
            self.do(commands.Subscribe("orders", subscriber))
        for _ in range(3):
            assert isinstance(self.put(), replies.PutReply)

    def put(self, size: int = 100, due_ms: int = 0) -> replies.Reply:
        reply = self.do(put(size=size, due_ms=due_ms))
        self.tick()
        return reply

    def subscription(self, name: str) -> Subscription:
        return self.topic_of().subscriptions[name]

    def got(self, name: str = "a", position: int = -1) -> tuple[list[int], int]:
        """Return offsets, and the number of dropped messages."""
        decision = self.get(self.open("orders", name), name, position)
        assert isinstance(decision.reply, replies.GetReply), decision.reply
        return offsets_of(decision.slices), decision.reply.dropped

    def alter(self, quota_bytes: int, overflow: str = commands.REFUSE, retain_bytes: int = 0) -> None:
        reply = self.do(commands.CreateTopic("orders", 0, retain_bytes, quota_bytes, overflow, alter=True))
        assert isinstance(reply, replies.TopicReply)


# Settings.


@pytest.mark.parametrize("overflow", [commands.REFUSE, commands.EXPIRE])
@pytest.mark.parametrize("retention", [(1, 0), (0, 1)])
def test_retention_needs_the_policy_drop(overflow: str, retention: tuple[int, int]) -> None:
    world = World()
    assert code(world.do(commands.CreateTopic("orders", *retention, 100, overflow))) == "UNSUPPORTED"
    assert isinstance(world.do(commands.CreateTopic("orders", *retention, 100, commands.DROP)), replies.TopicReply)


def test_bad_settings_are_refused() -> None:
    world = World()
    assert code(world.do(commands.CreateTopic("orders", quota_bytes=-1))) == "MALFORMED"
    assert code(world.do(commands.CreateTopic("orders", quota_bytes=1, overflow="explode"))) == "MALFORMED"


def test_other_settings_need_alter() -> None:
    world = Full(commands.REFUSE)
    assert code(world.do(commands.CreateTopic("orders", quota_bytes=999))) == "TOPIC_EXISTS"
    assert code(world.do(commands.CreateTopic("orders", quota_bytes=QUOTA, overflow=commands.DROP))) == "TOPIC_EXISTS"
    assert world.do(commands.CreateTopic("orders", quota_bytes=QUOTA)) == replies.TopicReply(1, False)
    world.alter(999, commands.DROP)
    listed = world.send(commands.Topics()).reply
    assert isinstance(listed, replies.TopicsReply)
    assert (listed.topics[0].quota_bytes, listed.topics[0].overflow) == (999, commands.DROP)
    check(world)


@pytest.mark.parametrize("overflow", [commands.REFUSE, commands.DROP, commands.EXPIRE])
def test_a_batch_larger_than_the_quota_is_refused(overflow: str) -> None:
    world = Full(overflow)
    before = without_verdicts(world)
    assert code(world.put(QUOTA + 1)) == "TOO_LARGE"
    assert without_verdicts(world) == before


# Refuse.


def test_a_full_topic_refuses_puts_and_the_number_stays_open() -> None:
    world = Full(commands.REFUSE)
    before = world.image()
    reply = world.put()
    assert isinstance(reply, replies.NotNow)
    assert (reply.code, world.image()) == ("TOPIC_FULL", before)
    assert isinstance(world.again(put(size=50)), replies.PutReply), "a smaller one fits"


def test_it_accepts_puts_after_acks() -> None:
    world = Full(commands.REFUSE)
    assert code(world.put()) == "TOPIC_FULL"
    world.get(world.open("orders", "a"), "a", ack=1)
    assert code(world.again(put())) == "TOPIC_FULL"
    world.get(world.open("orders", "b"), "b", ack=1)
    assert world.again(put()) == replies.PutReply(1, 3, 1, world.now_ms, 2)
    check(world)


def test_it_accepts_puts_after_messages_have_expired() -> None:
    world = Full(commands.REFUSE)
    world.alter(450)
    world.do(put(ttl_ms=500))
    assert code(world.put()) == "TOPIC_FULL"
    world.get(world.open("orders", "a"), "a", ack=3)
    world.get(world.open("orders", "b"), "b", ack=3)
    assert isinstance(world.again(put(size=350)), replies.PutReply)
    assert code(world.put()) == "TOPIC_FULL"
    world.tick(500)
    assert isinstance(world.again(put()), replies.PutReply)
    check(world)


def test_a_commit_that_does_not_fit_waits() -> None:
    world = Full(commands.REFUSE)
    for name in ("s", "t"):
        world.do(commands.Stage(name, "orders", "w", 0, commands.Envelope(1, 40, 0)))
    assert world.topic_of().stored_bytes == 300, "what is staged does not count"
    commit = commands.Commit("w", 0, "orders", (("s", 1), ("t", 1)))
    before = world.image()
    assert code(world.do(commit)) == "TOPIC_FULL"
    assert world.image() == before
    for name in ("a", "b"):
        world.get(world.open("orders", name), name, ack=1)
    assert isinstance(world.again(commit), replies.CommitReply)
    check(world)


def test_a_commit_larger_than_the_quota_is_refused() -> None:
    world = Full(commands.REFUSE)
    stages = [f"s{number}" for number in range(4)]
    for name in stages:
        world.do(commands.Stage(name, "orders", "w", 0, commands.Envelope(1, 100, 0)))
    assert code(world.do(commands.Commit("w", 0, "orders", tuple((name, 1) for name in stages)))) == "TOO_LARGE"


def test_a_topic_without_subscribers_is_never_full() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", quota_bytes=150))
    for _ in range(5):
        assert isinstance(world.do(put()), replies.PutReply)
    check(world)


# Drop.


def test_the_oldest_messages_are_deleted_even_if_needed() -> None:
    world = Full(commands.DROP)
    world.get(world.open("orders", "b"), "b", ack=2)
    assert isinstance(world.put(), replies.PutReply)
    assert world.topic_of().stored_bytes == 300
    assert world.got("a") == ([1, 2, 3], 1)
    assert world.got("b") == ([2, 3], 0)
    check(world)
    world.put(300)
    assert world.got("a") == ([4], 4)
    assert world.got("b") == ([4], 2)
    assert (world.subscription("a").acked, world.subscription("b").acked) == (4, 4)
    check(world)


def test_a_slow_consumer_continues_at_the_first_remaining_message() -> None:
    world = Full(commands.DROP)
    owner = world.open("orders", "a")
    assert world.offsets(owner, "a") == [0, 1, 2]
    world.put()
    world.put()
    for position in (0, 1, 2):
        assert world.offsets(owner, "a", position) == [2, 3, 4]
    world.get(owner, "a", position=3, ack=3)
    assert world.subscription("a").acked == 3
    check(world)


def test_an_ack_of_dropped_messages_has_no_effect() -> None:
    world = Full(commands.DROP)
    owner = world.open("orders", "a")
    world.put()
    world.put()
    assert world.send(commands.Ack(1, "a", owner.epoch, 1)).reply == replies.AckReply(2)


def test_no_more_is_dropped_than_necessary() -> None:
    world = Full(commands.DROP)
    world.put(10)
    assert world.topic_of().stored_bytes == 310
    world.put(41)
    assert (world.topic_of().stored_bytes, world.got("a")) == (251, ([1, 2, 3, 4], 1))


def test_expired_messages_that_are_deleted_do_not_count_as_dropped() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", quota_bytes=QUOTA, overflow=commands.DROP))
    world.do(commands.Subscribe("orders", "a"))
    for ttl_ms in (10, 10, 0, 0):
        world.do(put(ttl_ms=ttl_ms))
        world.tick(10)
    for _ in range(2):
        world.do(put())
        world.tick()
    assert world.topic_of().subscriptions["a"].dropped == 1
    check(world)


def test_dropping_ends_leases_too() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", quota_bytes=QUOTA, overflow=commands.DROP))
    world.do(commands.Subscribe("orders", "workers", sharing=commands.Sharing(lease_ms=1_000)))
    opened = world.open("orders", "workers")
    for _ in range(3):
        world.do(put())
    taken = world.send(commands.Take(1, "workers", opened.epoch, "m", 1, 3, 1000)).reply
    assert isinstance(taken, replies.TakeReply)
    assert world.do(commands.Settle(1, "workers", opened.epoch, ((taken.token, 1, 1),))) == replies.SettleReply(())
    world.do(put())
    world.tick()
    assert world.topic_of().subscriptions["workers"].dropped == 1
    assert world.topic_of().subscriptions["workers"].acked == 2, "what was done above joins what was dropped"
    assert world.topic_of().index.first == 2
    check(world)
    settle = commands.Settle(1, "workers", opened.epoch, ((taken.token, 0, 1), (taken.token, 2, 1)))
    assert world.do(settle) == replies.SettleReply(((0, 1),))
    check(world)


def test_dropping_does_not_affect_subscriptions_that_lost_nothing() -> None:
    world = Full(commands.DROP, retain_bytes=10_000)
    for name in ("a", "b"):
        world.get(world.open("orders", name), name, ack=3)
    world.put()
    world.put()
    assert world.topic_of().index.first == 2
    assert (world.subscription("a").dropped, world.subscription("a").acked) == (0, 3)
    check(world)


def test_the_stricter_of_quota_and_retention_deletes_messages() -> None:
    world = Full(commands.DROP, retain_bytes=150)
    for name in ("a", "b"):
        world.get(world.open("orders", name), name, ack=3)
    world.tick()
    assert world.topic_of().index.first == 2
    world.put(300)
    assert (world.topic_of().index.first, world.subscription("a").dropped) == (3, 0)
    world.put(300)
    assert (world.topic_of().index.first, world.subscription("a").dropped) == (4, 1)
    check(world)


def test_many_subscriptions_can_lose_messages_at_once() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", quota_bytes=1_000, overflow=commands.DROP))
    for number in range(10):
        world.do(commands.Subscribe("orders", f"{number}"))
        world.do(put())
    world.do(put(size=950))
    world.tick()
    dropped = {name: entry.dropped for name, entry in world.topic_of().subscriptions.items()}
    assert dropped == {f"{number}": 10 - number for number in range(10)}
    check(world)


def test_a_pattern_is_told_what_it_has_lost() -> None:
    world = Full(commands.DROP)
    world.do(commands.Subscribe("#", "all", commands.START_EARLIEST))
    world.put()
    reply = world.send(commands.GetAny("#", "all", world.open("#", "all").epoch, (), 10_000)).reply
    assert isinstance(reply, replies.GetAnyReply)
    assert [(part.acked, part.next_position, part.dropped) for part in reply.parts] == [(1, 4, 1)]
    check(world)


def test_a_transaction_also_triggers_dropping() -> None:
    world = Full(commands.DROP)
    world.do(commands.Transact(puts=(put(), put())))
    [dropped] = world.tick()
    assert dropped == Dropped(1, 2)
    check(world)


# Expire.


def test_the_slowest_subscription_is_deleted_and_its_owner_is_told() -> None:
    world = Full(commands.EXPIRE)
    owner = world.open("orders", "a")
    world.get(world.open("orders", "b"), "b", ack=1)
    assert isinstance(world.put(), replies.PutReply)
    assert list(world.topic_of().subscriptions) == ["b"]
    for reply in (
        world.get(owner, "a").reply,
        world.send(commands.Ack(1, "a", owner.epoch, 1)).reply,
        world.do(commands.Open("orders", "a")),
        world.do(commands.Seek("orders", "a")),
        world.do(commands.Unsubscribe("orders", "a")),
        world.do(commands.Transact((commands.AckUpto(1, "a", owner.epoch, 1),))),
    ):
        assert code(reply) == "SUBSCRIPTION_EXPIRED"
    assert world.got("b") == ([1, 2, 3], 0)
    check(world)


def test_as_many_subscriptions_as_necessary_are_deleted() -> None:
    world = Full(commands.EXPIRE)
    world.do(commands.Subscribe("orders", "c"))
    world.do(put(size=300))
    ended = [event.subscriber for _ in range(4) for event in world.tick() if isinstance(event, SubscriptionExpired)]
    assert ended == ["a", "b"]
    assert world.topic_of().stored_bytes == 300
    check(world)


def test_subscribing_again_creates_a_new_subscription() -> None:
    world = Full(commands.EXPIRE)
    world.put()
    world.put()
    assert world.do(commands.Subscribe("orders", "a")) == replies.SubscribeReply(1, 5, True)
    world.put()
    assert world.got("a") == ([5], 0)
    assert code(world.do(commands.Open("orders", "b"))) == "SUBSCRIPTION_EXPIRED"
    assert code(world.do(commands.Open("orders", "never was"))) == "NOT_SUBSCRIBED"
    check(world)


def test_names_of_expired_subscriptions_survive_a_restart_and_are_limited() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", quota_bytes=100, overflow=commands.EXPIRE))
    for number in range(EXPIRED_NAMES_MAX + 2):
        world.do(commands.Subscribe("orders", f"{number}"))
        world.do(put(size=60))
        world.do(put(size=60))
        world.tick()
    names = list(world.topic_of().expired_names)
    assert (len(names), names[0]) == (EXPIRED_NAMES_MAX, "2")
    check(world)


def test_a_shared_subscription_is_deleted_with_its_leases() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", quota_bytes=QUOTA, overflow=commands.EXPIRE))
    world.do(commands.Subscribe("orders", "workers", sharing=commands.Sharing(lease_ms=1_000, key_order=True)))
    opened = world.open("orders", "workers")
    for _ in range(4):
        world.do(put())
        world.send(commands.Take(1, "workers", opened.epoch, "m", 1, 3, 1000))
    world.tick()
    assert code(world.send(commands.Take(1, "workers", opened.epoch, "m", 2, 3, 1000)).reply) == "SUBSCRIPTION_EXPIRED"
    assert code(world.do(commands.Settle(1, "workers", opened.epoch, ()))) == "SUBSCRIPTION_EXPIRED"
    assert world.tick(5_000) == []
    check(world)


def test_a_pattern_subscription_is_not_deleted_but_continues_at_the_end() -> None:
    world = World()
    world.do(commands.Subscribe("#", "all"))
    world.do(commands.CreateTopic("orders", quota_bytes=QUOTA, overflow=commands.EXPIRE))
    world.do(put("other", create=True))
    for _ in range(4):
        world.do(put())
    world.tick()
    owner = world.open("#", "all")
    assert world.get_any(owner, "#", "all") == {"other": [0]}
    world.do(put())
    assert world.get_any(owner, "#", "all") == {"other": [0], "orders": [4]}
    assert world.topic_of().subscriptions["all" + commands.BY_PATTERN + "#"].dropped == 4
    check(world)


# Delayed messages.


@pytest.mark.parametrize("overflow", [commands.DROP, commands.EXPIRE])
def test_delayed_messages_are_not_dropped_so_puts_wait(overflow: str) -> None:
    world = World()
    world.do(commands.CreateTopic("orders", quota_bytes=250, overflow=overflow))
    world.do(commands.Subscribe("orders", "a"))
    for _ in range(2):
        assert isinstance(world.do(put(due_ms=5_000)), replies.PutReply)
    for operation in (put(due_ms=5_000), put()):
        assert code(world.do(operation)) == "TOPIC_FULL"
        world.again(commands.Void())
    world.do(put(size=50))
    assert world.tick() == []
    world.tick(5_000)
    assert isinstance(world.do(put()), replies.PutReply)
    check(world)


def test_delayed_messages_displace_older_messages() -> None:
    world = Full(commands.DROP)
    world.put(due_ms=5_000)
    assert world.got("a") == ([1, 2], 1)
    world.tick(5_000)
    assert world.got("a") == ([1, 2, 3], 1)
    assert world.topic_of().held_bytes == 300
    check(world)


# Changed settings.


@pytest.mark.parametrize("overflow", [commands.DROP, commands.EXPIRE])
def test_a_smaller_quota_applies_immediately(overflow: str) -> None:
    world = Full(commands.REFUSE)
    world.get(world.open("orders", "b"), "b", ack=2)
    world.alter(250, overflow)
    world.tick()
    assert world.topic_of().stored_bytes <= 250
    assert ("a" in world.topic_of().subscriptions) == (overflow == commands.DROP)
    check(world)


def test_a_smaller_quota_that_refuses_drops_nothing() -> None:
    world = Full(commands.REFUSE)
    world.alter(50)
    assert world.tick() == []
    assert world.topic_of().stored_bytes == 300
    assert code(world.do(put(size=10))) == "TOPIC_FULL"


@pytest.mark.parametrize(
    ("quota_bytes", "overflow"), [(0, commands.REFUSE), (QUOTA, commands.REFUSE), (10_000, commands.EXPIRE)]
)
def test_a_quota_removed_in_time_deletes_nothing(quota_bytes: int, overflow: str) -> None:
    world = Full(commands.DROP)
    world.do(put())
    world.alter(quota_bytes, overflow)
    assert world.tick() == []
    assert (world.got("a"), world.got("b")) == (([0, 1, 2, 3], 0), ([0, 1, 2, 3], 0))
    check(world)


def test_replacing_a_quota_by_a_retention_keeps_the_byte_count() -> None:
    world = Full(commands.DROP)
    world.put()
    world.alter(0, commands.REFUSE, retain_bytes=150)
    for name in ("a", "b"):
        world.get(world.open("orders", name), name, ack=4)
    world.tick()
    assert world.topic_of().stored_bytes == 100
    check(world)


def test_the_quota_is_enforced_after_a_restart() -> None:
    world = Full(commands.DROP)
    world.do(put())
    check(world)
    replica = world.replayed()
    assert replica.next_tick_ms() == 0
    assert replica.tick(world.now_ms) == [Dropped(1, 1)]
