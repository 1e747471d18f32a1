"""Topics, subscriptions, delivery, deletion and retention."""

from __future__ import annotations

import pytest

from oncemq.protocol import commands, replies
from oncemq.protocol.limits import Limits
from tests.engine.world import World, code, put


def subscribed(*subscribers: str) -> World:
    world = World()
    for subscriber in subscribers:
        world.do(commands.Subscribe("orders", subscriber))
    return world


def stored(world: World, topic: str = "orders") -> int:
    return len(world.engine.state.topics[topic].index)


# Creation of topics.


def test_a_put_to_an_unknown_topic_is_refused() -> None:
    assert code(World().do(put("nowhere"))) == "TOPIC_UNKNOWN"


def test_a_put_with_create_creates_a_permanent_topic() -> None:
    world = World()
    reply = world.do(put(create=True))
    assert isinstance(reply, replies.PutReply)
    assert reply.subscriptions == 0
    world.do(commands.Subscribe("orders", "billing"))
    world.do(commands.Unsubscribe("orders", "billing"))
    assert "orders" in world.engine.state.topics


def test_a_topic_created_by_its_first_subscriber_is_deleted_with_the_last() -> None:
    world = subscribed("billing", "audit")
    world.do(commands.Unsubscribe("orders", "billing"))
    assert "orders" in world.engine.state.topics
    world.do(commands.Unsubscribe("orders", "audit"))
    assert "orders" not in world.engine.state.topics
    assert not world.engine.state.live


def test_a_created_topic_is_permanent() -> None:
    world = World()
    assert world.do(commands.CreateTopic("orders")) == replies.TopicReply(1, True)
    assert world.do(commands.CreateTopic("orders")) == replies.TopicReply(1, False)
    assert code(world.do(commands.CreateTopic("orders", retain_ms=5))) == "TOPIC_EXISTS"


def test_creating_a_subscribers_topic_makes_it_permanent() -> None:
    world = subscribed("billing")
    world.do(commands.CreateTopic("orders", retain_bytes=10_000))
    world.do(commands.Unsubscribe("orders", "billing"))
    assert world.engine.state.topics["orders"].retain_bytes == 10_000


def test_a_recreated_topic_has_a_new_id() -> None:
    world = subscribed("billing")
    owner = world.open("orders", "billing")
    world.do(commands.DeleteTopic("orders"))
    world.do(commands.Subscribe("orders", "billing"))
    assert code(world.get(owner, "billing").reply) == "TOPIC_GONE"
    assert world.open("orders", "billing").topic_id != owner.topic_id


@pytest.mark.parametrize("name", ["", "a" * 256, "a\nb", "a*", "#", "é" * 128])
def test_a_bad_name_is_refused(name: str) -> None:
    assert code(World().do(commands.CreateTopic(name))) == "NAME_INVALID"
    assert code(World().do(put(name, create=True))) == "NAME_INVALID"


def test_names_may_contain_spaces() -> None:
    assert isinstance(World().do(commands.CreateTopic("Cooking Recipes")), replies.TopicReply)


# Delivery.


def test_a_put_returns_the_number_of_subscriptions() -> None:
    world = subscribed("a", "b")
    reply = world.do(put())
    assert isinstance(reply, replies.PutReply)
    assert reply.subscriptions == 2


def test_offsets_have_no_gaps() -> None:
    world = subscribed("a")
    firsts = []
    for count in (3, 1, 5):
        reply = world.do(put(count=count))
        assert isinstance(reply, replies.PutReply)
        firsts.append(reply.first_offset)
    assert firsts == [0, 3, 4]
    assert world.offsets(world.open("orders", "a"), "a") == list(range(9))


def test_a_repeated_get_returns_the_same_messages() -> None:
    world = subscribed("a")
    world.do(put(count=2))
    owner = world.open("orders", "a")
    assert world.get(owner, "a").slices == world.get(owner, "a").slices
    assert stored(world) == 1


def test_only_an_ack_moves_the_position() -> None:
    world = subscribed("a")
    world.do(put(count=2))
    owner = world.open("orders", "a")
    world.get(owner, "a")
    assert world.open("orders", "a").acked == 0


def test_an_old_ack_changes_nothing() -> None:
    world = subscribed("a")
    world.do(put(count=4))
    owner = world.open("orders", "a")
    assert world.send(commands.Ack(owner.topic_id, "a", owner.epoch, 3)).reply == replies.AckReply(3)
    late = world.send(commands.Ack(owner.topic_id, "a", owner.epoch, 1))
    assert (late.reply, late.event) == (replies.AckReply(3), None)


