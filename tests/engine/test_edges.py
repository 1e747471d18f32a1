"""Places where two features meet, and numbers at the edge of what they mean."""

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


# Order per key.


def test_what_was_staged_before_somebody_wanted_order_per_key_has_it_when_it_is_committed() -> None:
    world = World()
    world.do(commands.CreateTopic("orders"))
    world.do(commands.Stage("s", "orders", "w", 1, TWO_OF_A_KEY))
    world.do(commands.Subscribe("orders", "eve", sharing=ORDERED))
    world.do(commands.Commit("w", 1, "orders", (("s", 2),)))
    assert taken(world) == [0]


@pytest.mark.parametrize("exists", [True, False])
def test_what_was_delayed_before_somebody_wanted_order_per_key_has_it_when_it_is_due(exists: bool) -> None:
    world = World()
    if exists:
        world.do(commands.CreateTopic("orders"))
    envelope = commands.Envelope(2, 10, 0, 0, world.now_ms + 50, TWO_OF_A_KEY.key_hashes)
    world.do(commands.Put("orders", envelope, create=True))
    world.do(commands.Subscribe("orders", "eve", sharing=ORDERED))
    world.tick(50)
    assert taken(world) == [0]


def test_key_hashes_are_not_kept_where_nobody_wants_order_per_key() -> None:
    world = World()
    world.do(commands.Subscribe("orders", "bob"))
    world.do(commands.Put("orders", TWO_OF_A_KEY))
    world.do(commands.Put("orders", commands.Envelope(2, 10, 0, 0, world.now_ms + 50, TWO_OF_A_KEY.key_hashes)))
    world.tick(50)
    assert world.engine.state.topics["orders"].index.keys == {}


# Patterns.


def test_a_subscription_by_pattern_is_not_opened_moved_or_ended_on_one_of_its_topics() -> None:
    world = World()
    world.do(commands.Subscribe("orders", "bob"))
    world.do(commands.Subscribe("#", "eve"))
    name = "eve" + commands.BY_PATTERN + "#"
    assert code(world.do(commands.Open("orders", name))) == "NOT_SUBSCRIBED"
    assert code(world.do(commands.Seek("orders", name))) == "NOT_SUBSCRIBED"
    assert code(world.do(commands.Unsubscribe("orders", name))) == "NOT_SUBSCRIBED"
    assert code(world.do(commands.Subscribe("orders", name))) == "NAME_INVALID"


def test_a_subscription_by_pattern_that_was_the_slowest_is_told_what_it_lost_and_gets_what_comes() -> None:
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


def test_a_get_by_pattern_brings_a_batch_however_little_it_wants_unless_it_wants_none() -> None:
    world = World()
    world.do(commands.Subscribe("#", "eve"))
    opened = world.do(commands.Open("#", "eve"))
    assert isinstance(opened, replies.OpenReply)
    world.do(put(create=True))
    assert len(world.send(commands.GetAny("#", "eve", opened.epoch, (), 1)).slices) == 1
    assert not world.send(commands.GetAny("#", "eve", opened.epoch, (), 0)).slices


def test_a_get_by_pattern_has_a_bounded_number_of_acks() -> None:
    world = World()
    world.do(commands.Subscribe("#", "eve"))
    opened = world.do(commands.Open("#", "eve"))
    assert isinstance(opened, replies.OpenReply)
    acks = tuple((topic_id, 0) for topic_id in range(TRANSACTION_PARTS_MAX + 1))
    assert code(world.send(commands.GetAny("#", "eve", opened.epoch, (), ROOMY, 0, acks)).reply) == "MALFORMED"


# Offsets that are none.


def test_an_offset_below_all_that_have_a_meaning_is_refused_everywhere() -> None:
    world = World()
    world.do(commands.Subscribe("orders", "bob"))
    world.do(commands.Subscribe("#", "eve"))
    assert code(world.do(commands.Subscribe("orders", "new", -3))) == "RANGE_GONE"
    assert code(world.do(commands.Subscribe("elsewhere", "new", -3))) == "OFFSET_OUT_OF_RANGE"
    assert code(world.do(commands.Subscribe("else.*", "new", -3))) == "UNSUPPORTED"
    assert code(world.do(commands.Seek("orders", "bob", -3))) == "RANGE_GONE"
    assert code(world.do(commands.Seek("#", "eve", -3))) == "UNSUPPORTED"
    assert code(world.send(commands.Read("orders", -3, ROOMY)).reply) == "RANGE_GONE"
