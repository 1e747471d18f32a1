"""Combinations of features, and numbers at the limits of their ranges."""

from __future__ import annotations

import pytest

from oncemq.protocol import commands, replies
from oncemq.protocol.batch import key_hashes
from oncemq.protocol.limits import TRANSACTION_PARTS_MAX
from tests.engine.world import ROOMY, World, code, put

ORDERED = commands.Sharing(1_000, key_order=True)
TWO_OF_A_KEY = commands.Envelope(2, 10, 0, key_hashes=key_hashes([b"a", b"a"]))


def taken(world: World) -> list[int]:
    opened = world.open("orders", "eve")
    reply = world.send(commands.Take(opened.topic_id, "eve", opened.epoch, "m", 1, 10, ROOMY)).reply
    assert isinstance(reply, replies.TakeReply)
    return [offset for head in reply.heads for offset in range(head.first_offset, head.first_offset + head.count)]


# Key order.


def test_batches_staged_before_a_key_order_subscription_have_key_order_when_committed() -> None:
    world = World()
    world.do(commands.CreateTopic("orders"))
    world.do(commands.Stage("s", "orders", "w", 1, TWO_OF_A_KEY))
    world.do(commands.Subscribe("orders", "eve", sharing=ORDERED))
    world.do(commands.Commit("w", 1, "orders", (("s", 2),)))
    assert taken(world) == [0]


@pytest.mark.parametrize("exists", [True, False])
def test_batches_delayed_before_a_key_order_subscription_have_key_order_when_due(exists: bool) -> None:
    world = World()
    if exists:
        world.do(commands.CreateTopic("orders"))
    envelope = commands.Envelope(2, 10, 0, 0, world.now_ms + 50, TWO_OF_A_KEY.key_hashes)
    world.do(commands.Put("orders", envelope, create=True))
    world.do(commands.Subscribe("orders", "eve", sharing=ORDERED))
    world.tick(50)
    assert taken(world) == [0]


def test_key_hashes_are_not_stored_without_a_key_order_subscription() -> None:
    world = World()
    world.do(commands.Subscribe("orders", "bob"))
    world.do(commands.Put("orders", TWO_OF_A_KEY))
    world.do(commands.Put("orders", commands.Envelope(2, 10, 0, 0, world.now_ms + 50, TWO_OF_A_KEY.key_hashes)))
    world.tick(50)
    assert world.engine.state.topics["orders"].index.keys == {}


# Patterns.


def test_a_pattern_subscription_is_not_opened_moved_or_deleted_on_one_topic() -> None:
    world = World()
    world.do(commands.Subscribe("orders", "bob"))
    world.do(commands.Subscribe("#", "eve"))
    name = "eve" + commands.BY_PATTERN + "#"
    assert code(world.do(commands.Open("orders", name))) == "NOT_SUBSCRIBED"
    assert code(world.do(commands.Seek("orders", name))) == "NOT_SUBSCRIBED"
    assert code(world.do(commands.Unsubscribe("orders", name))) == "NOT_SUBSCRIBED"
    assert code(world.do(commands.Subscribe("orders", name))) == "NAME_INVALID"


def test_the_slowest_pattern_subscription_is_told_its_loss_and_continues() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", 0, 0, 150, commands.EXPIRE))
    world.do(commands.Subscribe("#", "eve"))
    opened = world.do(commands.Open("#", "eve"))
    assert isinstance(opened, replies.OpenReply)
    for _ in range(2):
        world.do(put())
    world.tick()
    world.do(put())
    reply = world.send(commands.GetAny("#", "eve", opened.epoch, (), ROOMY)).reply
    assert isinstance(reply, replies.GetAnyReply)
    [part] = reply.parts
    assert (part.acked, part.next_position, part.dropped) == (2, 3, 2)


def test_a_pattern_get_returns_at_least_one_batch_unless_bytes_max_is_0() -> None:
    world = World()
    world.do(commands.Subscribe("#", "eve"))
    opened = world.do(commands.Open("#", "eve"))
    assert isinstance(opened, replies.OpenReply)
    world.do(put(create=True))
    assert len(world.send(commands.GetAny("#", "eve", opened.epoch, (), 1)).slices) == 1
    assert not world.send(commands.GetAny("#", "eve", opened.epoch, (), 0)).slices


def test_the_number_of_acks_of_a_pattern_get_is_limited() -> None:
    world = World()
    world.do(commands.Subscribe("#", "eve"))
    opened = world.do(commands.Open("#", "eve"))
    assert isinstance(opened, replies.OpenReply)
    acks = tuple((topic_id, 0) for topic_id in range(TRANSACTION_PARTS_MAX + 1))
    assert code(world.send(commands.GetAny("#", "eve", opened.epoch, (), ROOMY, 0, acks)).reply) == "MALFORMED"


# Invalid offsets.


def test_a_negative_offset_without_meaning_is_refused_everywhere() -> None:
    world = World()
    world.do(commands.Subscribe("orders", "bob"))
    world.do(commands.Subscribe("#", "eve"))
    assert code(world.do(commands.Subscribe("orders", "new", -3))) == "RANGE_GONE"
    assert code(world.do(commands.Subscribe("elsewhere", "new", -3))) == "OFFSET_OUT_OF_RANGE"
    assert code(world.do(commands.Subscribe("else.*", "new", -3))) == "UNSUPPORTED"
    assert code(world.do(commands.Seek("orders", "bob", -3))) == "RANGE_GONE"
    assert code(world.do(commands.Seek("#", "eve", -3))) == "UNSUPPORTED"
    assert code(world.send(commands.Read("orders", -3, ROOMY)).reply) == "RANGE_GONE"


# A strict limit.


def _strict(world: World, bytes_max: int, position: int = 0) -> list[tuple[replies.GetReply, int, object]]:
    """Return the reply, the number of batches, and what it waits for: of a get and of a read."""
    opened = world.open("orders", "eve")
    get = commands.Get(opened.topic_id, "eve", opened.epoch, position, bytes_max)
    found: list[tuple[replies.GetReply, int, object]] = []
    for decision in (world.send(get), world.send(commands.Read("orders", position, bytes_max))):
        assert isinstance(decision.reply, replies.GetReply)
        found.append((decision.reply, len(decision.slices), decision.waits_for))
    return found


def test_a_first_batch_beyond_a_strict_limit_is_announced_and_not_returned() -> None:
    world = World()
    world.do(commands.Subscribe("orders", "eve"))
    world.do(put("orders", 1, 100))
    world.do(put("orders", 1, 1_000))
    for reply, count, waits_for in _strict(world, -500):
        assert (count, waits_for, reply.next_position, reply.end_offset) == (1, 0, 1, 2)
    for reply, count, waits_for in _strict(world, -500, position=1):
        assert (count, waits_for, reply.next_position, reply.end_offset) == (0, 0, 1, 2)
    for _, count, _ in _strict(world, 500, position=1):
        assert count == 1
    # At the end there is nothing to announce: the command waits.
    for reply, count, waits_for in _strict(world, -500, position=2):
        assert (count, waits_for, reply.next_position) == (0, reply.topic_id, 2)