def test_an_ack_beyond_the_end_is_refused() -> None:
    world = subscribed("a")
    world.do(put())
    owner = world.open("orders", "a")
    assert code(world.send(commands.Ack(owner.topic_id, "a", owner.epoch, 2)).reply) == "OFFSET_OUT_OF_RANGE"
    assert code(world.get(owner, "a", ack=2).reply) == "OFFSET_OUT_OF_RANGE"


def test_a_second_owner_fences_the_first_for_gets_and_acks() -> None:
    world = subscribed("a")
    world.do(put())
    first = world.open("orders", "a")
    second = world.open("orders", "a")
    assert code(world.get(first, "a").reply) == "FENCED"
    assert code(world.send(commands.Ack(first.topic_id, "a", first.epoch, 1)).reply) == "FENCED"
    assert world.offsets(second, "a") == [0]


def test_a_hold_lasts_until_close_or_its_time() -> None:
    world = subscribed("a")
    owner = world.do(commands.Open("orders", "a", hold_ms=500))
    assert isinstance(owner, replies.OpenReply)
    assert code(world.do(commands.Open("orders", "a", hold_ms=500), session="bob")) == "BUSY"
    assert world.do(commands.Close(owner.topic_id, "a", owner.epoch)) == replies.Done()
    assert isinstance(world.again(commands.Open("orders", "a", hold_ms=500), session="bob"), replies.OpenReply)
    assert code(world.do(commands.Open("orders", "a", hold_ms=500), session="carol")) == "BUSY"
    world.now_ms += 500
    assert isinstance(world.again(commands.Open("orders", "a", hold_ms=500), session="carol"), replies.OpenReply)


def test_starts_are_new_earliest_or_an_offset() -> None:
    world = subscribed("first")
    world.do(put(count=3))
    for subscriber, start, acked in [
        ("new", commands.START_NEW, 3),
        ("early", commands.START_EARLIEST, 0),
        ("two", 2, 2),
    ]:
        reply = world.do(commands.Subscribe("orders", subscriber, start))
        assert isinstance(reply, replies.SubscribeReply)
        assert reply.acked == acked
    assert code(world.do(commands.Subscribe("orders", "late", 4))) == "OFFSET_OUT_OF_RANGE"


def test_subscribing_twice_has_no_effect_and_reports_it() -> None:
    world = subscribed("a")
    world.do(put())
    assert world.do(commands.Subscribe("orders", "a")) == replies.SubscribeReply(1, 0, False)


def test_get_and_unsubscribe_need_a_subscription() -> None:
    world = subscribed("a")
    assert code(world.do(commands.Open("orders", "stranger"))) == "NOT_SUBSCRIBED"
    assert code(world.do(commands.Unsubscribe("orders", "stranger"))) == "NOT_SUBSCRIBED"
    assert code(world.do(commands.Unsubscribe("nowhere", "a"))) == "TOPIC_UNKNOWN"


def test_a_get_without_messages_is_empty_and_may_wait() -> None:
    world = subscribed("a")
    decision = world.get(world.open("orders", "a"), "a")
    assert decision.reply == replies.GetReply(1, 0, 0, 0)
    assert decision.waits_for == 1


def test_a_get_returns_at_least_one_batch_and_respects_its_size() -> None:
    world = subscribed("a")
    for _ in range(3):
        world.do(put(size=100))
    owner = world.open("orders", "a")
    for bytes_max, batches in [(1, 1), (200, 2), (299, 2), (300, 3)]:
        decision = world.send(commands.Get(owner.topic_id, "a", owner.epoch, 0, bytes_max))
        assert len(decision.slices) == batches


def test_a_read_by_anyone_moves_nothing() -> None:
    world = subscribed("a")
    world.do(put(count=2))
    assert len(world.send(commands.Read("orders", commands.START_EARLIEST, 1000)).slices) == 1
    assert world.send(commands.Read("orders", commands.START_NEW, 1000)).waits_for
    assert world.open("orders", "a").acked == 0
    assert code(world.send(commands.Read("orders", 0, 1000, topic_id=77)).reply) == "TOPIC_GONE"
    assert code(world.send(commands.Read("nowhere", 0, 1000)).reply) == "TOPIC_UNKNOWN"


# Deletion.


def test_a_message_is_deleted_when_all_subscribers_have_acked() -> None:
    world = subscribed("a", "b")
    world.do(put())
    world.do(put())
    a, b = world.open("orders", "a"), world.open("orders", "b")
    world.get(a, "a", ack=2)
    assert stored(world) == 2
    world.get(b, "b", ack=1)
    assert stored(world) == 1
    world.get(b, "b", ack=2)
    assert stored(world) == 0
    assert not world.engine.state.live
    assert code(world.send(commands.Read("orders", 0, 1000)).reply) == "RANGE_GONE"


