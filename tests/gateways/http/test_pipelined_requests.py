"""Requests that a client sends without waiting for its responses share few turns, and large responses are encoded one
at a time: clients that wait for their responses go ahead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any

import pytest

from oncemq.gateways.http.endpoints import make_app
from oncemq.gateways.http.framework import app, turns
from oncemq.gateways.http.framework.memory import CONNECTION, IS_PIPELINED, GatewayMemory, RequestMemory
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.gateways.http.v1 import events
from oncemq.gateways.link import Link
from tests.gateways.http.served import eventually, run, serving

_FIRST = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
_LIST = b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
_WAIT = b"GET /v1/topics/t/messages?position=new&wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"


class _HeldQueries:
    """Queries that the broker answers when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.most = 0
        self.may_end = asyncio.Event()
        query = Link.query

        async def hold(link: Link, *arguments: Any) -> Any:
            self.count += 1
            self.most = max(self.most, self.count)
            await self.may_end.wait()
            self.count -= 1
            return await query(link, *arguments)

        monkeypatch.setattr(Link, "query", hold)


def test_a_client_that_waits_for_its_responses_goes_ahead_of_pipelined_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "_PIPELINED_MAX", 2)
    monkeypatch.setattr(turns, "_TURN_S", 60.0)

    async def visit() -> None:
        async with serving() as served:
            queries = _HeldQueries(monkeypatch)
            hasty = [await served.peer(_FIRST + 3 * _LIST) for _ in range(8)]
            assert [(await peer.response())[0] for peer in hasty] == [404] * 8
            await eventually(lambda: queries.count == 2)
            patient = asyncio.ensure_future(served.status())
            await eventually(lambda: queries.count == 3)
            queries.may_end.set()
            assert await patient == 200
            for peer in hasty:
                assert [(await peer.response())[0] for _ in range(3)] == [200] * 3
            assert queries.most == 3

    run(visit())


def test_few_pipelined_requests_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_PIPELINED_MAX", 1)
    monkeypatch.setattr(app, "_PIPELINED_WAITING_MAX", 1)
    monkeypatch.setattr(turns, "_TURN_S", 60.0)

    async def visit() -> None:
        async with serving() as served:
            queries = _HeldQueries(monkeypatch)
            hasty = []
            for _ in range(4):
                hasty.append(await served.peer(_FIRST + _LIST))
                assert (await hasty[-1].response())[0] == 404
            # The first one has the turn, and another one waits for it.
            assert [(await peer.response())[0] for peer in hasty[2:]] == [503] * 2
            queries.may_end.set()
            assert [(await peer.response())[0] for peer in hasty[:2]] == [200] * 2

    run(visit())


def test_a_connection_that_has_pipelined_requests_and_then_waits_is_served_like_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "_PIPELINED_MAX", 1)
    monkeypatch.setattr(turns, "_TURN_S", 60.0)

    async def visit() -> None:
        async with serving() as served:
            reformed = await served.peer(5 * _FIRST)
            assert [(await reformed.response())[0] for _ in range(5)] == [404] * 5
            queries = _HeldQueries(monkeypatch)
            await served.peer(_FIRST + _LIST)
            await eventually(lambda: queries.count == 1)
            reformed.write(_LIST)
            await eventually(lambda: queries.count == 2)
            queries.may_end.set()
            assert (await reformed.response())[0] == 200

    run(visit())


def test_a_pipelined_request_that_waits_for_messages_keeps_no_other_one_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "_PIPELINED_MAX", 1)
    monkeypatch.setattr(turns, "_TURN_S", 0.01)

    async def visit() -> None:
        async with serving() as served:
            assert (await served.client.put("/v1/topics/t")).is_success
            waiting = await served.peer(_FIRST + _WAIT)
            await eventually(lambda: served.gateway._server._app.admission.taken)
            other = await served.peer(_FIRST + _LIST)
            assert [(await other.response())[0] for _ in range(2)] == [404, 200]
            waiting.close()

    run(visit())


@pytest.mark.parametrize("behind", [1, 3])
def test_a_stream_ends_with_its_client_even_if_other_requests_wait_behind_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, behind: int
) -> None:
    # Bytes that are not parsed stop the gateway from reading on: then it notices the end when it sends.
    monkeypatch.setattr(events, "HEARTBEAT_MS", 200)
    path = b"/v1/topics/t/subscriptions/s/events?ack=sent"

    async def visit() -> None:
        async with serving() as served:
            assert (await served.client.put("/v1/topics/t/subscriptions/s")).is_success
            stream = await served.peer(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path + behind * _LIST)
            await stream.read_until(b": next offset 0\n\n")
            stream.close()
            await stream.wait_closed()
            for _ in range(3):
                assert (await served.client.post("/v1/topics/t/messages", json={"value": 1})).status_code == 201
            await eventually(lambda: not served.gateway._server._app.admission.taken)
            subscription = await served.client.get("/v1/topics/t/subscriptions/s")
            assert subscription.json()["acked"] == 0

    run(visit())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class _UnreadConnection:
    def __init__(self) -> None:
        self.is_read = asyncio.Event()

    def is_gone(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    async def drain(self) -> None:
        await self.is_read.wait()


def test_nothing_is_fetched_for_a_client_that_has_not_read_the_responses_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def visit() -> None:
        asked = make_app(GatewaySettings(brokers=("memory:unread",)))
        answered: list[int] = []

        async def answer(*_: object) -> None:
            answered.append(1)

        monkeypatch.setattr(asked, "_answer", answer)
        connection = _UnreadConnection()
        scope = {"type": "http", "extensions": {CONNECTION: connection, IS_PIPELINED: True}}
        serving = asyncio.ensure_future(asked(scope, _receive_nothing, _send_nothing))
        await asyncio.sleep(0)
        assert not answered
        connection.is_read.set()
        await serving
        assert answered

    asyncio.run(visit())


async def _receive_nothing() -> MutableMapping[str, Any]:
    raise AssertionError


async def _send_nothing(_: MutableMapping[str, Any]) -> None:
    raise AssertionError


def test_large_responses_are_fetched_and_encoded_one_after_the_other() -> None:
    async def visit() -> None:
        gateway_memory = GatewayMemory(GatewaySettings(brokers=()))
        first, second, third = (RequestMemory(gateway_memory, {}) for _ in range(3))
        await first.reserve_reply(1_000_000)
        later = [asyncio.ensure_future(each.reserve_reply(1_000_000)) for each in (second, third)]
        await asyncio.sleep(0)
        assert [each.done() for each in later] == [False, False]
        # It is encoded. That its client has not read it yet keeps no other one waiting.
        first.note_reply(900_000)
        await later[0]
        assert not later[1].done()
        second.release()
        await later[1]
        third.release()
        first.release()
        assert not gateway_memory.replies.used_bytes

    asyncio.run(visit())
