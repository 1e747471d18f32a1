"""The three forms of consuming: plain, by position, by key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from oncemq.gateways.http.queue import consume
from oncemq.gateways.keyed_delivery import KeyedDelivery
from oncemq.gateways.link import Link
from oncemq.protocol import errors
from oncemq.protocol.commands import DeleteTopic, Open, RegistryList, RegistrySet, Seek
from oncemq.protocol.replies import RegistryEntry, RegistryListReply
from tests.gateways.http.queue import Queue, queue
from tests.gateways.http.test_queue_rules import operate

__all__ = ["queue"]


@pytest.fixture
def other(queue: Queue) -> Iterator[Queue]:
    """A second gateway of the same broker."""
    gateway = Queue(queue.broker)
    yield gateway
    gateway.close()


# Plain.


def test_each_plain_request_takes_the_next_message(queue: Queue) -> None:
    queue.populate("a", "b")
    assert queue.size() == 2
    assert [queue.consume(), queue.consume(), queue.cant_consume()] == ["a", "b", (404, "NOTHING_NEW")]
    assert queue.size() == 0


def test_requests_at_the_same_time_take_different_messages(queue: Queue) -> None:
    queue.populate(*map(str, range(12)))
    asked = {"topic": "T1", "consumer_id": "C1"}
    replies = queue.together(*(queue.client.get("/consumer/consume", params=asked) for _ in range(12)))
    assert sorted(int(reply.json()["message"]) for reply in replies) == list(range(12))


def test_who_waits_behind_one_that_finds_no_broker_is_told_at_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.populate("a")
    asked = {"topic": "T1", "consumer_id": "C1"}
    tries = 0

    async def away(*_: object) -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0)
        raise errors.BrokerAway("away")

    with monkeypatch.context() as patch:
        patch.setattr(consume, "_next", away)
        replies = queue.together(*(queue.client.get("/consumer/consume", params=asked) for _ in range(5)))
        assert [reply.json()["code"] for reply in replies] == ["BROKER_AWAY"] * 5
        assert tries == 1
    assert queue.consume() == "a"


def test_what_is_no_text_comes_as_base64(queue: Queue) -> None:
    queue.populate()

    async def put() -> None:
        assert queue.app._link is not None
        await queue.app._link.put("T1", b"\xff")

    queue.run(put())
    found = queue.ok("GET", "/consumer/consume", topic="T1", consumer_id="C1")
    assert (found["message"], found["encoding"]) == ("/w==", "base64")


# By position.


def test_a_position_confirms_what_lies_below_and_may_be_repeated(queue: Queue) -> None:
    queue.populate("a", "b", "c")
    assert [queue.consume(position=0), queue.consume(position=0)] == ["a", "a"]
    assert queue.size() == 3
    assert [queue.consume(position=2), queue.consume(position=2)] == ["c", "c"]
    assert queue.size() == 1
    assert queue.cant_consume(position=1) == (410, "CONSUMED")
    assert queue.cant_consume(position=3) == (404, "NOTHING_NEW")
    assert queue.size() == 0
    assert queue.cant_consume(position=2) == (410, "CONSUMED")
    assert queue.cant_consume(position=4) == (416, "OFFSET_OUT_OF_RANGE")
    queue.produce("d")
    assert queue.consume(position=3) == "d"


def test_who_is_late_is_told_the_first_position_that_is_not_confirmed(queue: Queue) -> None:
    queue.populate("a", "b", "c", "d")
    queue.consume(position=3)
    late = queue.ask("GET", "/consumer/consume", topic="T1", consumer_id="C1", position=0).json()
    assert (late["error"], late["position"]) == ("message 0 is confirmed already; the first one that is not is 3", 3)


# Waiting.


@pytest.mark.parametrize("form", [{}, {"params": {"position": 0}}, {"headers": {"Idempotency-Key": "k"}}])
def test_a_request_may_wait_for_a_message(queue: Queue, form: dict[str, Any]) -> None:
    queue.populate()
    asked = {"topic": "T1", "consumer_id": "C1", **form.get("params", {})}
    assert queue.cant_consume(wait_ms=1) == (404, "NOTHING_NEW")

    async def both() -> tuple[httpx.Response, httpx.Response]:
        waiting = asyncio.ensure_future(
            queue.client.get("/consumer/consume", params=asked | {"wait_ms": 60_000}, headers=form.get("headers"))
        )
        while not queue.app._link or not queue.app._link._poll_sessions:
            await asyncio.sleep(0.001)
        # Other requests are not delayed meanwhile.
        other = await queue.client.get("/consumer/consume", params=asked)
        body = {"topic": "T1", "producer_id": "P1", "message": "m"}
        await queue.client.post("/producer/produce", json=body)
        return await waiting, other

    found, other = queue.run(both())
    assert (found.json()["message"], other.json()["code"]) == ("m", "NOTHING_NEW")


def test_a_position_holds_in_another_gateway(queue: Queue, other: Queue) -> None:
    queue.populate("a", "b")
    assert [queue.consume(position=0), other.consume(position=0)] == ["a", "a"]
    assert [queue.consume(position=1), other.consume(position=1)] == ["b", "b"]
    assert other.cant_consume(position=0) == (410, "CONSUMED")


# By key.


def test_a_new_key_confirms_what_the_key_before_was_given(queue: Queue) -> None:
    queue.populate("a", "b")
    assert [queue.consume("k1"), queue.consume("k1")] == ["a", "a"]
    assert queue.size() == 2
    assert [queue.consume("k2"), queue.consume("k2")] == ["b", "b"]
    assert queue.size() == 1
    assert queue.cant_consume("k1") == (410, "CONSUMED")
    assert queue.cant_consume("k3") == (404, "NOTHING_NEW")
    assert queue.size() == 0
    queue.produce("c")
    assert [queue.consume("k3"), queue.consume("k3")] == ["c", "c"]


def test_keys_are_remembered_by_the_broker(queue: Queue, other: Queue) -> None:
    queue.populate("a", "b", "c")
    assert [queue.consume("k1"), other.consume("k1")] == ["a", "a"]
    assert [other.consume("k2"), queue.consume("k2")] == ["b", "b"]
    assert [queue.consume("k3"), other.consume("k3")] == ["c", "c"]
    assert queue.cant_consume("k1") == other.cant_consume("k2") == (410, "CONSUMED")


def test_sixteen_keys_are_remembered(queue: Queue) -> None:
    queue.populate(*map(str, range(20)))
    assert [queue.consume(f"k{number}") for number in range(18)] == [str(number) for number in range(18)]
    assert queue.cant_consume("k2") == (410, "CONSUMED")
    # The gateway remembers overtaken keys for longer. After a restart a forgotten key is a new one.
    assert queue.cant_consume("k0") == (410, "CONSUMED")
    queue.state.queue.delivery = KeyedDelivery(queue.state.subscriptions._link)
    assert queue.cant_consume("k2") == (410, "CONSUMED")
    assert queue.consume("k0") == "18"


def test_a_position_and_a_key_do_not_go_together(queue: Queue) -> None:
    queue.populate("a")
    assert queue.cant_consume("k", position=0) == (400, "MALFORMED")


def test_plain_requests_take_what_is_not_confirmed(queue: Queue) -> None:
    queue.populate("a", "b")
    assert [queue.consume("k1"), queue.consume(), queue.consume("k2")] == ["a", "a", "b"]


@pytest.mark.parametrize("form", ["key", "position"])
def test_a_request_that_fails_at_any_step_may_be_repeated(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Fail before or after each step, as a crash of the gateway or the broker would."""
    queue.populate(*map(str, range(40)))
    steps = 0
    failing = 0

    def spoil() -> None:
        nonlocal steps
        steps += 1
        if steps == failing:
            raise errors.BrokerAway("spoiled")

    ask, operate_ = Link.ask, Link.operate

    async def spoiled_ask(*arguments, **named):  # type: ignore[no-untyped-def]
        spoil()
        found = await ask(*arguments, **named)
        spoil()
        return found

    async def spoiled_operate(*arguments, **named):  # type: ignore[no-untyped-def]
        spoil()
        found = await operate_(*arguments, **named)
        spoil()
        return found

    monkeypatch.setattr(Link, "ask", spoiled_ask)
    monkeypatch.setattr(Link, "operate", spoiled_operate)
    taken = []
    for number in range(30):
        # As after a restart of the gateway.
        if number % 2:
            queue.state.queue.delivery.delivered.clear()
            queue.state.subscriptions.opened.clear()
        steps, failing = 0, number % 15 + 1
        key = f"k{number}" if form == "key" else None
        parameters = {"topic": "T1", "consumer_id": "C1"} | ({} if key else {"position": str(number)})
        reply = queue.ask("GET", "/consumer/consume", key, **parameters)
        if reply.status_code == 503:
            reply = queue.ask("GET", "/consumer/consume", key, **parameters)
        taken.append(reply.json()["message"])
    assert taken == [str(number) for number in range(30)]