def test_unsubscribing_the_slowest_frees_messages() -> None:
    world = subscribed("fast", "slow")
    world.do(put())
    world.get(world.open("orders", "fast"), "fast", ack=1)
    assert stored(world) == 1
    world.do(commands.Unsubscribe("orders", "slow"))
    assert stored(world) == 0


def test_a_batch_is_kept_until_its_last_message_is_acked() -> None:
    world = subscribed("a")
    world.do(put(count=3))
    owner = world.open("orders", "a")
    world.get(owner, "a", ack=2)
    assert stored(world) == 1
    assert world.offsets(owner, "a", 2) == [2]


def test_without_subscribers_and_retention_nothing_is_stored() -> None:
    world = World()
    world.do(commands.CreateTopic("orders"))
    world.do(put(count=3))
    assert stored(world) == 0
    world.do(commands.Subscribe("orders", "a", commands.START_EARLIEST))
    assert world.open("orders", "a").acked == 3


# Retention.


def test_retention_by_time_keeps_what_all_have_acked() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", retain_ms=1_000))
    world.do(put())
    world.now_ms += 600
    world.do(put())
    world.tick(500)
    assert stored(world) == 1
    world.tick(600)
    assert stored(world) == 0
    assert not world.engine.state.live


def test_retention_by_size_keeps_the_newest() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", retain_bytes=250))
    for _ in range(5):
        world.do(put(size=100))
    world.tick()
    assert stored(world) == 2
    assert world.engine.state.topics["orders"].index.first == 3


def test_retention_does_not_delete_what_a_subscriber_needs() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", retain_bytes=150))
    world.do(commands.Subscribe("orders", "slow"))
    for _ in range(4):
        world.do(put(size=100))
    world.tick()
    assert stored(world) == 4
    world.get(world.open("orders", "slow"), "slow", ack=4)
    assert stored(world) == 1


def test_an_empty_commit_to_a_completely_trimmed_topic_has_no_effect() -> None:
    world = World()
    world.do(commands.CreateTopic("orders", retain_ms=1_000))
    world.do(commands.Subscribe("orders", "slow"))
    world.do(put())
    world.tick(2_000)
    assert world.engine.state.topics["orders"].trimmed == 1
    assert isinstance(world.do(commands.Commit("w", 0, "orders", ())), replies.CommitReply)


def test_due_entries_are_deleted_with_their_entities() -> None:
    world = World()
    world.do(commands.Subscribe("orders", "a"))
    for batch in range(3_000):
        world.do(commands.Stage(f"s{batch}", "orders", "w", batch, commands.Envelope(1, 1, 0)))
        world.do(commands.Commit("w", batch, "orders", ((f"s{batch}", 1),)))
    assert len(world.engine.state.schedule.stages) < 1_500


# Limits.


def test_limits_are_refused_with_their_code() -> None:
    world = World(Limits(topics_max=1, subscriptions_max=1, batch_bytes_max=1_000))
    world.do(commands.Subscribe("orders", "a"))
    assert code(world.do(commands.CreateTopic("more"))) == "LIMIT_REACHED"
    assert code(world.do(put("more", create=True))) == "LIMIT_REACHED"
    assert code(world.do(commands.Subscribe("orders", "b"))) == "LIMIT_REACHED"
    assert code(world.do(put(size=1_001))) == "TOO_LARGE"
    assert code(world.do(put(count=0))) == "MALFORMED"
    assert code(world.do(commands.Put("orders", commands.Envelope(1, 10, 0, ttl_ms=-5)))) == "MALFORMED"


def test_a_full_disk_refuses_puts_and_accepts_acks() -> None:
    world = subscribed("a")
    world.do(put())
    owner = world.open("orders", "a")
    world.writable_bytes = 0
    assert code(world.do(put())) == "DISK_FULL"
    assert world.send(commands.Ack(owner.topic_id, "a", owner.epoch, 1)).reply == replies.AckReply(1)
    world.free_bytes = 0
    assert code(world.send(commands.Ack(owner.topic_id, "a", owner.epoch, 1)).reply) == "DISK_FULL"


def test_lists_come_in_pages() -> None:
    world = World()
    for name in ("c", "a", "b"):
        world.do(commands.CreateTopic(name))
    page = world.send(commands.Topics(limit=2)).reply
    assert isinstance(page, replies.TopicsReply)
    assert ([topic.name for topic in page.topics], page.after) == (["a", "b"], "b")
    rest = world.send(commands.Topics(page.after, 2)).reply
    assert isinstance(rest, replies.TopicsReply)
    assert ([topic.name for topic in rest.topics], rest.after) == (["c"], "")
    world.do(commands.Subscribe("a", "s1"))
    subscriptions = world.send(commands.Subscriptions("a")).reply
    assert isinstance(subscriptions, replies.SubscriptionsReply)
    assert [entry.lag for entry in subscriptions.subscriptions] == [0]
