"""Transactions: acks, settles and puts in one command, atomic and executed once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncemq.engine.events import Declined, Delayed, Stored, Transacted
from oncemq.journal.contract import record_bytes
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import TRANSACTION_PARTS_MAX, Limits
from tests.engine.invariants import check, without_verdicts
from tests.engine.world import ROOMY, World, code, put


class Pipeline(World):
    """`mill` consumes `in`, workers share `tasks`, and both put to `out`, which `shop` consumes."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.do(commands.Subscribe("in", "mill"))
        self.do(commands.Subscribe("tasks", "workers", sharing=commands.Sharing(lease_ms=1_000)))
        self.do(commands.Subscribe("out", "shop"))
        for _ in range(3):
            self.do(put("in"))
            self.do(put("tasks"))
        self.mill = self.open("in", "mill")
        self.workers = self.open("tasks", "workers")
        taken = self.send(commands.Take(self.workers.topic_id, "workers", self.workers.epoch, "m", 1, 2, 1000)).reply
        assert isinstance(taken, replies.TakeReply)
        self.token = taken.token

    def ack(self, upto: int = 2, epoch: int = 0, since: int = 0) -> commands.AckUpto:
        return commands.AckUpto(self.mill.topic_id, "mill", epoch or self.mill.epoch, upto, since)

    def settle(self, first: int = 0, count: int = 2, epoch: int = 0) -> commands.Settle:
        done = ((self.token, first, count),)
        return commands.Settle(self.workers.topic_id, "workers", epoch or self.workers.epoch, done)

    def transact(self, **parts: object) -> replies.Reply:
        return self.do(commands.Transact(**parts))  # type: ignore[arg-type]

    def acked(self, topic: str, subscriber: str) -> int:
        return self.topic_of(topic).subscriptions[subscriber].acked

    def parts(self) -> tuple[object, ...]:
        """Return the parts of the last event."""
        event = self.log[-1][1]
        assert isinstance(event, Transacted)
        return event.parts


def test_acks_settles_and_puts_are_atomic() -> None:
    world = Pipeline()
    reply = world.transact(acks=(world.ack(),), settles=(world.settle(),), puts=(put("out", 3), put("out")))
    out = world.topic_of("out").id
    assert reply == replies.TransactReply(
        (replies.PutReply(out, 0, 3, world.now_ms, 1), replies.PutReply(out, 3, 1, world.now_ms, 1))
    )
    assert (world.acked("in", "mill"), world.acked("tasks", "workers")) == (2, 2)
    assert world.offsets(world.open("out", "shop"), "shop") == [0, 1, 2, 3]
    check(world)


def test_a_transaction_is_one_event() -> None:
    world = Pipeline()
    before = len(world.log)
    world.transact(acks=(world.ack(),), settles=(world.settle(),), puts=(put("out"), put("new", create=True)))
    assert len(world.log) == before + 1


def test_an_empty_transaction_is_answered() -> None:
    assert Pipeline().transact() == replies.TransactReply(())


# Transactions that continue others.


def test_a_transaction_that_continues_one_that_was_not_committed_is_refused() -> None:
    world = Pipeline()
    assert code(world.transact(acks=(world.ack(1),), puts=(put("missing"),))) == "TOPIC_UNKNOWN"
    assert code(world.transact(acks=(world.ack(2, since=1),), puts=(put("out"),))) == "EARLIER_FAILED"
    assert code(world.transact(acks=(world.ack(3, since=2),), puts=(put("out"),))) == "EARLIER_FAILED"
    assert world.acked("in", "mill") == 0
    assert world.topic_of("out").next_offset == 0
    check(world)


def test_a_transaction_that_continues_committed_ones_is_committed() -> None:
    world = Pipeline()
    assert isinstance(world.transact(acks=(world.ack(1),), puts=(put("out"),)), replies.TransactReply)
    assert isinstance(world.transact(acks=(world.ack(2, since=1),), puts=(put("out"),)), replies.TransactReply)
    # More was acked meanwhile.
    assert isinstance(world.transact(acks=(world.ack(3, since=1),), puts=(put("out"),)), replies.TransactReply)
    assert world.acked("in", "mill") == 3
    check(world)


