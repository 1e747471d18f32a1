"""Schemas of topics over HTTP: versions, and values that do not match."""

from __future__ import annotations

import json

from tests.gateways.http.v1 import V1, v1

__all__ = ["v1"]

FIELDS = "id: int64 not null, name: string"
PATH = "/topics/orders/schemas"


def _typed(v1: V1) -> None:
    v1.ok("PUT", "/topics/orders", {"retain_ms": 60_000}, 201)
    assert v1.ok("PUT", PATH, {"definition": FIELDS}, 201)["version"] == 1


def test_versions_are_put_and_listed(v1: V1) -> None:
    v1.ok("PUT", "/topics/orders", status=201)
    assert v1.ok("GET", PATH)["newest"] == 0
    v1.ok("PUT", PATH, {"definition": FIELDS, "compatibility": "full"}, 201)
    assert v1.ok("PUT", PATH, {"definition": FIELDS}, 200)["created"] is False
    assert v1.ok("PUT", PATH, {"definition": FIELDS + ", tags: list<string>"}, 201)["version"] == 2
    found = v1.ok("GET", PATH)
    assert (found["newest"], found["compatibility"], found["check"]) == (2, "full", "client")
    assert [each["version"] for each in found["versions"]] == [1, 2]
    assert found["versions"][0]["fields"][0] == {"name": "id", "type": "int64", "nullable": False}
    assert [each["version"] for each in v1.ok("GET", PATH, params={"version": 2})["versions"]] == [2]
    assert v1.ok("PUT", PATH, {"check": "broker"}, 200)["version"] == 2
    assert v1.refused("GET", PATH, params={"version": 3}) == "SCHEMA_UNKNOWN"
    assert v1.refused("GET", "/topics/nowhere/schemas") == "TOPIC_UNKNOWN"


def test_a_change_is_checked_before_it_is_made(v1: V1) -> None:
    _typed(v1)
    found = v1.ok("POST", f"{PATH}/check", {"definition": "id: string"})
    assert found["problems"] == [
        "id: a reader expects string, and values are int64: new readers can't read old values (version 1)"
    ]
    assert v1.ok("POST", f"{PATH}/check", {"definition": "id: string", "compatibility": "none"})["problems"] == []
    assert v1.refused("PUT", PATH, {"definition": "id: string"}) == "SCHEMA_INCOMPATIBLE"
    assert v1.refused("PUT", PATH, {"definition": "id: int46"}) == "SCHEMA_INVALID"


def test_values_are_checked_in_every_way(v1: V1) -> None:
    _typed(v1)
    v1.ok("POST", "/topics/orders/messages", {"value": {"id": 1}}, 201)
    v1.ok("POST", "/topics/orders/messages", {"messages": [{"value": {"id": 2}}, {"value": '{"id": 3}'}]}, 201)
    v1.ok("POST", "/topics/orders/messages", {"value": {"id": 4}}, 201, headers={"Idempotency-Key": "k1"})
    v1.ok("POST", "/transactions", {"puts": [{"topic": "orders", "value": {"id": 5}}]})
    bad = [
        ("/topics/orders/messages", {"value": {"id": "x"}}, {}),
        ("/topics/orders/messages", {"messages": [{"value": {"id": 1}}, {"value": {}}]}, {}),
        ("/topics/orders/messages", {"value": {"idd": 1}}, {"Idempotency-Key": "k2"}),
        ("/transactions", {"puts": [{"topic": "orders", "value": "text"}]}, {}),
    ]
    for path, body, headers in bad:
        assert v1.refused("POST", path, body, headers=headers) == "SCHEMA_MISMATCH"
    stored = v1.ok("GET", "/topics/orders/messages", params={"position": 0})["messages"]
    assert [json.loads(each["value"])["id"] for each in stored] == [1, 2, 3, 4, 5]


def test_a_repeated_request_is_the_same_after_a_new_version(v1: V1) -> None:
    _typed(v1)
    key = {"Idempotency-Key": "order-1"}
    first = v1.ok("POST", "/topics/orders/messages", {"value": {"id": 1}}, 201, headers=key)
    v1.ok("PUT", PATH, {"definition": FIELDS + ", tags: list<string>"}, 201)
    assert v1.ok("POST", "/topics/orders/messages", {"value": {"id": 1}}, 201, headers=key) == first
    v1.ok("POST", "/topics/orders/messages", {"value": {"id": 2, "tags": ["new"]}}, 201)
