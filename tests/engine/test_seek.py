"""Seek: a subscription is moved, no late ack undoes it, and its owner continues."""

from __future__ import annotations

import pytest

from oncemq.protocol import commands, replies
from tests.engine.invariants import check, engine_from, without_verdicts
from tests.engine.world import World, code, put


class Seekable(World):
    """Ten messages, one per second, in a topic with retention; `a` owns its subscription and has acked four."""

    def __init__(self) -> None:
        super().__init__()
        self.do(commands.CreateTopic("orders", retain_bytes=1_000_000))
        self.do(commands.Subscribe("orders", "a"))
        for _ in range(10):
            self.do(put())
            self.now_ms += 1_000
        self.owner = self.open("orders", "a")
        self.get(self.owner, "a", ack=4)

    def seek(self, to: int = commands.START_EARLIEST, time_ms: int = 0) -> replies.Reply:
        return self.do(commands.Seek("orders", "a", to, time_ms))

    @property
    def acked(self) -> int:
        return self.topic_of().subscriptions["a"].acked


def asked(world: World, owner: replies.OpenReply, subscriber: str = "a") -> str:
    """Return the refusal that an owner gets for a get and for an ack, which must be the same."""
    got, acked = (
        world.send(command).reply
        for command in (
            commands.Get(owner.topic_id, subscriber, owner.epoch, 5, 100),
            commands.Ack(owner.topic_id, subscriber, owner.epoch, 10),
        )
    )
    assert code(got) == code(acked)
    return code(got)


# Positions.


@pytest.mark.parametrize(
    ("to", "expected"), [(commands.START_EARLIEST, 0), (commands.START_NEW, 10), (0, 0), (7, 7), (10, 10)]
)
def test_to_an_offset_the_earliest_or_the_end(to: int, expected: int) -> None:
    world = Seekable()
    assert world.seek(to) == replies.SeekReply(1, expected)
    assert world.open("orders", "a").acked == world.acked == expected
    check(world)


@pytest.mark.parametrize(("time_ms", "expected"), [(1, 0), (1_000, 0), (1_001, 1), (5_000, 4), (99_000, 10)])
def test_to_the_first_message_of_a_time_or_later(time_ms: int, expected: int) -> None:
    world = Seekable()
    assert world.seek(time_ms=time_ms) == replies.SeekReply(1, expected)
    assert world.send(commands.Find("orders", time_ms)).reply == replies.FindReply(1, expected)


@pytest.mark.parametrize(("to", "expected"), [(11, "OFFSET_OUT_OF_RANGE"), (-3, "RANGE_GONE"), (2, "RANGE_GONE")])
def test_an_invalid_seek_is_refused_and_changes_nothing(to: int, expected: str) -> None:
    world = Seekable()
    world.do(commands.CreateTopic("orders", alter=True))
    before = without_verdicts(world)
    assert code(world.seek(to)) == expected
    assert without_verdicts(world) == before
    assert isinstance(world.get(world.owner, "a", 4).reply, replies.GetReply), "its owner does not notice"


def test_a_seek_of_an_unknown_subscription_is_refused() -> None:
    world = Seekable()
    assert code(world.seek(time_ms=-1)) == "MALFORMED"
    assert code(world.do(commands.Seek("nowhere", "a"))) == "TOPIC_UNKNOWN"
    assert code(world.do(commands.Seek("orders", "nobody"))) == "NOT_SUBSCRIBED"
    assert code(world.do(commands.Seek("orders.*", "a"))) == "NOT_SUBSCRIBED"


def test_a_repeated_seek_moves_once() -> None:
    world = Seekable()
    world.seek(2)
    owner = world.open("orders", "a")
    world.get(owner, "a", ack=8)
    assert world.again(commands.Seek("orders", "a", 2)) == replies.SeekReply(1, 2)
    assert world.acked == 8


# Owners.


def test_a_late_ack_does_not_undo_it() -> None:
    world = Seekable()
    world.seek(2)
    assert asked(world, world.owner) == "SOUGHT"
    assert world.acked == 2
    ack = commands.AckUpto(1, "a", world.owner.epoch, 10)
    assert code(world.do(commands.Transact((ack,)))) == "SOUGHT"
    assert world.acked == 2


def test_the_owner_continues_after_opening_again() -> None:
    world = Seekable()
    world.seek(2)
    owner = world.open("orders", "a")
    assert owner.acked == 2
    assert world.offsets(owner, "a") == list(range(2, 10))
    assert asked(world, world.owner) == "FENCED", "its former self is another owner by then"


def test_several_seeks_look_like_one_to_the_owner() -> None:
    world = Seekable()
    for to in (2, 7, 3):
        world.seek(to)
        assert asked(world, world.owner) == "SOUGHT"
    assert world.open("orders", "a").acked == 3
    check(world)


