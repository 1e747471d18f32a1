"""The tables "What combines with what" of docs/guarantees.md: each cell is tested on an engine."""

from __future__ import annotations

import re as regex
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from oncemq.engine.state.batch_index import Slice
from oncemq.protocol import commands, replies
from oncemq.protocol.batch import key_hashes
from tests.engine.world import ROOMY, World, code

PAGE = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
SECTION = PAGE.split("## What combines with what\n")[1].split("\n## ")[0]

Table = dict[str, dict[str, str]]


def table(title: str) -> Table:
    """Return row → column → cell, without code marks and references to notes."""
    lines = SECTION.split(f"{title}:\n\n")[1].split("\n\n")[0].splitlines()
    rows = [[_plain(cell) for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


def _plain(cell: str) -> str:
    return regex.sub(r" \(\d\)$", "", cell.strip()).replace("`", "")


# Consumption.

ORDERED = commands.Sharing(1_000, key_order=True)
KINDS: dict[str, commands.Sharing | None] = {
    "one owner": None,
    "shared": commands.Sharing(1_000),
    "shared, order per key": ORDERED,
    "by pattern": None,
}
#: The first offset with key order, and the number of messages before it.
BEGUN = 1


def offsets_of(parts: Iterable[Slice | replies.TaskHead]) -> list[int]:
    return [offset for part in parts for offset in range(part.first_offset, part.first_offset + part.count)]


class Consumer:
    """A subscriber of some kind to the topic "orders". Another subscriber keeps all messages stored."""

    def __init__(self, kind: str) -> None:
        self.world = World()
        self.kind = kind
        self.sharing = KINDS[kind]
        self.name = "orders.#" if kind == "by pattern" else "orders"
        self.takes = 0

    def subscribe(self, start: int = commands.START_EARLIEST) -> replies.Reply:
        return self.world.do(commands.Subscribe(self.name, "eve", start, self.sharing))

    def open(self, hold_ms: int = 0, session: str = "eve") -> replies.Reply:
        return self.world.do(commands.Open(self.name, "eve", hold_ms), session)

    def opened(self) -> replies.OpenReply:
        reply = self.open()
        assert isinstance(reply, replies.OpenReply), reply
        return reply

    def seek(self, to: int, time_ms: int = 0) -> replies.Reply:
        return self.world.do(commands.Seek(self.name, "eve", to, time_ms))

    def keep(self, messages: int) -> None:
        """Create another subscriber and this many messages first."""
        self.world.do(commands.Subscribe("orders", "keeper"))
        for _ in range(messages):
            self.put()

    def put(self, ttl_ms: int = 0, due_ms: int = 0) -> replies.Reply:
        envelope = commands.Envelope(1, 100, 0, ttl_ms, due_ms, key_hashes([None]))
        return self.world.do(commands.Put("orders", envelope, create=True))

    def get(self) -> tuple[list[int], commands.Transact]:
        """Return the offsets that it gets, and the operation that acks them."""
        opened = self.opened()
        if self.sharing is not None:
            return self._take(opened)
        if self.kind == "by pattern":
            subscriber = "eve" + commands.BY_PATTERN + self.name
            decision = self.world.send(commands.GetAny(self.name, "eve", opened.epoch, (), ROOMY))
        else:
            subscriber = "eve"
            decision = self.world.get(opened, "eve")
        offsets = offsets_of(decision.slices)
        if not offsets:
            return [], commands.Transact()
        topic_id = self.world.engine.state.topics["orders"].id
        return offsets, commands.Transact((commands.AckUpto(topic_id, subscriber, opened.epoch, offsets[-1] + 1),))

    def _take(self, opened: replies.OpenReply) -> tuple[list[int], commands.Transact]:
        self.takes += 1
        taken = self.world.send(commands.Take(opened.topic_id, "eve", opened.epoch, "m", self.takes, 100, ROOMY)).reply
        assert isinstance(taken, replies.TakeReply)
        offsets = offsets_of(taken.heads)
        done = tuple((taken.token, offset, 1) for offset in offsets)
        return offsets, commands.Transact((), (commands.Settle(opened.topic_id, "eve", opened.epoch, done),))

    def finish(self) -> list[int]:
        """Get and ack everything."""
        offsets, done = self.get()
        assert isinstance(self.world.do(done), replies.TransactReply)
        return offsets

    def lost(self) -> int:
        reply = self.world.send(commands.Subscriptions("orders")).reply
        assert isinstance(reply, replies.SubscriptionsReply)
        [found] = [entry for entry in reply.subscriptions if entry.subscriber == "eve"]
        return found.dropped

    def limited(self, quota_bytes: int, overflow: str) -> None:
        self.world.do(commands.CreateTopic("orders", 0, 0, quota_bytes, overflow))
        self.subscribe(commands.START_NEW)


def verdict(reply: replies.Reply) -> str:
    return f"no: {reply.code}" if isinstance(reply, replies.Refusal) else "yes"


def delayed_put(consumer: Consumer) -> str:
    consumer.subscribe()
    consumer.put(due_ms=consumer.world.now_ms + 50)
    assert consumer.finish() == []
    consumer.world.tick(50)
    assert consumer.finish() == [0]
    return "yes"


def time_to_live(consumer: Consumer) -> str:
    consumer.subscribe()
    consumer.put(ttl_ms=50)
    consumer.put()
    consumer.world.tick(50)
    assert consumer.finish() == [1]
    return "yes"


def start(at: int, expected: list[int]) -> Callable[[Consumer], str]:
    def try_out(consumer: Consumer) -> str:
        consumer.keep(BEGUN + 1)
        reply = consumer.subscribe(at)
        if isinstance(reply, replies.Refusal):
            return _begun(consumer) if consumer.sharing == ORDERED else verdict(reply)
        consumer.put()
        assert consumer.finish() == expected
        return "yes"

    return try_out


def _begun(consumer: Consumer) -> str:
    """Key order starts with another subscription. This one can start at the same offset, but not before."""
    world, end = consumer.world, consumer.world.engine.state.topics["orders"].next_offset
    world.do(commands.Subscribe("orders", "other", commands.START_NEW, ORDERED))
    consumer.put()
    assert code(consumer.subscribe(end - 1)) == "UNSUPPORTED"
    assert isinstance(consumer.subscribe(end), replies.SubscribeReply)
    assert consumer.finish() == [end]
    return "where order began"


def seek(to: int, later: int, expected: list[int], time_ms: int = 0, later_ms: int = 0) -> Callable[[Consumer], str]:
    def try_out(consumer: Consumer) -> str:
        consumer.keep(BEGUN)
        consumer.subscribe(commands.START_NEW)
        consumer.world.now_ms = 2_000
        consumer.put()
        consumer.put()
        assert consumer.finish() == [1, 2]
        reply = consumer.seek(to, time_ms)
        if isinstance(reply, replies.Refusal) and consumer.sharing != ORDERED:
            return verdict(reply)
        if not isinstance(reply, replies.Refusal):
            assert consumer.finish() == expected
            consumer.put()
            assert consumer.finish() == [3]
            return "yes"
        assert code(reply) == "UNSUPPORTED"
        assert isinstance(consumer.seek(later, later_ms), replies.SeekReply)
        assert consumer.finish() == [1, 2]
        return "where order began"

    return try_out


def acks_in_a_transaction(consumer: Consumer) -> str:
    consumer.subscribe()
    consumer.put()
    offsets, done = consumer.get()
    both = commands.Transact(done.acks, done.settles, (commands.Put("bills", commands.Envelope(1, 10, 0), True),))
    assert isinstance(consumer.world.do(both), replies.TransactReply)
    assert (offsets, consumer.finish()) == ([0], [])
    return "yes"


def inbox(consumer: Consumer) -> str:
    """Get from a position that was not acked."""
    consumer.subscribe()
    consumer.put()
    consumer.put()
    opened = consumer.opened()
    decision = consumer.world.send(commands.Get(opened.topic_id, "eve", opened.epoch, 1, ROOMY))
    if isinstance(decision.reply, replies.Refusal):
        return verdict(decision.reply) if opened.topic_id else "no"
    assert [one.first_offset for one in decision.slices] == [1]
    return "yes"


def filter_by_headers(consumer: Consumer) -> str:
    """A filter acks the messages that it skips."""
    consumer.subscribe()
    for _ in range(3):
        consumer.put()
    _, done = consumer.get()
    acks = tuple(commands.AckUpto(ack.topic_id, ack.subscriber, ack.epoch, 1) for ack in done.acks)
    settles = tuple(commands.Settle(each.topic_id, "eve", each.epoch, each.done[:1]) for each in done.settles)
    assert isinstance(consumer.world.do(commands.Transact(acks, settles)), replies.TransactReply)
    consumer.world.tick(1_000)
    assert consumer.finish() == [1, 2]
    # The broker would accept this; the client leaves it to the worker.
    return "no" if consumer.sharing is not None else "yes"


def quota_refuse(consumer: Consumer) -> str:
    consumer.limited(150, commands.REFUSE)
    consumer.put()
    full = consumer.world.do(commands.Put("orders", commands.Envelope(1, 100, 0)), "waiting")
    assert (code(full), isinstance(full, replies.NotNow)) == ("TOPIC_FULL", True)
    assert consumer.finish() == [0]
    assert isinstance(
        consumer.world.again(commands.Put("orders", commands.Envelope(1, 100, 0)), "waiting"), replies.PutReply
    )
    return "yes"


def quota_drop(consumer: Consumer) -> str:
    consumer.limited(150, commands.DROP)
    for _ in range(3):
        consumer.put()
        consumer.world.tick()
    assert (consumer.finish(), consumer.lost()) == ([2], 2)
    return "yes"


def quota_expire(consumer: Consumer) -> str:
    consumer.limited(150, commands.EXPIRE)
    consumer.put()
    opened = consumer.opened()
    consumer.put()
    consumer.world.tick()
    if consumer.kind == "by pattern":
        consumer.put()
        assert (consumer.finish(), consumer.lost()) == ([2], 2)
        return "continues at the end"
    if consumer.sharing is None:
        return f"ends: {code(consumer.world.get(opened, 'eve').reply)}"
    take = commands.Take(opened.topic_id, "eve", opened.epoch, "m", 1, 1, ROOMY)
    return f"ends: {code(consumer.world.send(take).reply)}"


def retention(consumer: Consumer) -> str:
    consumer.world.do(commands.CreateTopic("orders", 0, 1_000))
    consumer.subscribe()
    consumer.put()
    assert consumer.finish() == [0]
    assert isinstance(consumer.seek(commands.START_EARLIEST), replies.SeekReply)
    assert consumer.finish() == [0]
    return "yes"


def staged_messages(consumer: Consumer) -> str:
    consumer.world.do(commands.CreateTopic("orders"))
    consumer.subscribe()
    consumer.world.do(commands.Stage("stage", "orders", "writer", 1, commands.Envelope(2, 100, 0)))
    assert consumer.finish() == []
    assert isinstance(consumer.world.do(commands.Commit("writer", 1, "orders", (("stage", 2),))), replies.CommitReply)
    assert consumer.finish() == [0, 1]
    return "yes"


def hold(consumer: Consumer) -> str:
    consumer.subscribe()
    reply = consumer.open(hold_ms=1_000)
    if isinstance(reply, replies.Refusal):
        return verdict(reply)
    other = consumer.open(hold_ms=1_000, session="other")
    if isinstance(other, replies.OpenReply):
        return "has no effect"
    assert code(other) == "BUSY"
    return "yes"


def shared(consumer: Consumer) -> str:
    if consumer.kind != "by pattern":
        return "–"
    consumer.sharing = commands.Sharing()
    return verdict(consumer.subscribe())


CONSUMING: dict[str, Callable[[Consumer], str]] = {
    "delayed put": delayed_put,
    "time to live": time_to_live,
    "start at new": start(commands.START_NEW, [2]),
    "start at earliest": start(commands.START_EARLIEST, [0, 1, 2]),
    "start at an offset": start(1, [1, 2]),
    "seek to new": seek(commands.START_NEW, 0, []),
    "seek to earliest": seek(commands.START_EARLIEST, BEGUN, [0, 1, 2]),
    "seek to an offset": seek(0, BEGUN, [0, 1, 2]),
    "seek to a time": seek(0, 0, [0, 1, 2], time_ms=1_000, later_ms=1_500),
    "acks in a transaction": acks_in_a_transaction,
    "inbox": inbox,
    "filter by headers, in the client": filter_by_headers,
    "quota refuse": quota_refuse,
    "quota drop": quota_drop,
    "quota expire": quota_expire,
    "retention": retention,
    "staged messages": staged_messages,
    "exclusive open for a time (hold)": hold,
    "shared": shared,
}


@pytest.mark.parametrize("row", CONSUMING)
def test_how_messages_are_consumed(row: str) -> None:
    found = {kind: CONSUMING[row](Consumer(kind)) for kind in KINDS}
    assert found == table("How messages are consumed")[row]


# Puts.


class Producer:
    def __init__(self, how: str) -> None:
        self.world = World()
        self.how = how
        self.batch = 0

    def put(self, envelope: commands.Envelope, topic: str = "orders", *, create: bool = False) -> replies.Reply:
        if self.how == "put":
            return self.world.do(commands.Put(topic, envelope, create))
        if self.how == "in a transaction":
            return self.world.do(commands.Transact(puts=(commands.Put(topic, envelope, create),)))
        self.batch += 1
        stage = f"stage {self.batch}"
        reply = self.world.do(commands.Stage(stage, topic, "writer", self.batch, envelope))
        if not isinstance(reply, replies.StageReply):
            return reply
        return self.world.do(commands.Commit("writer", self.batch, topic, ((stage, envelope.count),)))

    def offsets(self) -> list[int]:
        return self.world.offsets(self.world.open("orders", "eve"), "eve")


def later(producer: Producer) -> str:
    producer.world.do(commands.Subscribe("orders", "eve"))
    reply = producer.put(commands.Envelope(1, 10, 0, 0, producer.world.now_ms + 50))
    assert producer.offsets() == []
    producer.world.tick(50)
    assert producer.offsets() == ([] if isinstance(reply, replies.Refusal) else [0])
    return verdict(reply)


def mortal(producer: Producer) -> str:
    producer.world.do(commands.Subscribe("orders", "eve"))
    reply = producer.put(commands.Envelope(1, 10, 0, 50))
    assert producer.offsets() == [0]
    producer.world.tick(50)
    assert producer.offsets() == []
    return verdict(reply)


def in_order_per_key(producer: Producer) -> str:
    world = producer.world
    world.do(commands.CreateTopic("orders"))
    world.do(commands.Subscribe("orders", "eve", -1, ORDERED))
    reply = producer.put(commands.Envelope(3, 10, 0, 0, 0, key_hashes([b"a", b"a", b"b"])))
    opened = world.open("orders", "eve")
    taken = world.send(commands.Take(opened.topic_id, "eve", opened.epoch, "m", 1, 10, ROOMY)).reply
    assert isinstance(taken, replies.TakeReply)
    assert [(head.first_offset, head.count) for head in taken.heads] == [(0, 1), (2, 1)]
    return verdict(reply)


def create_the_topic(producer: Producer) -> str:
    return verdict(producer.put(commands.Envelope(1, 10, 0), create=True))


def full(overflow: str) -> Callable[[Producer], str]:
    def try_out(producer: Producer) -> str:
        producer.world.do(commands.CreateTopic("orders", 0, 0, 150, overflow))
        producer.world.do(commands.Subscribe("orders", "eve"))
        producer.put(commands.Envelope(1, 100, 0))
        reply = producer.put(commands.Envelope(1, 100, 0))
        if isinstance(reply, replies.NotNow):
            return f"waits: {reply.code}"
        producer.world.tick()
        assert producer.world.engine.state.topics["orders"].stored_bytes <= 150
        return verdict(reply)

    return try_out


PUTTING: dict[str, Callable[[Producer], str]] = {
    "delayed put": later,
    "time to live": mortal,
    "order per key": in_order_per_key,
    "create the topic": create_the_topic,
    "quota refuse": full(commands.REFUSE),
    "quota drop": full(commands.DROP),
    "quota expire": full(commands.EXPIRE),
}


@pytest.mark.parametrize("row", PUTTING)
def test_how_messages_are_put(row: str) -> None:
    hows = ("put", "in a transaction", "staged and committed")
    found = {how: PUTTING[row](Producer(how)) for how in hows}
    assert found == table("How messages are put")[row]


# Retention and quotas.


@pytest.mark.parametrize(("row", "settings"), [("retention by time", (100, 0)), ("retention by size", (0, 100))])
def test_what_a_topic_keeps(row: str, settings: tuple[int, int]) -> None:
    found = {
        column: verdict(World().do(commands.CreateTopic("orders", *settings, quota_bytes, overflow)))
        for column, quota_bytes, overflow in [
            ("no quota", 0, commands.REFUSE),
            ("quota refuse", 1_000, commands.REFUSE),
            ("quota drop", 1_000, commands.DROP),
            ("quota expire", 1_000, commands.EXPIRE),
        ]
    }
    assert found == table("What a topic keeps")[row]


@pytest.mark.parametrize(
    ("title", "rows"),
    [
        ("How messages are consumed", set(CONSUMING)),
        ("How messages are put", set(PUTTING)),
        ("What a topic keeps", {"retention by time", "retention by size"}),
    ],
)
def test_every_row_of_the_page_is_tried_out(title: str, rows: set[str]) -> None:
    assert set(table(title)) == rows