# Retries.


def test_a_repeated_transaction_gets_its_verdict_again_and_changes_nothing() -> None:
    world = Pipeline()
    operation = commands.Transact((world.ack(),), (world.settle(),), (put("out", 2),))
    first = world.do(operation)
    before = world.image()
    assert world.again(operation) == first
    assert world.image() == before


def test_a_refusal_is_repeated_even_if_it_would_succeed_now() -> None:
    world = Pipeline()
    operation = commands.Transact(puts=(put("later"),))
    assert code(world.do(operation)) == "TOPIC_UNKNOWN"
    world.do(commands.CreateTopic("later"), session="bob")
    assert code(world.again(operation)) == "TOPIC_UNKNOWN"
    assert world.topic_of("later").next_offset == 0


def test_another_transaction_under_a_used_number_is_refused() -> None:
    world = Pipeline()
    world.transact(puts=(put("out"),))
    assert code(world.again(commands.Transact(puts=(put("out", checksum=9),)))) == "SEQUENCE_REUSED"


def test_a_transaction_with_a_key_is_executed_once() -> None:
    world = Pipeline()
    command = commands.Keyed("web", "key", commands.Transact(puts=(put("out"),)))
    first = world.send(command).reply
    assert world.send(command).reply == first
    assert world.topic_of("out").next_offset == 1


# Refusals.


def refused(change: Callable[[Pipeline], dict[str, object]], *, expected: str, limits: Limits | None = None) -> None:
    world = Pipeline(limits)
    parts: dict[str, object] = {"acks": (world.ack(),), "settles": (world.settle(),), "puts": (put("out"),)}
    parts |= change(world)
    before = without_verdicts(world)
    operation = commands.Transact(**parts)  # type: ignore[arg-type]
    assert code(world.do(operation)) == expected
    assert without_verdicts(world) == before
    assert isinstance(world.log[-1][1], Declined)
    assert code(world.again(operation)) == expected
    check(world)


def test_a_lost_subscription_refuses_everything() -> None:
    def take_over(world: Pipeline) -> dict[str, object]:
        world.open("in", "mill")
        return {}

    refused(take_over, expected="SUBSCRIPTION_FENCED")


def test_a_subscription_that_was_moved_refuses_everything() -> None:
    def seek(world: Pipeline) -> dict[str, object]:
        world.do(commands.Seek("in", "mill", 0))
        return {}

    refused(seek, expected="SOUGHT")


def test_a_shared_subscription_that_was_moved_refuses_everything() -> None:
    def seek(world: Pipeline) -> dict[str, object]:
        world.do(commands.Seek("tasks", "workers", 0))
        return {}

    refused(seek, expected="SOUGHT")


def test_a_lost_lease_refuses_everything() -> None:
    def lose(world: Pipeline) -> dict[str, object]:
        world.tick(1_000)
        return {}

    refused(lose, expected="LEASE_LOST")


def test_a_part_of_a_lease_that_was_settled_before_refuses_everything() -> None:
    def settle(world: Pipeline) -> dict[str, object]:
        world.do(world.settle(0, 1))
        return {}

    refused(settle, expected="LEASE_LOST")


def test_a_subscription_of_the_other_kind_refuses_everything() -> None:
    refused(
        lambda w: {"acks": (commands.AckUpto(w.workers.topic_id, "workers", w.workers.epoch, 1),), "settles": ()},
        expected="KIND_MISMATCH",
    )
    refused(
        lambda w: {"settles": (commands.Settle(w.mill.topic_id, "mill", w.mill.epoch, ()),), "acks": ()},
        expected="KIND_MISMATCH",
    )


def test_a_deleted_topic_refuses_everything() -> None:
    def delete(world: Pipeline) -> dict[str, object]:
        world.do(commands.DeleteTopic("in"))
        world.do(commands.Subscribe("in", "mill"))
        return {}

    refused(delete, expected="TOPIC_GONE")


