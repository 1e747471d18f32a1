"""The queue over HTTP: its rules and its errors."""

from __future__ import annotations

from typing import Any

import pytest

from oncemq.protocol.commands import CreateTopic, Subscribe, Unsubscribe
from tests.gateways.http.queue import Queue, queue

__all__ = ["queue"]


def operate(queue: Queue, *operations: Any) -> None:
    async def all_of_them() -> None:
        assert queue.app._link is not None
        for operation in operations:
            await queue.app._link.operate(operation)

    queue.run(all_of_them())


# Topics.


def test_topics_are_made_and_listed(queue: Queue) -> None:
    assert queue.ok("GET", "/topics") == {"topics": [], "after": ""}
    assert queue.ok("POST", "/topics", topic_name="T2") == {"topic": "T2"}
    queue.ok("POST", "/topics", topic_name="a name with spaces")
    assert queue.ok("GET", "/topics")["topics"] == ["T2", "a name with spaces"]
    assert queue.ok("GET", "/topics", limit=1) == {"topics": ["T2"], "after": "T2"}


def test_a_topic_that_exists_is_not_made_again(queue: Queue) -> None:
    queue.ok("POST", "/topics", topic_name="T1")
    assert queue.refused("POST", "/topics", topic_name="T1") == (409, "TOPIC_EXISTS")
    operate(queue, CreateTopic("kept", retain_ms=60_000))
    assert queue.refused("POST", "/topics", topic_name="kept") == (409, "TOPIC_EXISTS")


def test_making_a_topic_may_be_repeated_under_its_key(queue: Queue) -> None:
    assert queue.ok("POST", "/topics", "k", topic_name="T1") == queue.ok("POST", "/topics", "k", topic_name="T1")
    assert queue.refused("POST", "/topics", "other", topic_name="T1") == (409, "TOPIC_EXISTS")
    assert queue.refused("POST", "/topics", "k", topic_name="T2") == (422, "KEY_REUSED")


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "T.*", "#"])
def test_a_name_that_no_topic_can_have_is_refused(queue: Queue, name: str) -> None:
    assert queue.refused("POST", "/topics", topic_name=name) == (400, "NAME_INVALID")
    for path in ("/producer/register", "/consumer/register"):
        assert queue.refused("POST", path, topic=name) == (400, "NAME_INVALID")
    assert queue.refused("GET", "/size", topic=name, consumer_id="C1") == (400, "NAME_INVALID")


# Producers.


def test_a_producer_gets_an_id_and_its_topic_is_made(queue: Queue) -> None:
    made = queue.ok("POST", "/producer/register", topic="T1")
    assert made["topic"] == "T1"
    assert queue.ok("POST", "/producer/register", topic="T1")["producer_id"] != made["producer_id"]
    assert queue.ok("GET", "/topics")["topics"] == ["T1"]


def test_a_producer_is_registered_once_and_for_one_topic(queue: Queue) -> None:
    assert queue.ok("POST", "/producer/register", topic="T1", producer_id="P1")["producer_id"] == "P1"
    again = queue.refused("POST", "/producer/register", topic="T1", producer_id="P1")
    elsewhere = queue.refused("POST", "/producer/register", topic="T2", producer_id="P1")
    assert (again, elsewhere) == ((409, "PRODUCER_REGISTERED"), (409, "PRODUCER_ELSEWHERE"))
    assert queue.ok("GET", "/topics")["topics"] == ["T1"]


def test_another_gateway_knows_who_is_registered(queue: Queue) -> None:
    queue.populate("a")
    other = Queue(queue.broker)
    assert other.refused("POST", "/producer/register", topic="T1", producer_id="P1") == (409, "PRODUCER_REGISTERED")
    other.produce("b")
    assert other.consume() == "a"
    assert queue.consume() == "b"
    other.close()


