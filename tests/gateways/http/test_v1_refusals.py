"""Invalid requests get an error from the table: odd names, numbers and bodies, and too many requests at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from oncemq.gateways.http.docs.openapi import refusals_of
from oncemq.gateways.http.endpoints import ENDPOINTS, make_app
from oncemq.gateways.http.gateway import with_origins
from oncemq.gateways.http.settings import GatewaySettings
from tests.gateways.http.v1 import V1, Visit, code_of

NAMES = ["", "\0", "a\0b", "*", "#", "a.*", "x" * 256, "é" * 128, "\x7f", "\n", "\ufffe", "/", "%"]
QUERIES = [
    {"limit": 0},
    {"limit": "x"},
    {"limit": 10**30},
    {"position": -1},
    {"position": 2**63},
    {"wait_ms": 60_001},
    {"epoch": 2**63 - 1},
    {"epoch": -1},
    {"ack": 2**63 - 1},
    {"nothing": 1},
    {"bytes_max": 0},
    {"position": ""},
    {"ttl_ms": 10**15},
    {"due_ms": 2**63 - 1},
    {"delay_ms": -1},
    {"create": "maybe"},
    {"after": "\0"},
    {"topic_id": 0},
]
LARGE = 2**63 - 1
BODIES: list[bytes | dict[str, Any]] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b'"\\ud800"',
    b"{" * 100_000,
    b'{"upto": 1e400}',
    {"upto": 2**64},
    {"to": LARGE},
    {"time": LARGE},
    {"time": "9999-12-31T23:59:59Z"},
    {"member": "\0", "number": 1},
    {"member": "m", "number": LARGE},
    {"session": ""},
    {"session": "\0"},
    {"session": "s", "epoch": LARGE},
    {"retain_ms": LARGE, "quota_bytes": 1},
    {"retain_ms": -1},
    {"overflow": "maybe"},
    {"start": LARGE},
    {"sharing": {"tries_max": 1}},
    {"sharing": {"dead_topic": "*", "tries_max": 1}},
    {"token": LARGE, "offsets": [LARGE]},
    {"tokens": [LARGE]},
    {"puts": [{"topic": "\0", "value": 1, "create": True}]},
    {"puts": [{"topic": "o", "value": 1, "due_ms": LARGE}]},
    {"acks": [{"topic": "o", "subscriber": "\n", "upto": LARGE, "epoch": 1}]},
    {"unknown": 1},
]
DECLARED = [endpoint for endpoint in ENDPOINTS if endpoint.path.startswith("/v1/")]


@pytest.fixture(scope="module")
def v1() -> Iterator[V1]:
    gateway = V1()
    gateway.subscribe("o", "s")
    gateway.subscribe("o", "c", sharing={})
    yield gateway
    gateway.close()


def check(v1: V1, endpoint: Any, path: str, **given: Any) -> None:
    response = v1.run(v1.client.request(endpoint.method, path, **given))
    if response.status_code not in {reply.status for reply in endpoint.replies}:
        assert code_of(response) in {kind.code for kind in refusals_of(endpoint)}, f"{path} {given} {response.text}"


@pytest.mark.parametrize("endpoint", DECLARED, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
def test_odd_requests_end_in_the_table(v1: V1, endpoint: Any) -> None:
    if endpoint.path.endswith("/events"):
        return
    for place in ("{topic}", "{subscriber}", "{session}"):
        for name in NAMES if place in endpoint.path else []:
            path = endpoint.path.replace(place, quote(name, safe=""))
            path = path.replace("{topic}", "o").replace("{subscriber}", "s").replace("{session}", "x")
            if not path.endswith("/"):
                check(v1, endpoint, path, **({} if endpoint.body is None else {"json": {}}))
    for subscriber in ("s", "c") if "{subscriber}" in endpoint.path else ("s",):
        path = endpoint.path.replace("{topic}", "o").replace("{subscriber}", subscriber).replace("{session}", "x")
        if endpoint.method == "DELETE":
            continue
        for query in QUERIES:
            check(v1, endpoint, path, params=query)
        for body in BODIES if endpoint.body is not None else [b"{}"]:
            content = body if isinstance(body, bytes) else json.dumps(body)
            check(v1, endpoint, path, content=content, headers={"content-type": "application/json"})


def test_a_path_or_a_method_that_is_not_there_is_said_to_be(v1: V1) -> None:
    assert v1.refused("GET", "/nothing") == "PATH_UNKNOWN"
    response = v1.ask("PATCH", "/topics/o")
    assert (code_of(response), response.headers["allow"]) == ("METHOD_UNKNOWN", "DELETE, GET, PUT")
    assert v1.refused("GET", "/topics/%FF") == "MALFORMED"
    assert v1.refused("GET", "/topics?after=%FF") == "MALFORMED"


def test_a_body_of_another_type_is_refused(v1: V1) -> None:
    response = v1.ask("POST", "/sessions", content=b"session=x", headers={"content-type": "text/plain"})
    assert code_of(response) == "MEDIA_UNSUPPORTED"
    assert v1.refused("GET", "/topics", content=b"x") == "MALFORMED"


def test_a_page_of_another_origin_is_refused(v1: V1) -> None:
    assert v1.refused("GET", "/topics", headers={"origin": "https://elsewhere.example"}) == "ORIGIN_REFUSED"
    assert v1.refused("GET", "/topics", headers={"host": "rebound.example"}) == "ORIGIN_REFUSED"


def test_a_page_of_an_origin_that_is_allowed_is_answered_as_browsers_want_it() -> None:
    v1 = V1(origins=("https://shop.example",))
    app = v1.app
    v1.client._transport.app = with_origins(app, app._settings)  # type: ignore[attr-defined]
    try:
        preflight = {
            "origin": "https://shop.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "idempotency-key",
        }
        assert v1.ask("OPTIONS", "/topics/o/messages", headers=preflight).status_code == 200
        reply = v1.ask("GET", "/topics", headers={"origin": "https://shop.example"})
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, "https://shop.example")
        assert v1.refused("GET", "/topics", headers={"origin": "https://elsewhere.example"}) == "ORIGIN_REFUSED"
    finally:
        v1.close()


def test_an_app_that_allows_no_origin_has_nothing_in_front() -> None:
    settings = GatewaySettings(brokers=("memory:none",))
    app = make_app(settings)
    assert with_origins(app, settings) is app


def test_more_long_polls_than_are_taken_on_are_refused_and_others_are_not() -> None:
    v1 = V1(connections_max=2)
    v1.subscribe("o", "s")

    async def three() -> None:
        path = "/v1/topics/o/subscriptions/s/events"
        async with Visit(v1, path) as first:
            await first.until(lambda text: "next offset" in text)
            second, third = (Visit(v1, "/v1/topics/o/messages", "position=new&wait_ms=30000") for _ in range(2))
            async with second, third:
                await third.serving
                assert (third.status, "OVERLOADED" in third.text) == (503, True)
                # They keep nobody out who does not wait.
                assert (await v1.client.get("/v1/topics")).status_code == 200
        assert v1.app.admission.taken == 0

    v1.run(three())
    v1.close()