def test_a_deleted_subscription_refuses_everything() -> None:
    def leave(world: Pipeline) -> dict[str, object]:
        world.do(commands.Subscribe("in", "other"))
        world.do(commands.Unsubscribe("in", "mill"))
        return {}

    refused(leave, expected="NOT_SUBSCRIBED")


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (put("nowhere"), "TOPIC_UNKNOWN"),
        (put("a*b", create=True), "NAME_INVALID"),
        (put("out", count=0), "MALFORMED"),
        (put("out", size=10_000), "TOO_LARGE"),
        (put("out", ttl_ms=-1), "MALFORMED"),
        (put("tiny", size=51), "TOO_LARGE"),
    ],
)
def test_a_put_that_is_refused_refuses_everything(bad: commands.Put, expected: str) -> None:
    def change(world: Pipeline) -> dict[str, object]:
        world.do(commands.CreateTopic("tiny", quota_bytes=50))
        return {"puts": (put("out"), put("made", create=True), bad, put("out"))}

    refused(change, expected=expected, limits=Limits(batch_bytes_max=5_000))


def test_an_ack_beyond_the_end_refuses_everything() -> None:
    refused(lambda w: {"acks": (w.ack(4),)}, expected="OFFSET_OUT_OF_RANGE")


def test_each_subscription_is_named_at_most_once() -> None:
    refused(lambda w: {"acks": (w.ack(1), w.ack(2))}, expected="MALFORMED")
    refused(lambda w: {"settles": (w.settle(0, 1), w.settle(1, 1))}, expected="MALFORMED")


def test_the_payloads_together_are_limited_like_a_batch() -> None:
    limits = Limits(batch_bytes_max=1_000)
    refused(lambda _: {"puts": (put("out", size=501), put("in", size=500))}, expected="TOO_LARGE", limits=limits)
    world = Pipeline(limits)
    assert isinstance(world.transact(puts=(put("out", size=500), put("in", size=500))), replies.TransactReply)


def test_the_number_of_parts_is_limited() -> None:
    acks = tuple(commands.AckUpto(1, f"{number}", 1, 0) for number in range(TRANSACTION_PARTS_MAX + 1))
    refused(lambda _: {"acks": acks}, expected="MALFORMED")


def test_the_limit_of_topics_counts_those_of_the_same_transaction() -> None:
    puts = (put("one", create=True), put("one", create=True), put("two", create=True))
    refused(lambda _: {"puts": puts}, expected="LIMIT_REACHED", limits=Limits(topics_max=4))


def test_the_limit_of_subscriptions_counts_those_that_patterns_attach_in_the_same_transaction() -> None:
    def change(world: Pipeline) -> dict[str, object]:
        world.do(commands.Subscribe("new.*", "watcher"))
        return {"puts": (put("new.1", create=True), put("new.2", create=True))}

    refused(change, expected="LIMIT_REACHED", limits=Limits(subscriptions_max=4))


def test_the_limit_of_delayed_batches_counts_those_of_the_same_transaction() -> None:
    puts = (put("out", due_ms=9_000), put("out", due_ms=9_000))
    refused(lambda _: {"puts": puts}, expected="LIMIT_REACHED", limits=Limits(delayed_max=1))


# Not now.


def not_now(world: Pipeline, operation: commands.Transact, expected: str) -> None:
    before = world.image()
    reply = world.do(operation)
    assert isinstance(reply, replies.NotNow)
    assert reply.code == expected
    assert world.image() == before


def test_without_space_for_all_payloads_nothing_happens_and_the_number_stays_open() -> None:
    world = Pipeline()
    operation = commands.Transact((world.ack(),), (world.settle(),), (put("out", size=80), put("out", size=80)))
    world.writable_bytes = 2 * record_bytes(80) - 1
    not_now(world, operation, "DISK_FULL")
    world.writable_bytes += 1
    assert isinstance(world.again(operation), replies.TransactReply)
    check(world)


def test_acks_alone_need_no_space_for_messages() -> None:
    world = Pipeline()
    world.writable_bytes = 0
    assert isinstance(world.transact(acks=(world.ack(),), settles=(world.settle(),)), replies.TransactReply)
    assert isinstance(world.transact(puts=(put("unheard", create=True),)), replies.TransactReply)


def full(limits: Limits | None = None) -> Pipeline:
    """A full disk that has its reserve."""
    world = Pipeline(limits)
    world.writable_bytes = 0
    world.reserve_bytes = ROOMY
    return world