def test_one_of_two_who_register_the_same_producer_at_once_wins(queue: Queue) -> None:
    body = [{"topic": f"T{number}", "producer_id": "P1"} for number in range(8)]
    replies = queue.together(*(queue.client.post("/producer/register", json=each) for each in body))
    winners = [each["topic"] for each, reply in zip(body, replies, strict=True) if reply.status_code == 200]
    assert len(winners) == 1
    assert {reply.json().get("code") for reply in replies} == {None, "PRODUCER_ELSEWHERE"}
    assert queue.refused("POST", "/producer/register", topic=winners[0], producer_id="P1")[1] == "PRODUCER_REGISTERED"


def test_registering_may_be_repeated_under_its_key(queue: Queue) -> None:
    first = queue.ok("POST", "/producer/register", "k1", topic="T1")
    assert queue.ok("POST", "/producer/register", "k1", topic="T1") == first
    named = queue.ok("POST", "/producer/register", "k2", topic="T1", producer_id="P1")
    assert queue.ok("POST", "/producer/register", "k2", topic="T1", producer_id="P1") == named
    assert queue.refused("POST", "/producer/register", "k3", topic="T1", producer_id="P1")[1] == "PRODUCER_REGISTERED"
    consumer = queue.ok("POST", "/consumer/register", "k4", topic="T1")
    assert queue.ok("POST", "/consumer/register", "k4", topic="T1") == consumer
    named = queue.ok("POST", "/consumer/register", "k5", topic="T1", consumer_id="C1")
    assert queue.ok("POST", "/consumer/register", "k5", topic="T1", consumer_id="C1") == named
    assert queue.refused("POST", "/consumer/register", "k6", topic="T1", consumer_id="C1")[1] == "CONSUMER_SUBSCRIBED"


def test_who_is_not_registered_does_not_publish(queue: Queue) -> None:
    queue.populate(topic="T1")
    queue.ok("POST", "/topics", topic_name="T2")
    message = {"message": "m"}
    unknown = queue.refused("POST", "/producer/produce", topic="T1", producer_id="P9", **message)
    elsewhere = queue.refused("POST", "/producer/produce", topic="T2", producer_id="P1", **message)
    nowhere = queue.refused("POST", "/producer/produce", topic="T9", producer_id="P1", **message)
    assert (unknown, elsewhere, nowhere) == (
        (404, "PRODUCER_UNKNOWN"),
        (403, "NOT_REGISTERED"),
        (404, "TOPIC_UNKNOWN"),
    )
    assert queue.size() == 0


def test_a_topic_without_consumers_takes_no_message(queue: Queue) -> None:
    produce = {"topic": "T1", "producer_id": "P1", "message": "m"}
    queue.ok("POST", "/producer/register", topic="T1", producer_id="P1")
    assert queue.refused("POST", "/producer/produce", **produce) == (409, "NO_CONSUMERS")
    assert queue.refused("POST", "/producer/produce", "k", **produce) == (409, "NO_CONSUMERS")
    queue.ok("POST", "/consumer/register", topic="T1", consumer_id="C1")
    # The same request gets the same response, even if something has changed.
    assert queue.refused("POST", "/producer/produce", "k", **produce) == (409, "NO_CONSUMERS")
    assert queue.ok("POST", "/producer/produce", "new", **produce)["consumers"] == 1
    assert queue.size() == 1


def test_a_message_that_is_refused_uses_up_no_position(queue: Queue) -> None:
    produce = {"topic": "T1", "producer_id": "P1", "message": "m"}
    queue.ok("POST", "/producer/register", topic="T1", producer_id="P1")
    begun = queue.post("/v1/sessions", session="s", nonce=1).json()
    numbered = {"OnceMQ-Session": "s", "OnceMQ-Epoch": str(begun["epoch"]), "OnceMQ-Number": "1"}
    assert queue.refused("POST", "/producer/produce", **produce) == (409, "NO_CONSUMERS")
    assert queue.post("/producer/produce", numbered, **produce).json()["code"] == "NO_CONSUMERS"
    queue.ok("POST", "/consumer/register", topic="T1", consumer_id="C1")
    first = queue.post("/producer/produce", numbered, **produce).json()
    assert (first["status"], first["position"]) == ("success", 0)
    # A repetition of a stored message is not refused, even if the gateway does not know it any more.
    operate(queue, Unsubscribe("T1", "C1"))
    queue.state.queue.consumed.clear()
    assert queue.post("/producer/produce", numbered, **produce).json() == first


