"""Shared subscriptions over HTTP: a repeated take returns the same lease; acks, nacks and renewals of leases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateways.http.rig import Json
from tests.gateways.http.v1 import V1, v1

__all__ = ["v1"]

PATH = "/topics/orders/subscriptions/cooks"


@pytest.fixture(autouse=True)
def _subscription(v1: V1) -> None:
    v1.subscribe("orders", "cooks", sharing={"lease_ms": 60_000, "tries_max": 3, "dead_topic": "dead"})


def take(v1: V1, number: int, member: str = "m", **more: Any) -> Json:
    return v1.ok("POST", f"{PATH}/take", {"member": member, "number": number, "count_max": 10, **more})


def values(taken: Json) -> list[str]:
    return [task["value"] for task in taken["tasks"]]


def test_a_repeated_take_brings_the_same_lease(v1: V1) -> None:
    v1.store("orders", "a", "b", "c")
    first = take(v1, 1, count_max=2)
    assert values(first) == ["a", "b"]
    assert (first["tries_max"], first["dead_topic"], first["tasks"][0]["tries"]) == (3, "dead", 1)
    again = take(v1, 1, count_max=2)
    assert (again["token"], values(again)) == (first["token"], ["a", "b"])
    assert values(take(v1, 2)) == ["c"]
    assert take(v1, 3)["token"] == 0


def test_what_is_acked_never_comes_again_and_what_is_nacked_does(v1: V1) -> None:
    v1.store("orders", "a", "b", "c")
    token = take(v1, 1)["token"]
    assert v1.ok("POST", f"{PATH}/ack", {"token": token, "offsets": [0, 2]})["lost"] == []
    assert v1.ok("POST", f"{PATH}/nack", {"token": token, "offsets": [1]})["lost"] == []
    again = take(v1, 2, "other")
    assert (values(again), again["tasks"][0]["tries"]) == (["b"], 2)
    assert v1.ok("POST", f"{PATH}/ack", {"token": token, "offsets": [1]})["lost"] == [1]


def test_a_nack_may_wait(v1: V1) -> None:
    v1.store("orders", "a")
    token = take(v1, 1)["token"]
    v1.ok("POST", f"{PATH}/nack", {"token": token, "offsets": [0], "delay_ms": 3_600_000})
    assert take(v1, 2)["tasks"] == []


def test_a_take_waits_for_a_message(v1: V1) -> None:
    waiting = v1.client.post(f"/v1{PATH}/take", json={"member": "m", "number": 1, "wait_ms": 30_000})
    taken, _ = v1.together(waiting, v1.client.post("/v1/topics/orders/messages", content=b"late"))
    assert values(taken.json()) == ["late"]


def test_leases_are_extended(v1: V1) -> None:
    v1.store("orders", "a")
    token = take(v1, 1)["token"]
    assert v1.ok("POST", f"{PATH}/extend", {"tokens": [token, 99]})["lost"] == [99]


def test_a_settle_repeated_under_its_key_is_answered_alike(v1: V1) -> None:
    v1.store("orders", "a")
    taken = take(v1, 1)
    body = {"token": taken["token"], "offsets": [0]}
    key = {"idempotency-key": "k"}
    assert v1.refused("POST", f"{PATH}/ack", body, headers=key) == "MALFORMED"
    body["epoch"] = taken["epoch"]
    assert v1.refused("POST", f"{PATH}/ack", body, headers=key) == "MALFORMED"
    body["topic_id"] = taken["topic_id"]
    first = v1.ok("POST", f"{PATH}/ack", body, headers=key)
    assert (first["lost"], v1.ok("POST", f"{PATH}/ack", body, headers=key)) == ([], first)


def test_a_seek_ends_leases_and_members_without_an_epoch_go_on(v1: V1) -> None:
    v1.ok("PUT", "/topics/orders", {"retain_ms": 3_600_000})
    v1.store("orders", "a", "b")
    before = take(v1, 1)
    v1.ok("POST", f"{PATH}/seek", {"to": 1})
    assert v1.refused("POST", f"{PATH}/take", {"member": "m", "number": 2, "epoch": before["epoch"]}) == "SOUGHT"
    assert values(take(v1, 2)) == ["b"]
    assert v1.ok("POST", f"{PATH}/ack", {"token": before["token"], "offsets": [1]})["lost"] == [1]


def test_each_kind_of_subscription_is_consumed_in_its_own_way(v1: V1) -> None:
    v1.subscribe("orders", "kitchen")
    v1.store("orders", "a")
    epoch = v1.ok("POST", "/topics/orders/subscriptions/kitchen/open")["epoch"]
    for path, body in (
        ("take", {"member": "m", "number": 1}),
        ("nack", {"token": 1, "offsets": [0]}),
        ("extend", {"tokens": [1]}),
        ("ack", {"token": 1, "offsets": [0]}),
    ):
        assert v1.refused("POST", f"/topics/orders/subscriptions/kitchen/{path}", body) == "KIND_MISMATCH"
    # A take of a subscription that is not shared has not taken it over.
    assert v1.got("orders", "kitchen", epoch=epoch)["epoch"] == epoch
    assert v1.refused("GET", f"{PATH}/messages") == "KIND_MISMATCH"
    assert v1.refused("POST", f"{PATH}/ack", {"upto": 1}) == "KIND_MISMATCH"
    assert v1.refused("GET", f"{PATH}/events") == "KIND_MISMATCH"


@pytest.mark.parametrize(
    "body", [{}, {"upto": 1, "token": 1}, {"token": 1}, {"offsets": [1]}, {"token": 1, "offsets": []}, {"upto": -1}]
)
def test_an_ack_that_says_nothing_clear_is_refused(v1: V1, body: Json) -> None:
    assert v1.refused("POST", f"{PATH}/ack", body) == "MALFORMED"


def test_an_epoch_is_that_of_the_topic_that_has_the_name_now(v1: V1) -> None:
    for value in ("a", "b"):
        v1.ok("DELETE", "/topics/orders", status=204)
        v1.subscribe("orders", "cooks", sharing={})
        v1.subscribe("orders", "kitchen")
        v1.store("orders", value)
        shared = v1.ok("POST", f"{PATH}/open")
        taken = v1.ok("POST", f"{PATH}/take", {"member": "m", "number": 1, "epoch": shared["epoch"]})
        assert (values(taken), taken["topic_id"]) == ([value], shared["topic_id"])
        own = v1.ok("POST", "/topics/orders/subscriptions/kitchen/open")
        ack = {"topic": "orders", "subscriber": "kitchen", "upto": 1, "epoch": own["epoch"]}
        v1.ok("POST", "/transactions", {"acks": [ack]})
    v1.ok("DELETE", "/topics/orders", status=204)
    v1.subscribe("orders", "cooks", sharing={})
    late = {"token": taken["token"], "offsets": [0], "topic_id": taken["topic_id"]}
    assert v1.refused("POST", f"{PATH}/ack", late) == "TOPIC_GONE"


def test_an_upto_takes_no_key_and_no_number(v1: V1) -> None:
    v1.subscribe("orders", "kitchen")
    path = "/topics/orders/subscriptions/kitchen/ack"
    for headers in ({"idempotency-key": "k"}, {"oncemq-session": "s", "oncemq-epoch": "1", "oncemq-number": "1"}):
        assert v1.refused("POST", path, {"upto": 0}, headers=headers) == "MALFORMED"
    v1.ok("POST", path, {"upto": 0})