# Other consumers and seeks.


def test_a_new_key_does_not_undo_a_seek(queue: Queue) -> None:
    queue.populate()
    queue.ok("POST", "/consumer/register", topic="T1", consumer_id="keeper")
    for message in "abc":
        queue.produce(message)
    assert [queue.consume("k1"), queue.consume("k2")] == ["a", "b"]
    operate(queue, Seek("T1", "C1", 0))
    assert [queue.consume("k3"), queue.consume("k4"), queue.consume("k5")] == ["a", "b", "c"]


def test_who_takes_the_subscription_over_is_taken_over_again(queue: Queue) -> None:
    queue.populate("a", "b")
    assert queue.consume() == "a"
    operate(queue, Open("T1", "C1"))
    assert queue.consume() == "b"


def test_a_seek_back_brings_messages_again(queue: Queue) -> None:
    queue.populate("a", "b", "c")
    queue.ok("POST", "/consumer/register", topic="T1", consumer_id="keeper")
    queue.produce("d")
    assert [queue.consume() for _ in range(3)] == ["a", "b", "c"]
    assert queue.consume("k1") == "d"
    operate(queue, Seek("T1", "C1", 3))
    assert [queue.consume("k1"), queue.consume()] == ["d", "d"]
    operate(queue, Seek("T1", "C1", 3))
    assert queue.consume() == "d"