def test_a_message_may_be_bytes(queue: Queue) -> None:
    queue.populate()
    produce = {"topic": "T1", "producer_id": "P1", "encoding": "base64"}
    queue.ok("POST", "/producer/produce", message="/w==", **produce)
    assert queue.refused("POST", "/producer/produce", message="%", **produce) == (400, "MALFORMED")
    assert queue.consume() == "/w=="


def test_a_retention_keeps_what_nobody_is_subscribed_to(queue: Queue) -> None:
    operate(queue, CreateTopic("T1", retain_ms=3_600_000))
    queue.ok("POST", "/producer/register", topic="T1", producer_id="P1")
    assert queue.produce("m") == {"topic": "T1", "position": 0, "consumers": 0}
    assert queue.produce("m", key="k") == queue.produce("m", key="k") == {"topic": "T1", "position": 1, "consumers": 0}


def test_what_a_retention_has_kept_was_stored_also_when_it_has_gone(queue: Queue) -> None:
    operate(queue, CreateTopic("T1", retain_bytes=1))
    queue.ok("POST", "/producer/register", topic="T1", producer_id="P1")
    first = queue.produce("m", key="k")
    queue.produce("n")
    assert queue.get("/v1/topics/T1").json()["first_offset"] == 2
    assert queue.produce("m", key="k") == first


def test_a_topic_stays_when_its_last_consumer_leaves(queue: Queue) -> None:
    queue.populate("m")
    operate(queue, Unsubscribe("T1", "C1"))
    assert queue.ok("GET", "/topics")["topics"] == ["T1"]
    assert queue.cant_consume() == (404, "NOT_SUBSCRIBED")


def test_a_message_is_published_once_under_its_key(queue: Queue) -> None:
    queue.populate()
    assert queue.produce("m", key="k") == queue.produce("m", key="k")
    assert queue.size() == 1
    other = {"topic": "T1", "producer_id": "P1", "message": "other"}
    assert queue.refused("POST", "/producer/produce", "k", **other) == (422, "KEY_REUSED")


# Consumers.


def test_a_consumer_has_several_topics_each_once(queue: Queue) -> None:
    for name in ("T1", "T2"):
        queue.ok("POST", "/topics", topic_name=name)
    consumer_id = queue.ok("POST", "/consumer/register", topic="T1")["consumer_id"]
    assert queue.ok("POST", "/consumer/register", topic="T2", consumer_id=consumer_id)["consumer_id"] == consumer_id
    again = queue.refused("POST", "/consumer/register", topic="T2", consumer_id=consumer_id)
    nowhere = queue.refused("POST", "/consumer/register", topic="T9", consumer_id=consumer_id)
    assert (again, nowhere) == ((409, "CONSUMER_SUBSCRIBED"), (404, "TOPIC_UNKNOWN"))
    assert queue.ok("GET", "/topics")["topics"] == ["T1", "T2"]


def test_a_consumer_that_crashed_while_it_registered_can_do_it_again(queue: Queue) -> None:
    queue.populate(topic="T1")
    queue.ok("POST", "/producer/register", topic="T2", producer_id="P2")
    # The consumer is registered but not subscribed, as after a crash between the two steps.
    assert queue.cant_consume(topic="T2") == (404, "NOT_SUBSCRIBED")
    assert queue.ok("POST", "/consumer/register", topic="T2", consumer_id="C1")["consumer_id"] == "C1"
    assert queue.cant_consume(topic="T2") == (404, "NOTHING_NEW")