def test_a_list_says_that_a_subscription_was_moved_until_it_is_opened_again() -> None:
    world = Seekable()

    def listed() -> tuple[bool, int]:
        reply = world.send(commands.Subscriptions("orders")).reply
        assert isinstance(reply, replies.SubscriptionsReply)
        return reply.subscriptions[0].sought, reply.subscriptions[0].confirmed

    assert listed() == (False, 4)
    world.seek(7)
    assert listed() == (True, 7)
    world.open("orders", "a")
    assert listed() == (False, 7)


def test_a_take_over_after_a_seek_fences_the_former_owner_for_good() -> None:
    world = Seekable()
    world.seek(2)
    newer = world.open("orders", "a")
    assert asked(world, world.owner) == "FENCED"
    world.seek(5)
    assert asked(world, newer) == "SOUGHT"
    assert asked(world, world.owner) == "FENCED"
    world.open("orders", "a")
    assert asked(world, newer) == asked(world, world.owner) == "FENCED"


def test_an_owner_before_the_last_take_over_is_not_told_sought() -> None:
    world = Seekable()
    newer = world.open("orders", "a")
    world.seek(2)
    assert asked(world, newer) == "SOUGHT"
    assert asked(world, world.owner) == "FENCED"


def test_reopening_after_a_seek_does_not_fence_a_successor() -> None:
    world = Seekable()
    world.seek(2)
    again = commands.Open("orders", "a", former=world.owner.epoch)
    assert isinstance(world.do(again), replies.OpenReply), "it is the same owner"
    successor = world.open("orders", "a")
    assert code(world.do(again)) == "SUBSCRIPTION_FENCED"
    world.seek(3)
    assert code(world.do(again)) == "SUBSCRIPTION_FENCED"
    assert isinstance(world.do(commands.Open("orders", "a", former=successor.epoch)), replies.OpenReply)
    check(world)


def test_a_subscription_without_an_owner_can_be_moved() -> None:
    world = Seekable()
    world.do(commands.Subscribe("orders", "b"))
    world.do(commands.Seek("orders", "b"))
    world.do(commands.Seek("orders", "b", 3))
    assert world.offsets(world.open("orders", "b"), "b") == list(range(3, 10))


def test_it_ends_a_hold() -> None:
    world = Seekable()
    assert isinstance(world.do(commands.Open("orders", "a", 60_000)), replies.OpenReply)
    assert code(world.do(commands.Open("orders", "a", 60_000))) == "BUSY"
    world.again(commands.Void())
    world.seek(2)
    assert isinstance(world.do(commands.Open("orders", "a", 60_000)), replies.OpenReply)


def test_seeks_are_known_after_a_restart() -> None:
    world = Seekable()
    world.seek(2)
    for replica in (world.replayed(), engine_from(world.engine, world.limits)):
        world.engine = replica
        assert asked(world, world.owner) == "SOUGHT"


# Deletion.


def test_a_seek_forward_frees_messages_and_a_seek_back_keeps_them() -> None:
    world = World()
    for subscriber in ("a", "b"):
        world.do(commands.Subscribe("orders", subscriber))
    for _ in range(6):
        world.do(put())
    index = world.topic_of().index
    world.do(commands.Seek("orders", "a", commands.START_NEW))
    world.do(commands.Seek("orders", "b", 4))
    assert index.first == 4
    assert code(world.do(commands.Seek("orders", "a", 3))) == "RANGE_GONE"
    world.do(commands.Seek("orders", "a", 4))
    world.do(commands.Seek("orders", "b", commands.START_NEW))
    assert index.first == 4, "the other one came back in time"
    assert world.offsets(world.open("orders", "a"), "a") == [4, 5]
    check(world)


def test_seeks_back_and_forth_keep_the_low_watermark_correct() -> None:
    world = Seekable()
    world.do(commands.Subscribe("orders", "b", commands.START_EARLIEST))
    for to in (0, 10, 5, 5, 0, 3, 10, 0):
        world.seek(to)
        check(world)
    world.do(commands.CreateTopic("orders", alter=True))
    assert world.topic_of().index.first == 0
    world.do(commands.Seek("orders", "b", commands.START_NEW))
    world.seek(9)
    assert world.topic_of().index.first == 9
    check(world)


# Shared subscriptions.


def take(world: World, opened: replies.OpenReply, number: int, count: int = 3) -> replies.Reply:
    return world.send(commands.Take(opened.topic_id, "workers", opened.epoch, "m", number, count, 10_000)).reply


