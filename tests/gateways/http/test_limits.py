"""Limits that protect other clients: bodies that never end, unbounded headers, foreign host names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncemq.gateways.http.framework import request
from oncemq.gateways.http.framework.memory import CONNECTION
from oncemq.gateways.http.framework.origin_check import OriginCheck
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.protocol import errors
from tests.gateways.http.v1 import V1, v1

__all__ = ["v1"]


def _half_sent(v1: V1) -> tuple[asyncio.Task[None], list[Any]]:
    """A request of which a part never arrives."""
    sent: list[Any] = []
    came = [{"type": "http.request", "body": b"a", "more_body": True}]

    async def receive() -> Any:
        if not came:
            await asyncio.sleep(3_600)
        return came.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    path = b"/v1/topics/t/messages"
    scope = {
        "type": "http",
        "method": "POST",
        "path": path.decode(),
        "raw_path": path,
        "query_string": b"",
        "headers": [(b"content-length", b"10")],
    }
    return asyncio.ensure_future(v1.app(scope, receive, send)), sent


def test_who_sends_half_a_body_keeps_nobody_out_and_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    v1 = V1(connections_max=2)

    async def visiting() -> None:
        slow = [_half_sent(v1)[0] for _ in range(5)]
        await asyncio.sleep(0)
        assert (await v1.client.get("/v1/topics")).status_code == 200
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        monkeypatch.setattr(request, "BODY_S", 0.01)
        serving, sent = _half_sent(v1)
        await serving
        assert (sent[0]["status"], b'"MALFORMED"' in sent[1]["body"]) == (400, True)
        assert (b"connection", b"close") in sent[0]["headers"]
        assert v1.app.admission.taken == 0

    v1.run(visiting())
    v1.close()


def test_a_gateway_that_others_reach_has_addresses_and_the_names_that_it_was_told() -> None:
    def check(name: str, **settings: Any) -> None:
        guard = OriginCheck(GatewaySettings(brokers=(), http="0.0.0.0:8002", **settings))
        guard.check({b"host": name.encode()}, b"/v1/topics")

    for name in ("10.1.2.3:8002", "[fe80::1]:8002", "localhost", "127.0.0.1:8002", ""):
        check(name)
    check("shop.example:8002", hosts=("shop.example",))
    for name in ("rebound.example:8002", "10.1.2.3.rebound.example", "localhost.rebound.example"):
        with pytest.raises(errors.OriginRefused):
            check(name)


def test_headers_of_a_message_have_a_bound(v1: V1) -> None:
    v1.subscribe("t", "s")
    large = {"h": "x" * (64 * 1024)}
    assert v1.refused("POST", "/topics/t/messages", {"value": 1, "headers": large}) == "TOO_LARGE"
    body = {"puts": [{"topic": "t", "value": 1, "headers": large}]}
    assert v1.refused("POST", "/transactions", body) == "TOO_LARGE"
    assert v1.got("t", "s")["messages"] == []


def test_topic_ids_are_numbers_that_no_reader_of_json_rounds(v1: V1) -> None:
    assert v1.subscribe("t", "s")["topic_id"] < 2**53


class _Connection:
    """A client's connection, closed or open."""

    def __init__(self, is_closed: bool) -> None:
        self._is_closed = is_closed

    def is_gone(self) -> bool:
        return self._is_closed

    def abort(self) -> None:
        pass


def test_a_response_to_a_connection_that_was_just_closed_is_dropped(v1: V1) -> None:
    """uvloop raises RuntimeError between the end of a connection and the news of it."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            raise RuntimeError("the handler is closed")

    def scope(is_closed: bool) -> dict[str, Any]:
        extensions = {CONNECTION: _Connection(is_closed)}
        path = "/v1/topics"
        about = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "extensions": extensions}
        return {**about, "query_string": b"", "headers": [(b"host", b"127.0.0.1:8002")]}

    v1.run(v1.app(scope(is_closed=True), receive, send))
    with pytest.raises(RuntimeError):
        v1.run(v1.app(scope(is_closed=False), receive, send))