def test_on_a_full_disk_a_transaction_that_frees_enough_is_accepted() -> None:
    world = full()
    assert isinstance(world.transact(acks=(world.ack(1),), puts=(put("out"),)), replies.TransactReply)
    assert isinstance(
        world.transact(settles=(world.settle(1, 1),), puts=(put("out", size=900),)), replies.TransactReply
    )
    too_much = commands.Transact(acks=(world.ack(2),), puts=(put("out", size=2_000),))
    not_now(world, too_much, "DISK_FULL")
    world.numbers["alice"] -= 1
    world.reserve_bytes = 50
    not_now(world, commands.Transact(acks=(world.ack(2),), puts=(put("out"),)), "DISK_FULL")
    check(world)


@pytest.mark.parametrize("subscriber", ["mill", "slow"])
def test_on_a_full_disk_only_the_last_ack_of_a_message_frees_it(subscriber: str) -> None:
    world = full()
    world.do(commands.Subscribe("in", "slow", commands.START_EARLIEST))
    slow = world.open("in", "slow")
    late, early = world.ack(), commands.AckUpto(slow.topic_id, "slow", slow.epoch, 2)
    if subscriber == "mill":
        late, early = early, late
    not_now(world, commands.Transact(acks=(early,), puts=(put("out"),)), "DISK_FULL")
    world.numbers["alice"] -= 1
    assert isinstance(world.transact(acks=(early,)), replies.TransactReply)
    assert isinstance(world.transact(acks=(late,), puts=(put("out"),)), replies.TransactReply)


def test_on_a_full_disk_retained_or_acked_messages_free_nothing() -> None:
    world = full()
    world.transact(acks=(world.ack(1),))
    not_now(world, commands.Transact(acks=(world.ack(1),), puts=(put("out"),)), "DISK_FULL")
    world.numbers["alice"] -= 1
    world.do(commands.CreateTopic("in", retain_ms=1_000))
    not_now(world, commands.Transact(acks=(world.ack(3),), puts=(put("out"),)), "DISK_FULL")
    world.numbers["alice"] -= 1
    not_now(world, commands.Transact(puts=(put("out"),)), "DISK_FULL")


def test_on_a_full_disk_a_message_counts_as_its_share_of_its_batch() -> None:
    world = Pipeline()
    world.do(put("in", 10, size=100_000))
    world.writable_bytes, world.reserve_bytes = 0, ROOMY
    assert isinstance(world.transact(acks=(world.ack(4),), puts=(put("out", size=9_000),)), replies.TransactReply)
    not_now(world, commands.Transact(acks=(world.ack(5),), puts=(put("out", size=12_000),)), "DISK_FULL")


def test_a_full_topic_counts_what_the_same_transaction_puts() -> None:
    world = Pipeline()
    world.do(commands.CreateTopic("out", quota_bytes=250))
    world.do(put("out"))
    operation = commands.Transact((world.ack(),), (), (put("out"), put("out")))
    not_now(world, operation, "TOPIC_FULL")
    shop = world.open("out", "shop")
    world.get(shop, "shop", ack=1)
    assert isinstance(world.again(operation), replies.TransactReply)
    assert world.topic_of("out").stored_bytes == 200


@pytest.mark.parametrize("overflow", [commands.REFUSE, commands.DROP, commands.EXPIRE])
def test_a_transaction_larger_than_a_quota_is_refused(overflow: str) -> None:
    def change(world: Pipeline) -> dict[str, object]:
        world.do(commands.CreateTopic("out", quota_bytes=250, overflow=overflow))
        return {"puts": (put("out"), put("out"), put("out"))}

    refused(change, expected="TOO_LARGE")


# Offsets and positions.


def test_puts_to_several_topics_get_their_offsets_in_order() -> None:
    world = Pipeline()
    puts = (put("out", 2), put("in"), put("out", 3), put("in", 2))
    reply = world.transact(puts=puts)
    assert isinstance(reply, replies.TransactReply)
    assert [(each.first_offset, each.count) for each in reply.puts] == [(0, 2), (3, 1), (2, 3), (4, 2)]
    check(world)


