"""Transactions over HTTP: all or nothing, and once under a key."""

from __future__ import annotations

import pytest

from tests.gateways.http.rig import Json
from tests.gateways.http.v1 import V1, v1, values_of

__all__ = ["v1"]


@pytest.fixture(autouse=True)
def _topics(v1: V1) -> None:
    v1.subscribe("orders", "kitchen")
    v1.subscribe("orders", "cooks", sharing={})
    v1.ok("PUT", "/topics/bills", {"retain_ms": 3_600_000}, 201)
    v1.store("orders", "a", "b")


def bills(v1: V1) -> list[str]:
    return values_of(v1.ok("GET", "/topics/bills/messages"))


def ack(**more: object) -> Json:
    return {"topic": "orders", "subscriber": "kitchen", "upto": 1, **more}


def test_acks_settles_and_puts_happen_together(v1: V1) -> None:
    path = "/topics/orders/subscriptions/cooks"
    token = v1.ok("POST", f"{path}/take", {"member": "m", "number": 1, "count_max": 2})["token"]
    settle = {"topic": "orders", "subscriber": "cooks", "token": token, "done": [0], "returned": [1]}
    puts = [
        {"topic": "bills", "value": 1},
        {"topic": "log", "value": "x", "create": True},
        {"topic": "bills", "value": {"n": 2}, "key": "k", "headers": {"h": "v"}},
        {"topic": "bills", "value": 3, "ttl_ms": 3_600_000},
        {"topic": "bills", "value_base64": "aGk="},
    ]
    reply = v1.ok("POST", "/transactions", {"acks": [ack()], "settles": [settle], "puts": puts})
    assert [(put["topic"], put["offset"]) for put in reply["puts"]] == [
        ("bills", 0),
        ("log", 0),
        ("bills", 1),
        ("bills", 2),
        ("bills", 3),
    ]
    assert bills(v1) == ["1", '{"n":2}', "3", "hi"]
    assert v1.ok("GET", "/topics/orders/subscriptions/kitchen")["acked"] == 1
    again = v1.ok("POST", f"{path}/take", {"member": "m", "number": 2, "count_max": 2})
    assert [task["offset"] for task in again["tasks"]] == [1]


def test_any_part_that_is_refused_refuses_all_of_it(v1: V1) -> None:
    put = {"topic": "bills", "value": 1}
    lost = {"topic": "orders", "subscriber": "cooks", "token": 9, "done": [0]}
    for code, body in (
        ("TOPIC_UNKNOWN", {"puts": [put, {"topic": "none", "value": 1}], "acks": [ack()]}),
        ("OFFSET_OUT_OF_RANGE", {"puts": [put], "acks": [ack(upto=9)]}),
        ("LEASE_LOST", {"puts": [put], "settles": [lost], "acks": [ack()]}),
        ("NOT_SUBSCRIBED", {"puts": [put], "acks": [ack(subscriber="nobody")]}),
        ("KIND_MISMATCH", {"puts": [put], "acks": [ack(subscriber="cooks")]}),
        ("MALFORMED", {"puts": [put], "acks": [ack(), ack()]}),
        ("MALFORMED", {"puts": [put, {"topic": "bills"}]}),
        ("UNSUPPORTED", {"puts": [put], "acks": [ack(topic="#", epoch=1)]}),
    ):
        assert v1.refused("POST", "/transactions", body) == code
    assert bills(v1) == []
    assert v1.ok("GET", "/topics/orders/subscriptions/kitchen")["acked"] == 0


def test_a_transaction_repeated_under_its_key_happens_once(v1: V1) -> None:
    opened = v1.ok("POST", "/topics/orders/subscriptions/kitchen/open")
    key = {"idempotency-key": "k"}
    identity = {"epoch": opened["epoch"], "topic_id": opened["topic_id"]}
    body: Json = {"acks": [ack(**identity)], "puts": [{"topic": "bills", "value": 1}]}
    first = v1.ok("POST", "/transactions", body, headers=key)
    assert v1.ok("POST", "/transactions", body, headers=key) == first
    assert bills(v1) == ["1"]
    for name in identity:
        less = {**body, "acks": [{key: value for key, value in body["acks"][0].items() if key != name}]}
        assert v1.refused("POST", "/transactions", less, headers=key) == "MALFORMED"


def test_with_the_topics_id_it_is_recognised_when_the_topic_is_gone(v1: V1) -> None:
    opened = v1.ok("POST", "/topics/orders/subscriptions/kitchen/open")
    key = {"idempotency-key": "k"}
    body = {"acks": [ack(epoch=opened["epoch"], topic_id=opened["topic_id"])], "puts": [{"topic": "bills", "value": 1}]}
    first = v1.ok("POST", "/transactions", body, headers=key)
    v1.ok("DELETE", "/topics/orders", status=204)
    assert v1.ok("POST", "/transactions", body, headers=key) == first


def test_who_lost_the_subscription_is_refused_whole(v1: V1) -> None:
    former, _ = (v1.ok("POST", "/topics/orders/subscriptions/kitchen/open")["epoch"] for _ in range(2))
    body = {"acks": [ack(epoch=former)], "puts": [{"topic": "bills", "value": 1}]}
    assert v1.refused("POST", "/transactions", body) == "SUBSCRIPTION_FENCED"
    assert bills(v1) == []


def test_without_an_epoch_the_gateway_takes_the_subscription_back(v1: V1) -> None:
    body = {"acks": [ack()], "puts": [{"topic": "bills", "value": 1}]}
    v1.ok("POST", "/transactions", body)
    v1.ok("POST", "/topics/orders/subscriptions/kitchen/open")
    v1.ok("POST", "/transactions", {**body, "acks": [ack(upto=2)]})
    assert bills(v1) == ["1", "1"]
    v1.ok("POST", "/topics/orders/subscriptions/kitchen/seek", {"to": "new"})
    assert v1.refused("POST", "/transactions", body) == "SOUGHT"
    v1.ok("POST", "/transactions", body)


def test_an_empty_transaction_is_harmless(v1: V1) -> None:
    assert v1.ok("POST", "/transactions", {}) == {"puts": []}
