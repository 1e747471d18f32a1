"""The library of the queue: oncemq.http. Requests and replies get lost; nothing is duplicated, nothing is skipped."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from oncemq.http import Consumer, Producer, requests
from oncemq.protocol import errors
from oncemq.protocol.commands import DeleteTopic, RemoveSession, Seek
from tests.gateways.http.queue import Queue, Straight, queue
from tests.gateways.http.test_queue_rules import operate

__all__ = ["queue"]

Spoil = Callable[[httpx.Request, bool], None]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_PAUSE_S", 0.0)


def clients(queue: Queue, spoil: Spoil | None = None) -> tuple[Producer, Consumer]:
    return Producer(transport=Straight(queue, spoil)), Consumer(transport=Straight(queue, spoil))


def test_a_message_makes_the_round_trip(queue: Queue) -> None:
    producer, consumer = clients(queue)
    with producer, consumer:
        producer_id = producer.register("DS")
        consumer_id = consumer.register("DS")
        assert producer.ids == {"DS": producer_id}
        assert consumer.consumer_id == consumer_id
        assert producer.list_topics() == consumer.list_topics() == ["DS"]
        assert producer.enqueue("DS", "one pizza") == 0
        assert consumer.size("DS") == 1
        assert consumer.dequeue("DS") == "one pizza"
        assert consumer.size("DS") == 0
        with pytest.raises(errors.NothingNew):
            consumer.dequeue("DS")


def test_one_producer_has_an_id_for_each_topic(queue: Queue) -> None:
    producer, consumer = clients(queue)
    assert producer.register("T1") != producer.register("T2")
    assert consumer.register("T1", "T2") == consumer.consumer_id
    for topic in ("T1", "T2"):
        producer.enqueue(topic, f"for {topic}")
    assert [consumer.dequeue("T1"), consumer.dequeue("T2")] == ["for T1", "for T2"]


def test_errors_have_types(queue: Queue) -> None:
    producer, consumer = clients(queue)
    with pytest.raises(errors.NotRegistered):
        producer.enqueue("T1", "m")
    with pytest.raises(errors.ConsumerUnknown):
        consumer.dequeue("T1")
    producer.create_topic("T1")
    with pytest.raises(errors.TopicExists):
        producer.create_topic("T1")
    producer.register("T1", "P1")
    with pytest.raises(errors.ProducerRegistered):
        producer.register("T1")
    with pytest.raises(errors.ProducerElsewhere):
        producer.register("T2", "P1")
    with pytest.raises(errors.NoConsumers):
        producer.enqueue("T1", "m")
    with pytest.raises(errors.TopicUnknown):
        consumer.register("T9")
    consumer.register("T1")
    with pytest.raises(errors.ConsumerSubscribed):
        consumer.register("T1")
    with pytest.raises(errors.TopicUnknown):
        consumer.size("T9")
    with pytest.raises(ValueError):
        consumer.register()


def test_a_refusal_does_not_disturb_the_numbers(queue: Queue) -> None:
    producer, consumer = clients(queue)
    producer.register("T1")
    for _ in range(2):
        with pytest.raises(errors.NoConsumers):
            producer.enqueue("T1", "m")
    consumer.register("T1")
    producer.enqueue("T1", "m")
    broken = Producer(transport=Straight(queue), ids={"T1": "nobody"})
    with pytest.raises(errors.ProducerUnknown):
        broken.enqueue("T1", "m")
    assert consumer.size("T1") == 1


def test_another_process_goes_on_with_the_ids(queue: Queue) -> None:
    producer, consumer = clients(queue)
    with producer, consumer:
        producer.register("T1")
        consumer.register("T1")
        for message in "abc":
            producer.enqueue("T1", message)
        assert consumer.dequeue("T1") == "a"
    Producer(transport=Straight(queue), ids=producer.ids).enqueue("T1", "d")
    heir = Consumer(transport=Straight(queue), consumer_id=consumer.consumer_id)
    assert [heir.dequeue("T1") for _ in range(3)] == ["b", "c", "d"]


def test_a_block_that_fails_does_not_confirm_its_last_message(queue: Queue) -> None:
    producer, consumer = clients(queue)
    producer.register("T1")
    consumer.register("T1")
    producer.enqueue("T1", "a")
    with pytest.raises(ZeroDivisionError), consumer:
        assert consumer.dequeue("T1") == "a"
        raise ZeroDivisionError
    with Consumer(transport=Straight(queue), consumer_id=consumer.consumer_id) as heir:
        assert heir.size("T1") == 1
        assert heir.dequeue("T1") == "a"
    assert Consumer(transport=Straight(queue), consumer_id=consumer.consumer_id).size("T1") == 0


def test_two_processes_with_one_id_notice_each_other(queue: Queue) -> None:
    producer, consumer = clients(queue)
    producer.register("T1")
    consumer.register("T1")
    for message in "abc":
        producer.enqueue("T1", message)
    twin = Consumer(transport=Straight(queue), consumer_id=consumer.consumer_id)
    assert [twin.dequeue("T1"), twin.dequeue("T1")] == ["a", "b"]
    with pytest.raises(errors.Consumed):
        consumer.dequeue("T1")
    assert consumer.dequeue("T1") == "b"


def test_bytes_come_as_bytes_unless_they_are_text(queue: Queue) -> None:
    producer, consumer = clients(queue)
    producer.register("T1")
    consumer.register("T1")
    for message in ("té", b"\xffa", b"text"):
        producer.enqueue("T1", message)
    with pytest.raises(TypeError, match="text or bytes, not dict"):
        producer.enqueue("T1", {"dish": "soup"})  # type: ignore[arg-type]
    assert [consumer.dequeue("T1") for _ in range(3)] == ["té", b"\xffa", "text"]


def test_a_program_that_is_started_again_registers_again(queue: Queue) -> None:
    for turn in range(2):
        producer = Producer(transport=Straight(queue), ids={"T1": "shop"})
        consumer = Consumer(transport=Straight(queue), consumer_id="kitchen")
        assert producer.register("T1") == "shop"
        assert producer.register("T2", "cellar") == "cellar"
        assert consumer.register("T1") == "kitchen"
        producer.enqueue("T1", f"before {turn}")
        producer.enqueue("T1", f"after {turn}")
        assert consumer.dequeue("T1") == "before 0"
    with pytest.raises(errors.ProducerRegistered):
        producer.register("T1", "another")
    with pytest.raises(errors.ProducerElsewhere):
        producer.register("T3", "shop")


@pytest.mark.parametrize("seed", range(4))
def test_requests_and_replies_that_get_lost_change_nothing(queue: Queue, seed: int) -> None:
    chance = random.Random(seed)

    def spoil(_request: httpx.Request, _arrived: bool) -> None:
        if chance.random() < 0.3:
            raise httpx.ReadError("lost")

    producer, consumer = clients(queue, spoil)
    with producer, consumer:
        producer.create_topic("T1")
        producer.register("T1")
        consumer.register("T1")
        sent, taken = [str(number) for number in range(40)], []
        for number, message in enumerate(sent):
            assert producer.enqueue("T1", message) == number
            if chance.random() < 0.5:
                taken.append(consumer.dequeue("T1"))
        assert consumer.size("T1") == len(sent) - len(taken)
        taken += [consumer.dequeue("T1") for _ in range(len(sent) - len(taken))]
    assert taken == sent
    assert Consumer(transport=Straight(queue), consumer_id=consumer.consumer_id).size("T1") == 0


def test_a_session_that_the_broker_has_forgotten_begins_anew(queue: Queue) -> None:
    producer, consumer = clients(queue)
    producer.register("T1")
    consumer.register("T1")
    producer.enqueue("T1", "a")
    operate(queue, RemoveSession(producer._session._session))
    producer.enqueue("T1", "b")
    assert [consumer.dequeue("T1"), consumer.dequeue("T1")] == ["a", "b"]


# Addresses and patience.


def answering(status: int, body: Any, asked: list[str], request: httpx.Request) -> httpx.Response:
    asked.append(request.url.host)
    if isinstance(body, str):
        return httpx.Response(status, text=body)
    return httpx.Response(status, json=body)


def test_addresses_are_tried_in_turn(queue: Queue) -> None:
    straight, asked = Straight(queue), []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == "a":
            raise httpx.ConnectError("nobody is there")
        if request.url.host == "b":
            return httpx.Response(503, json={"code": "BROKER_AWAY", "detail": "away"})
        request.url = request.url.copy_with(host="127.0.0.1", port=8002)
        request.headers["host"] = "127.0.0.1:8002"
        return straight.handle_request(request)

    producer = Producer(["http://a", "http://b/", "http://c"], transport=httpx.MockTransport(answer))
    producer.create_topic("T1")
    assert producer.list_topics() == ["T1"]
    assert asked == ["a", "b", "c", "c"]


@pytest.mark.parametrize(
    ("status", "body", "kind", "is_repeated"),
    [
        (503, {"code": "BROKER_AWAY", "detail": "away"}, errors.BrokerAway, True),
        (502, "<html>", errors.BrokerAway, True),
        (500, "Internal Server Error", errors.BrokerAway, True),
        (507, {"code": "DISK_FULL", "error": "full"}, errors.DiskFull, True),
        (429, {"code": "LIMIT_REACHED", "error": "full"}, errors.LimitReached, False),
        (500, {"code": "BROKER_BUG", "detail": "oh"}, errors.BrokerBug, False),
        (404, "<html>", errors.Malformed, False),
        (200, "<html>", errors.Malformed, False),
    ],
)
def test_what_may_pass_is_repeated_until_the_patience_ends(
    status: int, body: Any, kind: type[errors.OnceMQError], is_repeated: bool
) -> None:
    asked: list[str] = []
    transport = httpx.MockTransport(partial(answering, status, body, asked))
    with pytest.raises(kind) as raised:
        Producer("http://a", total_timeout_s=0.1, transport=transport).create_topic("T1")
    assert type(raised.value) is kind
    assert (len(asked) > 1) == is_repeated


def test_repetitions_have_the_same_key(queue: Queue) -> None:
    keys: list[str] = []

    def lose(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) == 3:
            return httpx.Response(200, json={"status": "success", "topic": json.loads(request.content)["topic_name"]})
        raise httpx.ReadTimeout("slow")

    Producer(transport=httpx.MockTransport(lose)).create_topic("T1")
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_a_closed_client_says_so(queue: Queue) -> None:
    producer, consumer = clients(queue)
    producer.close()
    consumer.close()
    with pytest.raises(errors.ClientClosed):
        producer.list_topics()
    with pytest.raises(errors.ClientClosed):
        consumer.register("T1")
    with pytest.raises(errors.SettingInvalid):
        Producer("tcp://127.0.0.1:5555")


_WITHOUT_HTTPX = """
import sys
import oncemq
oncemq.connect
assert "httpx" not in sys.modules
sys.modules["httpx"] = None
try:
    import oncemq.http