def test_each_payload_has_its_own_position() -> None:
    world = Pipeline()
    start = world.position
    world.transact(puts=(put("out", size=10), put("unheard", create=True), put("in", size=20), put("out", size=30)))
    stored = [part for part in world.parts() if isinstance(part, Stored)]
    second = start + record_bytes(10)
    assert [part.position for part in stored] == [start, 0, second, second + record_bytes(20)]
    assert world.position == second + record_bytes(20) + record_bytes(30)


def test_a_new_topic_gets_the_later_puts_of_the_same_transaction() -> None:
    world = Pipeline()
    world.do(commands.Subscribe("new.#", "watcher"))
    puts = (put("new.a", 2, create=True), put("new.b", create=True), put("new.a"), put("new.a", due_ms=9_000))
    reply = world.transact(puts=puts)
    assert isinstance(reply, replies.TransactReply)
    assert [each.first_offset for each in reply.puts] == [0, 0, 2, -1]
    assert [each.subscriptions for each in reply.puts] == [1, 1, 1, 1]
    watcher = world.open("new.#", "watcher")
    assert world.get_any(watcher, "new.#", "watcher") == {"new.a": [0, 1, 2], "new.b": [0]}
    check(world)


def test_the_second_put_to_a_new_topic_need_not_create() -> None:
    world = Pipeline()
    assert isinstance(world.transact(puts=(put("new", create=True), put("new"))), replies.TransactReply)
    refused(lambda _: {"puts": (put("new"), put("new", create=True))}, expected="TOPIC_UNKNOWN")


def test_delayed_batches_of_one_transaction_have_different_ids() -> None:
    world = Pipeline()
    world.transact(puts=(put("out", 1, due_ms=2_000), put("out", 2, due_ms=1_500), put("out", 3)))
    assert len({part.delay_id for part in world.parts() if isinstance(part, Delayed)}) == 2
    world.tick(1_000)
    shop = world.open("out", "shop")
    assert [entry.count for entry in world.get(shop, "shop").slices] == [3, 2, 1]
    check(world)


# Acks.


def test_an_old_ack_in_a_transaction_changes_and_refuses_nothing() -> None:
    world = Pipeline()
    world.get(world.mill, "mill", ack=3)
    assert isinstance(world.transact(acks=(world.ack(1),), puts=(put("out"),)), replies.TransactReply)
    assert world.acked("in", "mill") == 3
    check(world)


def test_messages_acked_in_a_transaction_are_deleted() -> None:
    world = Pipeline()
    world.transact(acks=(world.ack(3),))
    assert len(world.topic_of("in").index) == 0
    check(world)


def test_a_pattern_subscription_acks_its_topics_in_a_transaction() -> None:
    world = Pipeline()
    world.do(commands.Subscribe("*", "all", commands.START_EARLIEST))
    owner = world.open("*", "all")
    key = "all" + commands.BY_PATTERN + "*"
    ack = commands.AckUpto(world.mill.topic_id, key, owner.epoch, 2)
    assert isinstance(world.transact(acks=(ack, world.ack(1)), puts=(put("out"),)), replies.TransactReply)
    assert world.get_any(owner, "*", "all") == {"tasks": [0, 1, 2], "in": [2], "out": [0]}
    world.open("*", "all")
    late = commands.AckUpto(world.mill.topic_id, key, owner.epoch, 3)
    assert code(world.transact(acks=(late,))) == "SUBSCRIPTION_FENCED"
    check(world)


def test_messages_nacked_in_a_transaction_are_redelivered() -> None:
    world = Pipeline()
    settle = commands.Settle(world.workers.topic_id, "workers", world.workers.epoch, (), ((world.token, 0, 2, 0),))
    assert isinstance(world.transact(settles=(settle,), puts=(put("out"),)), replies.TransactReply)
    taken = world.send(commands.Take(world.workers.topic_id, "workers", world.workers.epoch, "n", 1, 2, 1000)).reply
    assert isinstance(taken, replies.TakeReply)
    assert [(head.first_offset, head.tries) for head in taken.heads] == [(0, 2), (1, 2)]
    check(world)
