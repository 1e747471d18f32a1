"""Subscriptions that are deleted when their owner is idle for too long."""

from __future__ import annotations

import pytest

from oncemq.engine import events
from oncemq.protocol import commands, replies
from tests.engine.invariants import check, engine_from
from tests.engine.world import World, code, put

IDLE_MS = 1_000


def world_with_guest(topic: str = "orders") -> World:
    world = World()
    world.do(commands.CreateTopic("orders"))
    world.do(commands.Subscribe(topic, "guest", commands.START_NEW, None, IDLE_MS))
    world.tick()
    return world


def subscribers(world: World) -> set[str]:
    return {*world.topic_of().subscriptions}


@pytest.mark.parametrize("topic", ["orders", "*"])
def test_a_subscription_whose_owner_is_idle_is_deleted_with_its_messages(topic: str) -> None:
    world = world_with_guest(topic)
    world.do(put())
    world.tick(IDLE_MS - 1)
    assert len(subscribers(world)) == 1
    [event] = world.tick(1)
    assert isinstance(event, events.Unsubscribed | events.PatternUnsubscribed)
    assert event.claim is None
    assert subscribers(world) == set()
    assert len(world.topic_of().index) == 0
    assert world.engine.next_tick_ms() is None
    check(world)


def test_an_owner_that_opens_gets_or_acks_keeps_its_subscription() -> None:
    world = world_with_guest()
    world.tick(IDLE_MS - 1)
    owner = world.open("orders", "guest")
    world.tick(IDLE_MS - 1)
    world.get(owner, "guest")
    world.tick(IDLE_MS - 1)
    world.do(put())
    world.send(commands.Ack(owner.topic_id, "guest", owner.epoch, 1))
    world.tick(IDLE_MS - 1)
    assert subscribers(world) == {"guest"}
    world.tick(1)
    assert subscribers(world) == set()
    assert code(world.get(owner, "guest").reply) == "NOT_SUBSCRIBED"


def test_the_owner_of_a_pattern_keeps_it_with_gets() -> None:
    world = world_with_guest("*")
    owner = world.do(commands.Open("*", "guest"), session="consumer")
    assert isinstance(owner, replies.OpenReply)
    for _ in range(3):
        world.tick(IDLE_MS - 1)
        world.get_any(owner, "*", "guest")
    world.tick(IDLE_MS - 1)
    assert len(subscribers(world)) == 1
    world.tick(1)
    assert subscribers(world) == set()
    assert world.engine.state.patterns == {}


def test_an_owner_that_was_fenced_does_not_keep_the_subscription() -> None:
    world = world_with_guest()
    former = world.open("orders", "guest")
    world.open("orders", "guest")
    world.tick(IDLE_MS - 1)
    assert code(world.get(former, "guest").reply) == "FENCED"
    world.tick(1)
    assert subscribers(world) == set()


def test_the_idle_time_starts_again_after_a_recovery() -> None:
    world = world_with_guest()
    world.tick(IDLE_MS - 1)
    for engine in (world.replayed(), engine_from(world.engine, world.limits)):
        later_ms = world.now_ms + 100 * IDLE_MS
        assert engine.tick(later_ms) == []
        assert engine.tick(later_ms + IDLE_MS - 1) == []
        assert len(engine.tick(later_ms + IDLE_MS)) == 1


def test_a_topic_that_a_subscription_created_is_deleted_with_it() -> None:
    world = World()
    world.do(commands.Subscribe("visits", "guest", commands.START_NEW, None, IDLE_MS))
    world.tick()
    [event] = world.tick(IDLE_MS)
    assert isinstance(event, events.Unsubscribed)
    assert event.topic_removed
    assert world.engine.state.topics == {}
    check(world)


def test_a_durable_subscription_is_never_idle() -> None:
    world = World()
    world.do(commands.Subscribe("orders", "billing"))
    assert world.tick(10**12) == []
    assert subscribers(world) == {"billing"}


@pytest.mark.parametrize("topic", ["orders", "*"])
def test_a_subscription_that_exists_with_another_limit_is_refused(topic: str) -> None:
    """A caller that wants a durable subscription must not get one that is deleted, and vice versa."""
    world = world_with_guest(topic)
    assert code(world.do(commands.Subscribe(topic, "guest"))) == "SUBSCRIPTION_EXISTS"
    world.do(commands.Subscribe(topic, "billing"))
    temporary = commands.Subscribe(topic, "billing", commands.START_NEW, None, IDLE_MS)
    assert code(world.do(temporary)) == "SUBSCRIPTION_EXISTS"
    again = world.do(commands.Subscribe(topic, "guest", commands.START_NEW, None, IDLE_MS))
    assert isinstance(again, replies.SubscribeReply)
    assert not again.created


def test_invalid_limits_are_refused() -> None:
    world = World()
    for topic in ("orders", "*"):
        assert code(world.do(commands.Subscribe(topic, "guest", commands.START_NEW, None, 1))) == "MALFORMED"
    shared = commands.Subscribe("orders", "guest", commands.START_NEW, commands.Sharing(), IDLE_MS)
    assert code(world.do(shared)) == "UNSUPPORTED"