except oncemq.errors.MissingExtra as error:
    print(error)
"""


def test_oncemq_itself_needs_no_httpx() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_HTTPX], capture_output=True, text=True, check=True)
    assert "pip install 'oncemq[http]'" in done.stdout


def test_a_consumer_goes_on_where_a_seek_has_moved_it(queue: Queue) -> None:
    queue.populate("a", "b", "c")
    queue.ok("POST", "/consumer/register", topic="T1", consumer_id="keeper")
    queue.produce("d")
    with Consumer(consumer_id="C1", transport=Straight(queue)) as consumer:
        assert [consumer.dequeue("T1") for _ in range(3)] == ["a", "b", "c"]
        operate(queue, Seek("T1", "C1", 3))
        assert consumer.dequeue("T1") == "d"
        operate(queue, Seek("T1", "C1", 3))
    assert queue.size() == 1


def test_a_consumer_of_a_topic_that_was_made_again_is_told(queue: Queue) -> None:
    queue.populate("a")
    consumer = Consumer(consumer_id="C1", transport=Straight(queue))
    assert consumer.dequeue("T1") == "a"
    operate(queue, DeleteTopic("T1"))
    queue.ok("POST", "/topics", topic_name="T1")
    queue.ok("POST", "/consumer/register", topic="T1", consumer_id="C1")
    queue.produce("b")
    queue.produce("c")
    with pytest.raises(errors.TopicGone):
        consumer.dequeue("T1")
    assert [consumer.dequeue("T1"), consumer.dequeue("T1")] == ["b", "c"]


@pytest.mark.parametrize("kind", [Producer, Consumer])
def test_who_goes_on_trying_is_told_when_the_client_is_closed(kind: type[Producer] | type[Consumer]) -> None:
    is_trying = threading.Event()

    def away(_: httpx.Request) -> httpx.Response:
        is_trying.set()
        raise httpx.ConnectError("nobody is there")

    client = kind(transport=httpx.MockTransport(away))
    raised: list[BaseException] = []

    def register() -> None:
        try:
            client.register("T1")
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=register)
    thread.start()
    assert is_trying.wait(30)
    client.close()
    thread.join(30)
    assert [type(error) for error in raised] == [errors.ClientClosed]