def test_a_shared_subscription_restarts_at_the_new_position() -> None:
    world = Seekable()
    world.do(commands.Subscribe("orders", "workers", commands.START_EARLIEST, commands.Sharing()))
    opened = world.open("orders", "workers")
    leased = take(world, opened, 1)
    assert isinstance(leased, replies.TakeReply)
    world.do(commands.Settle(1, "workers", opened.epoch, ((leased.token, 1, 1),)))
    world.do(commands.Seek("orders", "workers", 1))
    settle = commands.Settle(1, "workers", opened.epoch, ((leased.token, 0, 1),))
    assert code(world.do(settle)) == code(take(world, opened, 2)) == "SOUGHT"
    assert code(world.send(commands.Extend(1, "workers", opened.epoch, (leased.token,))).reply) == "SOUGHT"
    again = world.open("orders", "workers")
    assert again.acked == 1
    taken = take(world, again, 2)
    assert isinstance(taken, replies.TakeReply)
    assert [(head.first_offset, head.tries) for head in taken.heads] == [(1, 1), (2, 1), (3, 1)]
    check(world)


def test_every_member_is_told_after_several_seeks() -> None:
    world = Seekable()
    world.do(commands.Subscribe("orders", "workers", commands.START_EARLIEST, commands.Sharing()))
    first = world.open("orders", "workers")
    world.do(commands.Seek("orders", "workers", 1))
    second = world.open("orders", "workers")
    world.do(commands.Seek("orders", "workers", 2))
    assert code(take(world, first, 1)) == code(take(world, second, 1)) == "SOUGHT"
    assert isinstance(take(world, world.open("orders", "workers"), 1), replies.TakeReply)


def test_a_member_of_a_former_subscription_of_that_name_is_not_told_sought() -> None:
    world = Seekable()
    world.do(commands.Subscribe("orders", "workers", sharing=commands.Sharing()))
    former = world.open("orders", "workers")
    world.do(commands.Unsubscribe("orders", "workers"))
    world.do(commands.Subscribe("orders", "workers", sharing=commands.Sharing()))
    world.do(commands.Seek("orders", "workers", 1))
    assert code(take(world, former, 1)) == "FENCED"


def test_key_order_cannot_seek_to_offsets_without_key_hashes() -> None:
    world = Seekable()
    world.do(commands.Subscribe("orders", "workers", sharing=commands.Sharing(key_order=True)))
    world.do(put())
    assert code(world.do(commands.Seek("orders", "workers", 9))) == "UNSUPPORTED"
    assert world.do(commands.Seek("orders", "workers", 10)) == replies.SeekReply(1, 10)


# Patterns.


def watched() -> tuple[World, replies.OpenReply]:
    world = World()
    world.do(commands.Subscribe("orders.*", "all"))
    for name in ("orders.eu", "orders.us", "orders.eu"):
        world.do(commands.CreateTopic(name, retain_bytes=1_000_000))
        world.do(put(name))
        world.now_ms += 1_000
    owner = world.open("orders.*", "all")
    world.ack_any(owner, "orders.*", "all", {1: 2})
    return world, owner


@pytest.mark.parametrize(
    ("seek", "expected"),
    [
        (commands.Seek("orders.*", "all"), {"orders.eu": [0, 1], "orders.us": [0]}),
        (commands.Seek("orders.*", "all", commands.START_NEW), {}),
        (commands.Seek("orders.*", "all", time_ms=2_000), {"orders.eu": [1], "orders.us": [0]}),
        (commands.Seek("orders.*", "all", 7, time_ms=2_001), {"orders.eu": [1]}),
    ],
)
def test_a_pattern_is_moved_on_all_its_topics(seek: commands.Seek, expected: dict[str, list[int]]) -> None:
    world, owner = watched()
    assert world.do(seek) == replies.SeekReply(0, 0)
    assert code(world.ack_any(owner, "orders.*", "all", {1: 2})) == "SOUGHT"
    assert asked(world, replies.OpenReply(1, owner.epoch, 0), "all" + commands.BY_PATTERN + "orders.*") == "SOUGHT"
    found = world.get_any(world.open("orders.*", "all"), "orders.*", "all")
    assert {name: sorted(offsets) for name, offsets in found.items()} == expected
    check(world)


@pytest.mark.parametrize("to", [0, 1, -3])
def test_a_pattern_subscription_cannot_seek_to_an_offset(to: int) -> None:
    world, owner = watched()
    assert code(world.do(commands.Seek("orders.*", "all", to))) == "UNSUPPORTED"
    assert isinstance(world.ack_any(owner, "orders.*", "all", {1: 1}), replies.GetAnyReply)


def test_several_seeks_of_a_pattern_look_like_one_to_its_owner() -> None:
    world, owner = watched()
    for _ in range(3):
        world.do(commands.Seek("orders.*", "all"))
        assert code(world.ack_any(owner, "orders.*", "all", {})) == "SOUGHT"
    check(world)
    newer = world.open("orders.*", "all")
    assert code(world.ack_any(owner, "orders.*", "all", {})) == "FENCED"
    assert code(world.do(commands.Open("orders.*", "all", former=owner.epoch))) == "SUBSCRIPTION_FENCED"
    assert isinstance(world.ack_any(newer, "orders.*", "all", {}), replies.GetAnyReply)