@pytest.mark.parametrize("path", ["/consumer/consume", "/size"])
def test_only_subscribed_consumers_consume(queue: Queue, path: str) -> None:
    queue.populate("m")
    queue.ok("POST", "/topics", topic_name="T2")
    assert queue.refused("GET", path, topic="T1", consumer_id="C9") == (404, "CONSUMER_UNKNOWN")
    assert queue.refused("GET", path, topic="T2", consumer_id="C1") == (404, "NOT_SUBSCRIBED")
    assert queue.refused("GET", path, topic="T9", consumer_id="C1") == (404, "TOPIC_UNKNOWN")
    # A subscriber that was created otherwise is not a consumer until it registers.
    operate(queue, Subscribe("T1", "native"))
    assert queue.refused("GET", path, topic="T1", consumer_id="native") == (404, "CONSUMER_UNKNOWN")


def test_a_message_is_kept_until_all_who_were_subscribed_have_it(queue: Queue) -> None:
    queue.populate("before")
    queue.ok("POST", "/consumer/register", topic="T1", consumer_id="C2")
    queue.produce("after")
    assert [queue.consume(), queue.consume(), queue.cant_consume()] == ["before", "after", (404, "NOTHING_NEW")]
    assert queue.ok("GET", "/size", topic="T1", consumer_id="C2") == {"size": 1, "position": 1}
    assert queue.ok("GET", "/consumer/consume", topic="T1", consumer_id="C2")["message"] == "after"


# Messages.


def test_parameters_come_in_the_query_or_in_a_body(queue: Queue) -> None:
    send = queue.client.request
    everywhere = [{"params": {"topic": "A"}}, {"json": {"topic": "B"}}, {"data": {"topic": "C"}}]
    for place in everywhere:
        assert queue.run(send("POST", "/producer/register", **place)).status_code == 200  # type: ignore[arg-type]
    assert queue.ok("GET", "/topics")["topics"] == ["A", "B", "C"]
    queue.populate("m")
    asked = {"topic": "T1", "consumer_id": "C1"}
    assert queue.run(send("GET", "/size", json=asked)).json()["size"] == 1
    assert queue.run(send("GET", "/consumer/consume", data=asked)).json()["message"] == "m"


@pytest.mark.parametrize(
    ("parameters", "status", "code"),
    [
        ({"topic": "T1"}, 400, "MALFORMED"),
        ({"topic": "T1", "consumer_id": "C1", "more": "x"}, 400, "MALFORMED"),
        ({"topic": "T1", "consumer_id": "C1", "position": "first"}, 400, "MALFORMED"),
        ({"topic": "T1", "consumer_id": "C1", "position": -1}, 400, "MALFORMED"),
        ({"topic": "T1", "consumer_id": "C1", "position": 2**70}, 400, "MALFORMED"),
        ({"topic": "T1", "consumer_id": ""}, 400, "NAME_INVALID"),
        ({"topic": "T1", "consumer_id": "\x07"}, 400, "NAME_INVALID"),
        ({"topic": "T1", "consumer_id": "é" * 128}, 400, "NAME_INVALID"),
    ],
)
def test_what_makes_no_sense_is_refused(queue: Queue, parameters: dict[str, Any], status: int, code: str) -> None:
    assert queue.refused("GET", "/consumer/consume", **parameters) == (status, code)


@pytest.mark.parametrize("key", ["", "k" * 513, "é" * 300])
def test_a_key_that_is_none_is_refused(queue: Queue, key: str) -> None:
    queue.populate("m")
    headers = [(b"idempotency-key", key.encode())]
    asked = {"topic": "T1", "consumer_id": "C1"}
    refused = queue.run(queue.client.get("/consumer/consume", params=asked, headers=headers))
    assert (refused.status_code, refused.json()["code"]) == (400, "NAME_INVALID")
    made = queue.run(queue.client.post("/topics", params={"topic_name": "T2"}, headers=headers))
    assert (made.status_code, made.json()["code"]) == (400, "NAME_INVALID")
    assert queue.consume() == "m"


