"""Stages: filled without waiting, committed to several topics at once, deleted, and the errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oncemq
import oncemq.aio
from oncemq.client import staging
from oncemq.client.core.commands.pending import Pending
from oncemq.client.runtime.flow import Flow, Until
from oncemq.client.staging import StageWriter
from oncemq.protocol import commands, errors
from oncemq.protocol.batch import encode_batch
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import Refusal, StageReply
from oncemq.testing.broker_process import BrokerProcess
from tests.client.core.rig import CoreRig
from tests.client.event_loop import on_event_loop

TOPICS = ("orders", "bills")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[oncemq.Client]:
    with oncemq.connect(f"memory:{tmp_path.name}") as client:
        make_topics(client)
        yield client


def make_topics(client: oncemq.Client) -> None:
    for topic in TOPICS:
        client.create_topic(topic, retain_ms=10**9)


def fill(client: oncemq.Client, stage: str, topic: str, batches: list[list[bytes]], batch: int = 1) -> int:
    stager = client.stager(stage, topic, "nightly", batch)
    for values in batches:
        stager.add(len(values), encode_batch(values))
    return stager.finish()


def texts(client: oncemq.Client, topic: str) -> list[str]:
    return [message.text for message in client.read(topic)]


# With a broker.


def test_batches_of_a_stager_are_committed_in_their_order(client: oncemq.Client) -> None:
    assert fill(client, "a", "orders", [[b"1", b"2"], [b"3"]]) == 3
    assert fill(client, "b", "orders", [[b"0"]]) == 1
    assert texts(client, "orders") == []
    assert client.commit("nightly", 1, "orders", [("b", 1), ("a", 3)]).count == 4
    assert texts(client, "orders") == ["0", "1", "2", "3"]


def test_a_commit_to_several_topics_returns_a_part_for_each(client: oncemq.Client) -> None:
    stages = {"orders": [("a", fill(client, "a", "orders", [[b"1", b"2"]]))], "bills": [("b", 1)]}
    fill(client, "b", "bills", [[b"3"]])
    reply = client.commit("nightly", 1, stages)
    assert reply.count == 3
    assert [(part.first_offset, part.count) for part in reply.parts] == [(0, 2), (0, 1)]
    assert (texts(client, "orders"), texts(client, "bills")) == (["1", "2"], ["3"])
    assert client.commit("nightly", 1, stages).before


def test_a_commit_to_several_topics_happens_as_a_whole_or_not(client: oncemq.Client) -> None:
    fill(client, "a", "orders", [[b"1"]])
    with pytest.raises(errors.StageUnknown):
        client.commit("nightly", 1, {"orders": [("a", 1)], "bills": [("b", 1)]})
    assert texts(client, "orders") == []


def test_a_batch_without_messages_is_committed_too(client: oncemq.Client) -> None:
    assert not client.commit("nightly", 1, {}).before
    assert client.commit("nightly", 1, {}).before
    with pytest.raises(errors.StageCommitted):
        fill(client, "a", "orders", [[b"1"]])


def test_a_batch_that_comes_back_with_other_content_is_refused(client: oncemq.Client) -> None:
    fill(client, "a", "orders", [[b"1"]])
    assert not client.commit("nightly", 1, "orders", [("a", 1)], content=b"one").before
    assert client.commit("nightly", 1, "orders", [], content=b"one").before
    with pytest.raises(errors.BatchChanged, match="'nightly' has already committed batch 1, with other content"):
        client.commit("nightly", 1, {"orders": []}, content=b"two")
    assert texts(client, "orders") == ["1"]


def test_a_commit_without_a_writer_is_no_batch_of_any_writer(client: oncemq.Client) -> None:
    for number in range(2):
        stager = client.stager(f"a{number}", "orders", "", 0)
        stager.add(1, encode_batch([b"%d" % number]))
        assert client.commit("", 0, "orders", [(f"a{number}", stager.finish())]).count == 1
    assert texts(client, "orders") == ["0", "1"]


@pytest.mark.parametrize("arguments", [("orders",), ({"orders": []}, [])])
def test_a_commit_has_one_topic_or_a_mapping(client: oncemq.Client, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="one topic and its stages, or a mapping"):
        client.commit("nightly", 1, *arguments)


def test_a_stager_without_batches_has_no_stage(client: oncemq.Client) -> None:
    assert client.stager("a", "orders", "nightly", 1).finish() == 0
    with pytest.raises(errors.StageUnknown):
        client.commit("nightly", 1, "orders", [("a", 0)])


def test_a_refusal_is_raised_and_nothing_is_sent_after_it(client: oncemq.Client) -> None:
    stager = client.stager("a", "nowhere", "nightly", 1)
    payload = encode_batch([b"1"])
    with pytest.raises(errors.TopicUnknown):
        while True:
            stager.add(1, payload)
    client.create_topic("nowhere")
    with pytest.raises(errors.TopicUnknown):
        stager.add(1, payload)
    with pytest.raises(errors.TopicUnknown):
        stager.finish()
    assert fill(client, "a", "nowhere", [[b"1"]]) == 1, "the stage of the refused one is empty"


def test_a_batch_that_is_too_large_is_refused(client: oncemq.Client) -> None:
    payload = encode_batch([bytes(client.batch_bytes_max), b""])
    with pytest.raises(errors.TooLarge, match=f"a batch of {len(payload)} bytes; this broker accepts at most "):
        client.stager("a", "orders", "nightly", 1).add(2, payload)


def test_a_stage_that_another_stager_fills_too_is_detected(client: oncemq.Client) -> None:
    fill(client, "a", "orders", [[b"1"]])
    with pytest.raises(errors.StageMismatch, match="holds 3 messages; 2 were added"):
        fill(client, "a", "orders", [[b"2", b"3"]])


def test_key_hashes_and_time_to_live_are_passed_on(client: oncemq.Client) -> None:
    client.subscribe("orders", "a")
    stager = client.stager("a", "orders", "nightly", 1)
    with pytest.raises(errors.Malformed, match="key hashes must have 8 bytes per message"):
        stager.add(1, encode_batch([b"1"]), key_hashes=b"short")
        stager.finish()
    stager = client.stager("b", "orders", "nightly", 1)
    with pytest.raises(errors.Malformed, match="time to live"):
        stager.add(1, encode_batch([b"1"]), ttl_ms=-1)
        stager.finish()


def test_a_broker_that_is_killed_meanwhile_stages_everything_once(oncemq_broker: BrokerProcess) -> None:
    with oncemq.connect(oncemq_broker.url, timeout_s=0.3, tries=60) as client:
        make_topics(client)
        stager = client.stager("a", "orders", "nightly", 1)
        for number in range(120):
            if number in (40, 80):
                oncemq_broker.restart()
            stager.add(2, encode_batch([b"%d" % (2 * number), b"%d" % (2 * number + 1)]))
        reply = client.commit("nightly", 1, {"orders": [("a", stager.finish())], "bills": []})
        assert [part.count for part in reply.parts] == [240, 0]
        assert texts(client, "orders") == [str(number) for number in range(240)]


@on_event_loop
async def test_a_stager_is_awaited_on_an_event_loop(tmp_path: Path) -> None:
    async with oncemq.aio.connect(f"memory:{tmp_path.name}") as client:
        await client.create_topic("orders", retain_ms=10**9)
        stager = client.stager("a", "orders", "nightly", 1)
        for number in range(100):
            await stager.add(1, encode_batch([b"%d" % number]))
        reply = await client.commit("nightly", 1, {"orders": [("a", await stager.finish())]}, content=b"one")
        assert reply.count == 100
        with pytest.raises(errors.BatchChanged):
            await client.commit("nightly", 1, {}, content=b"two")
        assert [message.text async for message in client.read("orders")] == [str(number) for number in range(100)]


# What is in flight. The test answers for the broker.


class HandDriven:
    """A driver that does nothing on its own."""

    def __init__(self) -> None:
        self.rig = CoreRig()
        self.rig.greet()
        self.core = self.rig.core
        self.given_up: list[Pending] = []

    def check_usable(self) -> None: ...

    def pump(self) -> None:
        self.rig.sent()

    def give_up(self, pending: Pending, error: errors.OnceMQError) -> None:
        self.given_up.append(pending)
        self.core.give_up(pending, error)

    def answer(self, *replies: Any) -> None:
        """Answer the oldest requests that are not answered."""
        for reply in replies:
            request = next(one for one in self.rig.requests if isinstance(one.commands[0], commands.Numbered))
            self.rig.requests.remove(request)
            self.rig.answer(request, reply)


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> HandDriven:
    monkeypatch.setattr(staging, "_IN_FLIGHT_BATCHES", 3)
    monkeypatch.setattr(staging, "_IN_FLIGHT_BYTES", 1_000)
    return HandDriven()


def begin(hand: HandDriven) -> StageWriter:
    return StageWriter(hand, Untyped(), "a", "orders", "nightly", 1)  # type: ignore[arg-type]


class Untyped:
    """No topic has a schema."""

    def claimed(self, operation: commands.Stage, payload: Frame) -> Flow[tuple[commands.Stage, Frame]]:
        yield from ()
        return operation, payload


def add(stager: StageWriter, size: int = 10) -> Flow[None]:
    payload = bytes(size)
    operation = commands.Stage("a", "orders", "nightly", 1, commands.Envelope(1, size, 0))
    return stager._add(operation, payload)


def is_done(flow: Flow[Any]) -> bool:
    """Run a flow up to its first wait. Returns False if it waits."""
    try:
        wait = flow.send(None)
    except StopIteration:
        return True
    assert isinstance(wait, Until)
    assert not wait.is_done()
    return False


def test_a_stager_waits_when_many_batches_are_in_flight(hand: HandDriven) -> None:
    stager = begin(hand)
    assert [is_done(add(stager)) for _ in range(3)] == [True, True, True]
    waiting = add(stager)
    assert not is_done(waiting)
    hand.answer(StageReply(1))
    assert is_done(waiting)
    assert not is_done(add(stager))


def test_a_stager_waits_when_many_bytes_are_in_flight(hand: HandDriven) -> None:
    stager = begin(hand)
    assert is_done(add(stager, 600))
    waiting = add(stager, 600)
    assert not is_done(waiting)
    hand.answer(StageReply(1))
    assert is_done(waiting)


def test_a_batch_that_is_larger_than_the_limit_is_sent_alone(hand: HandDriven) -> None:
    stager = begin(hand)
    assert is_done(add(stager, 5_000))
    assert not is_done(add(stager, 1))


def test_finish_waits_for_every_reply(hand: HandDriven) -> None:
    stager = begin(hand)
    assert is_done(add(stager))
    assert is_done(add(stager))
    end = stager.finish()
    assert not is_done(end)
    hand.answer(StageReply(1))
    assert not is_done(end)
    hand.answer(StageReply(2))
    with pytest.raises(StopIteration, match="2"):
        end.send(None)


def test_the_first_refusal_is_raised(hand: HandDriven) -> None:
    stager = begin(hand)
    assert is_done(add(stager))
    assert is_done(add(stager))
    hand.answer(Refusal("TOPIC_UNKNOWN", "first"), Refusal("LIMIT_REACHED", "second"))
    sent = len(hand.rig.requests)
    for _ in range(2):
        with pytest.raises(errors.TopicUnknown, match="first"):
            is_done(add(stager))
    assert len(hand.rig.requests) == sent


def test_an_interrupted_stager_stages_nothing_more(hand: HandDriven) -> None:
    stager = begin(hand)
    assert is_done(add(stager))
    end = stager.finish()
    assert not is_done(end)
    with pytest.raises(KeyboardInterrupt):
        end.throw(KeyboardInterrupt())
    assert len(hand.given_up) == 1
    with pytest.raises(errors.ClientClosed):
        is_done(add(stager))


def test_a_stage_that_has_lost_its_first_batch_is_detected(hand: HandDriven) -> None:
    """The stage expired while its task made the next batch."""
    stager = begin(hand)
    assert is_done(add(stager))
    hand.answer(StageReply(1))
    assert is_done(add(stager))
    hand.answer(StageReply(1))
    with pytest.raises(errors.StageMismatch, match="holds 1 messages; 2 were added"):
        is_done(stager.finish())
