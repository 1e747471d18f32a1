"""Topics and subscriptions over HTTP."""

from __future__ import annotations

from urllib.parse import quote

from tests.gateways.http.v1 import V1, v1

__all__ = ["v1"]


def test_a_topic_is_made_once_and_looked_at(v1: V1) -> None:
    made = v1.ok("PUT", "/topics/orders", {"retain_ms": 60_000}, 201)
    assert made["created"] is True
    again = v1.ok("PUT", "/topics/orders", {"retain_ms": 60_000}, 200)
    assert (again["created"], again["topic_id"]) == (False, made["topic_id"])
    shown = v1.ok("GET", "/topics/orders")
    assert (shown["retain_ms"], shown["stays"], shown["end_offset"]) == (60_000, True, 0)
    assert v1.refused("PUT", "/topics/orders") == "TOPIC_EXISTS"
    v1.ok("PUT", "/topics/orders", {"alter": True})
    assert v1.ok("GET", "/topics/orders")["retain_ms"] == 0


def test_a_topic_that_is_deleted_is_gone(v1: V1) -> None:
    v1.ok("PUT", "/topics/orders", status=201)
    v1.ok("DELETE", "/topics/orders", status=204)
    assert v1.refused("GET", "/topics/orders") == "TOPIC_UNKNOWN"
    assert v1.refused("DELETE", "/topics/orders") == "TOPIC_UNKNOWN"


def test_topics_are_listed_page_by_page(v1: V1) -> None:
    for name in ("a", "b", "c"):
        v1.ok("PUT", f"/topics/{name}", status=201)
    first = v1.ok("GET", "/topics", params={"limit": 2})
    assert [each["topic"] for each in first["topics"]] == ["a", "b"]
    rest = v1.ok("GET", "/topics", params={"limit": 2, "after": first["after"]})
    assert ([each["topic"] for each in rest["topics"]], rest["after"]) == (["c"], "")


def test_a_name_may_hold_whatever_a_topic_may(v1: V1) -> None:
    for name in ("a/b", "ä %", "?x=1", "\ue000", "a" * 255, "..."):
        path = f"/topics/{quote(name, safe='')}"
        v1.ok("PUT", path, status=201)
        assert v1.ok("GET", path)["topic"] == name
        v1.ok("PUT", f"{path}/subscriptions/{quote(name, safe='')}", status=201)
        assert v1.ok("GET", f"{path}/subscriptions/{quote(name, safe='')}")["subscriber"] == name


def test_a_subscription_is_made_looked_at_and_ended(v1: V1) -> None:
    path = "/topics/orders/subscriptions/kitchen"
    made = v1.ok("PUT", path, {"start": "earliest"}, 201)
    assert (made["created"], made["acked"]) == (True, 0)
    assert v1.ok("PUT", path, {"start": "earliest"}, 200)["created"] is False
    v1.store("orders", "a", "b")
    shown = v1.ok("GET", path)
    assert (shown["acked"], shown["end_offset"], shown["lag"]) == (0, 2, 2)
    assert v1.ok("GET", "/topics/orders/subscriptions")["subscriptions"] == [shown]
    v1.ok("DELETE", path, status=204)
    assert v1.refused("GET", path) == "TOPIC_UNKNOWN"


def test_a_subscription_starts_where_it_is_told_to(v1: V1) -> None:
    v1.ok("PUT", "/topics/orders", {"retain_ms": 60_000}, 201)
    v1.store("orders", "a", "b", "c")
    starts = {"new": 3, "earliest": 0, 1: 1}
    assert [v1.subscribe("orders", f"s{start}", start=start)["acked"] for start in starts] == list(starts.values())
    assert v1.refused("PUT", "/topics/orders/subscriptions/s", {"start": 4}) == "OFFSET_OUT_OF_RANGE"
    assert v1.refused("PUT", "/topics/orders/subscriptions/s", {"start": "late"}) == "MALFORMED"


def test_a_shared_subscription_tells_how_it_is_shared(v1: V1) -> None:
    sharing = {"lease_ms": 1000, "tries_max": 3, "dead_topic": "dead", "key_order": True}
    v1.subscribe("orders", "cooks", sharing=sharing)
    shown = v1.ok("GET", "/topics/orders/subscriptions/cooks")
    assert (shown["sharing"], shown["leased"], shown["members"]) == (sharing, 0, 0)
    assert v1.refused("PUT", "/topics/orders/subscriptions/cooks") == "SUBSCRIPTION_EXISTS"


def test_a_pattern_is_subscribed_to_listed_moved_and_ended(v1: V1) -> None:
    pattern = quote("orders.*")
    path = f"/topics/{pattern}/subscriptions/audit"
    assert v1.ok("PUT", path, {"start": "earliest"}, 201)["topic_id"] == 0
    v1.ok("PUT", "/topics/orders.eu", status=201)
    v1.store("orders.eu", "a")
    shown = v1.ok("GET", path)
    assert (shown["topic"], shown["topics"], shown["lag"]) == ("orders.*", 1, 1)
    assert v1.ok("GET", f"/topics/{pattern}/subscriptions")["subscriptions"] == [shown]
    assert v1.ok("GET", "/topics/orders.eu/subscriptions")["subscriptions"][0]["pattern"] == "orders.*"
    assert v1.ok("POST", f"{path}/open")["epoch"] > 0
    v1.ok("POST", f"{path}/seek", {"to": "new"})
    assert v1.ok("GET", path)["lag"] == 0
    v1.ok("DELETE", path, status=204)
    assert v1.refused("GET", path) == "NOT_SUBSCRIBED"


def test_what_a_pattern_can_not_do_is_said(v1: V1) -> None:
    path = f"/topics/{quote('#')}/subscriptions/audit"
    assert v1.refused("PUT", path, {"start": 3}) == "UNSUPPORTED"
    assert v1.refused("PUT", path, {"sharing": {}}) == "UNSUPPORTED"
    v1.ok("PUT", path, status=201)
    for method, more, body in (
        ("GET", "messages", None),
        ("GET", "events", None),
        ("POST", "ack", {"upto": 0}),
        ("POST", "take", {"member": "m", "number": 1}),
        ("POST", "seek", {"to": 3}),
    ):
        assert v1.refused(method, f"{path}/{more}", body) == "UNSUPPORTED"
    assert v1.refused("GET", f"/topics/{quote('#')}/messages") == "UNSUPPORTED"
    assert v1.refused("POST", f"/topics/{quote('#')}/messages", {"value": 1}) == "NAME_INVALID"