def test_ids_and_keys_of_any_length_that_names_have_fit_into_the_registry(queue: Queue) -> None:
    asked = {"topic": "t" * 255, "consumer_id": "c" * 255}
    queue.ok("POST", "/producer/register", topic="t" * 255, producer_id="p" * 255)
    queue.ok("POST", "/consumer/register", **asked)
    queue.ok("POST", "/producer/produce", topic="t" * 255, producer_id="p" * 255, message="m")
    for number in range(20):
        queue.refused("GET", "/consumer/consume", f"{number:0512}", **asked) if number else queue.ok(
            "GET", "/consumer/consume", f"{number:0512}", **asked
        )


def test_a_body_that_is_no_json_is_refused_in_the_same_shape(queue: Queue) -> None:
    answered = queue.run(queue.client.post("/producer/produce", content=b'{"topic": "\\ud800'))
    assert (answered.status_code, answered.json()["code"]) == (400, "MALFORMED")
    lonely = b'{"topic": "T1", "producer_id": "P1", "message": "\\ud800 "}'
    answered = queue.run(queue.client.post("/producer/produce", content=lonely))
    assert (answered.status_code, answered.json()["status"]) == (400, "failure")


def test_a_method_that_is_not_there_is_refused_in_the_same_shape(queue: Queue) -> None:
    assert queue.refused("PUT", "/consumer/consume") == (405, "METHOD_UNKNOWN")
    assert queue.ask("PUT", "/consumer/consume").headers["allow"] == "GET"


def test_head_consumes_nothing(queue: Queue) -> None:
    queue.populate("m")
    asked = {"topic": "T1", "consumer_id": "C1"}
    assert queue.run(queue.client.head("/consumer/consume", params=asked)).status_code == 405
    assert queue.run(queue.client.head("/size", params=asked)).status_code == 200
    assert queue.consume() == "m"


# Ids as numbers, and advice.


def test_an_id_may_be_an_integer_and_is_the_same_as_its_digits(queue: Queue) -> None:
    assert queue.ok("POST", "/producer/register", topic="T1", producer_id=7)["producer_id"] == "7"
    assert queue.ok("POST", "/consumer/register", topic="T1", consumer_id=7)["consumer_id"] == "7"
    assert queue.refused("POST", "/producer/register", topic="T1", producer_id="7") == (409, "PRODUCER_REGISTERED")
    for producer_id in (7, "7"):
        queue.ok("POST", "/producer/produce", topic="T1", producer_id=producer_id, message="pizza")
    both = queue.run(queue.client.post("/producer/register?producer_id=8", json={"topic": "T1", "producer_id": 8}))
    assert both.json()["producer_id"] == "8"
    consumed = queue.run(queue.client.request("GET", "/consumer/consume", json={"topic": "T1", "consumer_id": 7}))
    assert consumed.json()["message"] == "pizza"
    assert queue.ok("GET", "/size", topic="T1", consumer_id="7")["size"] == 1
    for invalid in (7.5, True, None, [7]):
        assert queue.refused("POST", "/producer/register", topic="T1", producer_id=invalid) == (400, "MALFORMED")


def test_the_advice_names_requests_of_the_queue(queue: Queue) -> None:
    queue.populate(topic="T1")
    queue.ok("POST", "/topics", topic_name="T2")
    for parameters in ({"topic": "T3", "consumer_id": "C1"}, {"topic": "T2", "consumer_id": "C1"}):
        failure = queue.ask("GET", "/size", **parameters).json()
        assert failure["code"] in ("TOPIC_UNKNOWN", "NOT_SUBSCRIBED")
        assert "POST /" in failure["advice"]
        assert "/v1" not in failure["advice"]