def test_a_topic_that_is_made_again_is_another_one(queue: Queue) -> None:
    queue.populate("a", "b")
    assert queue.consume("k1") == "a"
    operate(queue, DeleteTopic("T1"))
    assert queue.cant_consume("k1") == (404, "TOPIC_UNKNOWN")
    queue.ok("POST", "/topics", topic_name="T1")
    assert queue.cant_consume("k1") == (404, "NOT_SUBSCRIBED")
    queue.ok("POST", "/consumer/register", topic="T1", consumer_id="C1")
    queue.produce("c")
    # It may be a late copy of the request from before.
    assert queue.cant_consume("k1") == (410, "CONSUMED")
    assert queue.consume("k2") == "c"


def test_an_entry_that_another_gateway_changed_is_read_again(queue: Queue) -> None:
    queue.populate("a", "b", "c")
    assert queue.consume("k1") == "a"
    ((_, topic_id),) = queue.state.queue.delivery.delivered
    value = b'{"keys": [["k1", 0], ["elsewhere", 0]]}'
    operate(queue, RegistrySet("given", f"C1/{topic_id}", value))
    assert queue.consume("k2") == "b"
    assert queue.cant_consume("elsewhere") == (410, "CONSUMED")


def test_who_always_loses_is_told_so(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.populate("a")

    async def lose(*_: object) -> None:
        raise errors.SubscriptionFenced("another client took over")

    monkeypatch.setattr(consume, "_next", lose)
    assert queue.cant_consume() == (409, "SUBSCRIPTION_FENCED")


def test_a_position_of_before_a_seek_is_refused_once(queue: Queue) -> None:
    queue.populate("a", "b", "c")
    queue.ok("POST", "/consumer/register", topic="T1", consumer_id="keeper")
    queue.produce("d")
    assert [queue.consume(position=position) for position in (0, 1, 2)] == ["a", "b", "c"]
    operate(queue, Seek("T1", "C1", 2))
    assert queue.cant_consume(position=3) == (409, "SOUGHT")
    assert queue.size() == 2
    assert queue.consume(position=2) == "c"
    assert queue.consume(position=3) == "d"


def test_a_position_of_a_topic_that_was_made_again_is_refused_once(queue: Queue) -> None:
    queue.populate("a", "b")
    assert queue.consume(position=0) == "a"
    operate(queue, DeleteTopic("T1"))
    queue.ok("POST", "/topics", topic_name="T1")
    queue.ok("POST", "/consumer/register", topic="T1", consumer_id="C1")
    queue.produce("c")
    queue.produce("d")
    assert queue.cant_consume(position=1) == (410, "TOPIC_GONE")
    assert queue.size() == 2


def test_what_a_seek_brings_again_is_not_confirmed_unseen(queue: Queue, other: Queue) -> None:
    queue.populate()
    queue.ok("POST", "/consumer/register", topic="T1", consumer_id="keeper")
    queue.produce("a")
    assert queue.consume("k1") == "a"
    assert queue.cant_consume("k2") == (404, "NOTHING_NEW")
    operate(queue, Seek("T1", "C1", 0))
    # Also through a gateway that has not seen the seek: the registry says that all was confirmed.
    assert other.consume("k3") == "a"
    assert other.cant_consume("k2") == (404, "NOTHING_NEW")
    # A message that was delivered but not confirmed is delivered again to a new key.
    queue.produce("b")
    assert other.consume("k4") == "b"
    operate(queue, Seek("T1", "C1", 1))
    assert other.consume("k5") == "b"
    assert other.cant_consume("k1") == (410, "CONSUMED")


def test_an_entry_goes_with_its_subscription(queue: Queue) -> None:
    queue.populate("a")
    assert queue.consume("k1") == "a"
    operate(queue, DeleteTopic("T1"))
    assert queue.cant_consume("k1") == (404, "TOPIC_UNKNOWN")
    assert _entries(queue) == ()


def _entries(queue: Queue) -> tuple[RegistryEntry, ...]:
    async def listed() -> tuple[RegistryEntry, ...]:
        assert queue.app._link is not None
        reply, _ = await queue.app._link.ask(RegistryList("given", "", limit=10))
        assert isinstance(reply, RegistryListReply)
        return reply.entries

    return queue.run(listed())
