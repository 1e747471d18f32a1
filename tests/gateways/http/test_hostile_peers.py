"""Clients that send or read nothing, slowly or too much: memory stays limited, others are served, and the connection
ends."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oncemq.gateways.http import connections, gateway, server
from oncemq.gateways.http.connections import Connections
from oncemq.gateways.http.framework import byte_budget, memory, request
from oncemq.gateways.http.framework.logins import Logins
from oncemq.gateways.http.framework.memory import GatewayMemory
from oncemq.gateways.link import Link
from tests.gateways.http.served import Peer, Served, eventually, run, serving

_LINE = b"POST /v1/topics/t/messages?create=true HTTP/1.1\r\nHost: localhost\r\n"
_LARGE = 900_000
#: What reading all of it reserves.
_RESERVED = 2 * 8 * 2**20


def _memory_of(served: Served) -> GatewayMemory:
    memory: GatewayMemory = served.gateway._server._app._memory
    return memory


async def _upload(served: Served, value: bytes) -> int:
    return (await served.client.post("/v1/topics/t/messages?create=true", content=value)).status_code


async def _store_much(served: Served) -> None:
    """Store more than the buffers of a connection hold."""
    for name in ("s", "s2"):
        assert (await served.client.put(f"/v1/topics/t/subscriptions/{name}")).is_success
    for _ in range(9):
        assert await _upload(served, b"x" * _LARGE) == 201


async def _connected(served: Served) -> None:
    """Wait until the gateway has accepted all connections so far: a later one was answered."""
    assert await served.status() == 200


class _HeldPuts:
    """Puts that the broker gets when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = asyncio.Event()
        for name in ("put", "operate"):
            monkeypatch.setattr(Link, name, self._later(getattr(Link, name)))

    def _later(self, put: Any) -> Any:
        async def wait(*arguments: Any) -> Any:
            await self.may_end.wait()
            return await put(*arguments)

        return wait


def test_connections_without_a_request_make_way_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_IDLE_CONNECTIONS", 9)

    async def visit() -> None:
        async with serving(connections_max=1) as served:
            oldest = await served.peer()
            others = [await served.peer(b"GET /v1/topics HTTP/1.1\r\nHo") for _ in range(30)]
            await _connected(served)
            assert await oldest.until_closed() == b""
            assert await others[0].until_closed() == b""
            assert len(served.gateway._connections) <= 11

    run(visit())


def test_a_connection_is_refused_only_if_all_others_are_being_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_IDLE_CONNECTIONS", 2)

    async def visit() -> None:
        async with serving(connections_max=2) as served:
            assert (await served.client.put("/v1/topics/t")).is_success
            wait = b"GET /v1/topics/t/messages?position=new&wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            held = [await served.peer(wait) for _ in range(2)]
            await eventually(lambda: served.gateway._server._app.admission.taken == 2)
            # The number of long polls is limited below that of connections.
            assert (await (await served.peer(wait)).response())[0] == 503
            served.gateway._connections.count_max = 2
            while served.gateway._connections._evict():
                pass
            refused = await served.peer()
            refusal = await refused.until_closed()
            assert b"503 " in refusal
            assert b"OVERLOADED" in refusal
            held[0].close()
            await eventually(lambda: len(served.gateway._connections) < 2)
            assert await served.status() == 200

    run(visit())


def test_an_unfinished_head_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.1)
    monkeypatch.setattr(connections, "_SWEEP_S", 0.02)

    async def visit() -> None:
        async with serving() as served:
            half = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n"
            silent, started = await served.peer(), await served.peer(half)
            second = await served.peer(half + b"\r\n" + half)
            assert (await second.response())[0] == 404
            for peer in (silent, started, second):
                assert await peer.until_closed() == b""

    run(visit())


def test_a_head_that_arrives_byte_by_byte_has_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.1)
    monkeypatch.setattr(connections, "_SWEEP_S", 0.02)

    async def visit() -> None:
        async with serving() as served:
            slow = await served.peer(b"GET / HTTP/1.1\r\nX: ")
            assert await slow.write_until_closed(b"x") == b""

    run(visit())


def test_many_long_polls_keep_nobody_else_out() -> None:
    async def visit() -> None:
        async with serving(connections_max=20) as served:
            assert (await served.client.put("/v1/topics/t")).is_success
            wait = b"GET /v1/topics/t/messages?position=new&wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            polls = [await served.peer(wait) for _ in range(21)]
            assert (await polls[-1].response())[0] == 503
            for path in ("/v1/health", "/metrics", "/v1/topics"):
                assert await served.status(path) == 200

    run(visit())


def test_health_and_metrics_have_places_and_connections_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_IDLE_CONNECTIONS", 1)

    async def visit() -> None:
        async with serving(connections_max=1) as served:
            is_answering, wait_for = asyncio.Event(), Link._wait_for
            assert (await served.client.put("/v1/topics/t")).is_success
            monkeypatch.setattr(Link, "_wait_for", lambda *_: is_answering.wait())
            await served.peer(b"PUT /v1/topics/u HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait = b"GET /v1/topics/t/messages?position=new&wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            await served.peer(wait)
            await eventually(lambda: served.gateway._server._app.admission.taken == 2)
            monkeypatch.setattr(Link, "_wait_for", wait_for)
            assert await served.status("/v1/topics") == 503
            assert await served.status("/v1/health") == await served.status("/metrics") == 200
            is_answering.set()

    run(visit())


async def _unread(served: Served, count: int) -> list[Peer]:
    """Clients that ask for a large message and read nothing."""
    get = b"GET /v1/topics/t/subscriptions/s/messages?position=0&bytes_max=8388608 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    return [await served.peer(get, limit_bytes=1) for _ in range(count)]


def test_unread_responses_take_limited_memory_and_others_get_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_budget, "_PERIOD_S", 0.05)

    async def visit() -> None:
        async with serving(buffer_bytes_max=2 * _RESERVED) as served:
            await _store_much(served)
            replies = _memory_of(served).replies
            await _unread(served, 20)
            for _ in range(2):
                got = await served.client.get("/v1/topics/t/subscriptions/s/messages", params={"bytes_max": 8 * 2**20})
                assert len(got.json()["messages"]) == 9
                assert replies.used_bytes <= 2 * _RESERVED
        assert replies.used_bytes == 0

    run(visit())


def test_a_response_that_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.1)
    monkeypatch.setattr(connections, "_SWEEP_S", 0.02)

    async def visit() -> None:
        async with serving() as served:
            await _store_much(served)
            before = len(served.gateway._connections)
            await _unread(served, 2)
            await eventually(lambda: _memory_of(served).replies.used_bytes > 0)
            await eventually(lambda: _memory_of(served).replies.used_bytes == 0)
            await eventually(lambda: len(served.gateway._connections) <= before)

    run(visit())


def test_small_responses_that_nobody_reads_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 600.0)
    monkeypatch.setattr(connections, "_SWEEP_S", 0.02)

    async def visit() -> None:
        async with serving() as served:
            assert (await served.client.put("/v1/topics/t/subscriptions/s")).is_success
            assert await _upload(served, b"x" * 60_000) == 201
            get = b"GET /v1/topics/t/subscriptions/s/messages HTTP/1.1\r\nHost: localhost\r\n\r\n"
            for _ in range(3):
                await served.peer(get * 300, limit_bytes=1)
            every = served.gateway._server.server_state.connections
            await eventually(lambda: sum(_unread_bytes(each) > 0 for each in every) == 3)
            unread = [each for each in every if _unread_bytes(each)]
            monkeypatch.setattr(connections, "HELD_BYTES_MAX", 100_000)
            await eventually(lambda: any(each.transport.is_closing() for each in unread))
            assert await served.status() == 200

    run(visit())


def test_slow_uploads_take_limited_memory_and_keep_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_budget, "_PERIOD_S", 0.05)

    async def visit() -> None:
        async with serving(buffer_bytes_max=_RESERVED) as served:
            head = _LINE + b"Content-Length: %d\r\n\r\n" % (8 * 2**20)
            slow = [await served.peer(head, b"x" * 200_000) for _ in range(20)]
            await _connected(served)
            assert await _upload(served, b"y" * _LARGE) == 201
            bodies = _memory_of(served).bodies
            assert bodies.used_bytes <= _RESERVED
            for peer in slow:
                peer.close()
        assert bodies.used_bytes == 0

    run(visit())


def test_a_body_that_is_complete_may_wait_for_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_budget, "_PERIOD_S", 0.01)
    checks: list[int] = []

    async def visit() -> None:
        async with serving(buffer_bytes_max=2 * _LARGE) as served:
            puts = _HeldPuts(monkeypatch)
            uploads = [asyncio.ensure_future(_upload(served, b"x" * _LARGE))]
            await eventually(lambda: served.gateway._server._app.admission.taken)
            uploads += [asyncio.ensure_future(_upload(served, b"x" * _LARGE)) for _ in range(2)]
            _count_checks(monkeypatch, _memory_of(served).bodies, checks)
            await eventually(lambda: len(checks) > 3)
            monkeypatch.setattr(byte_budget, "_PERIOD_S", 60.0)
            puts.may_end.set()
            assert await asyncio.gather(*uploads) == [201] * 3

    run(visit())


def test_a_response_that_waits_for_the_broker_is_not_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_budget, "_PERIOD_S", 0.01)
    ask = Link._ask
    checks: list[int] = []

    async def visit() -> None:
        async with serving(buffer_bytes_max=_RESERVED) as served:
            await _store_much(served)
            is_answering = asyncio.Event()

            async def wait(self: Link, command: Any, *rest: Any) -> Any:
                if getattr(command, "bytes_max", 0) > _LARGE:
                    await is_answering.wait()
                return await ask(self, command, *rest)

            monkeypatch.setattr(Link, "_ask", wait)
            path, parameters = "/v1/topics/t/subscriptions/s/messages", {"position": 0, "bytes_max": 8 * 2**20}
            gets = [asyncio.ensure_future(served.client.get(path, params=parameters)) for _ in range(3)]
            _count_checks(monkeypatch, _memory_of(served).replies, checks)
            await eventually(lambda: len(checks) > 3)
            monkeypatch.setattr(byte_budget, "_PERIOD_S", 60.0)
            is_answering.set()
            assert [len(got.json()["messages"]) for got in await asyncio.gather(*gets)] == [9] * 3

    run(visit())


def test_a_stream_that_is_read_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []

    async def visit() -> None:
        async with serving() as served:
            await _store_much(served)
            monkeypatch.setattr(byte_budget.Reservation, "note_moved", lambda _, size: moved.append(size))
            async with served.client.stream("GET", "/v1/topics/t/subscriptions/s/events") as response:
                async for _ in response.aiter_bytes():
                    if sum(moved) > 3 * _LARGE:
                        break
            assert max(moved) <= 2**17

    run(visit())


def _count_checks(monkeypatch: pytest.MonkeyPatch, budget: byte_budget.ByteBudget, checks: list[int]) -> None:
    """Note each time that holders are checked because others wait."""
    check = budget._check_holders

    def noting() -> None:
        checks.append(len(budget._waiting))
        check()

    monkeypatch.setattr(budget, "_check_holders", noting)


def test_unfinished_small_bodies_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HELD_BYTES_MAX", 200_000)

    async def visit() -> None:
        async with serving() as served:
            head = _LINE + b"Content-Length: 60000\r\n\r\n"
            slow = [await served.peer(head, b"x" * 50_000) for _ in range(20)]
            assert await slow[0].until_closed() == b""
            assert await _upload(served, b"y") == 201

    run(visit())


def test_unfinished_small_bodies_that_arrive_in_pieces_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HELD_BYTES_MAX", 200_000)

    async def visit() -> None:
        async with serving() as served:
            first, *others = [await served.peer(_LINE + b"Content-Length: 60000\r\n\r\n") for _ in range(8)]
            for peer in (first, *others):
                await peer.write_apart(*[b"x" * 10_000] * 5)
            assert await first.until_closed() == b""
            assert await _upload(served, b"y") == 201

    run(visit())


def test_complete_requests_are_not_disconnected_for_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HELD_BYTES_MAX", 200_000)

    async def visit() -> None:
        async with serving() as served:
            puts = _HeldPuts(monkeypatch)
            uploads = [asyncio.ensure_future(_upload(served, b"x" * 60_000)) for _ in range(10)]
            await eventually(lambda: served.gateway._server._app.admission.taken == 10)
            puts.may_end.set()
            assert await asyncio.gather(*uploads) == [201] * 10

    run(visit())


def test_complete_small_bodies_are_limited_together_before_their_requests_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def visit() -> None:
        async with serving(buffer_bytes_max=200_000) as served:
            puts = _HeldPuts(monkeypatch)
            uploads = [asyncio.ensure_future(_upload(served, b"x" * 60_000)) for _ in range(10)]
            await eventually(lambda: sum(each.done() for each in uploads) == 7)
            assert [each.result() for each in uploads if each.done()] == [503] * 7
            puts.may_end.set()
            assert sorted(await asyncio.gather(*uploads)) == [201] * 3 + [503] * 7
            stored = await served.client.get("/v1/topics/t")
            assert stored.json()["end_offset"] == 3
            assert not _memory_of(served).small_bodies.used_bytes

    run(visit())


def test_requests_that_wait_behind_others_are_limited_together_and_those_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HELD_BYTES_MAX", 200_000)

    async def visit() -> None:
        async with serving() as served:
            assert (await served.client.put("/v1/topics/t", json={"retain_ms": 3_600_000})).is_success
            wait = b"GET /v1/topics/t/messages?position=new&wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            put = _LINE + b"Connection: close\r\nContent-Length: 60000\r\n\r\n" + b"x" * 60_000
            peers = [await served.peer(wait + put) for _ in range(10)]
            open_connections = served.gateway._server.server_state.connections
            await eventually(lambda: sum(each._is_discarding for each in open_connections) == 7)
            await eventually(lambda: served.gateway._server._app.admission.taken == 10)
            assert await _upload(served, b"y") == 201
            assert [(await peer.response())[0] for peer in peers] == [200] * 10
            rest = [await peer.until_closed() for peer in peers]
            assert rest.count(b"") == 7
            assert sum(b" 201 " in each for each in rest) == 3

    run(visit())


def test_a_long_poll_keeps_no_memory_for_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    async def visit() -> None:
        async with serving(buffer_bytes_max=_RESERVED) as served:
            assert (await served.client.put("/v1/topics/t/subscriptions/s", json={"sharing": {}})).is_success

            async def padded() -> AsyncIterator[bytes]:
                yield b'{"member": "m", "number": 1, "wait_ms": 60000}'
                for _ in range(10):
                    yield b" " * 10_000

            take = asyncio.ensure_future(served.client.post("/v1/topics/t/subscriptions/s/take", content=padded()))
            await eventually(lambda: served.gateway._server._app.admission.taken)
            memory = _memory_of(served)
            assert (memory.bodies.used_bytes, memory.small_bodies.used_bytes) == (0, 0)
            assert await _upload(served, b"x" * _LARGE) == 201
            assert (await take).status_code == 200

    run(visit())


def test_a_body_that_was_sent_in_chunks_keeps_no_more_memory_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def visit() -> None:
        async with serving() as served:
            puts = _HeldPuts(monkeypatch)

            async def chunks() -> AsyncIterator[bytes]:
                for _ in range(10):
                    yield b"x" * 10_000

            path = "/v1/topics/t/messages?create=true"
            put = asyncio.ensure_future(served.client.post(path, content=chunks()))
            await eventually(lambda: served.gateway._server._app.admission.taken)
            memory = _memory_of(served)
            assert 0 < memory.bodies.used_bytes + memory.small_bodies.used_bytes <= 200_000
            puts.may_end.set()
            assert (await put).status_code == 201

    run(visit())


def test_a_slow_body_has_more_time_the_more_of_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "BODY_S", 0.3)
    monkeypatch.setattr(request, "_BODY_BYTES_PER_S", 10)

    async def visit() -> None:
        async with serving() as served:
            slow = await served.peer(_LINE + b"Content-Length: 20\r\n\r\n")
            for _ in range(20):
                await slow.write_apart(b"x")
                await asyncio.sleep(0.03)
            assert (await slow.response())[0] == 201
            stuck = await served.peer(_LINE + b"Content-Length: 20\r\n\r\nx")
            assert (await stuck.response())[0] == 400
            assert await stuck.until_closed() == b""

    run(visit())


def test_a_gateway_that_stops_logs_nothing_about_unread_streams(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_DRAIN_S", 0.2)
    caplog.set_level(logging.WARNING)

    async def visit() -> None:
        async with serving() as served:
            await _store_much(served)
            for name in (b"s", b"s2"):
                path = b"/v1/topics/t/subscriptions/%s/events" % name
                await served.peer(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path, limit_bytes=1)
            await eventually(lambda: sum(map(_unread_bytes, served.gateway._server.server_state.connections)) > 100_000)
            await served.gateway.stop()

    run(visit())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def _unread_bytes(protocol: Any) -> int:
    unread: int = protocol.unread_bytes
    return unread


@pytest.mark.parametrize(
    ("path", "body", "media"),
    [
        ("/v1/topics/t/messages", {"value": 1}, "application/problem+json"),
        ("/producer/register", {"topic": "t"}, "application/json"),
    ],
)
def test_requests_that_the_broker_never_answers_have_an_unknown_outcome_when_the_gateway_stops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str, body: dict[str, Any], media: str
) -> None:
    monkeypatch.setattr(server, "_DRAIN_S", 0.2)

    async def everybody(*_: object) -> str:
        return ""

    monkeypatch.setattr(Logins, "find_caller", everybody)

    async def visit() -> None:
        async with serving(brokers=("tcp://127.0.0.1:1",)) as served:
            asking = asyncio.ensure_future(served.client.post(path, json=body))
            await eventually(lambda: served.gateway._server._app.admission.taken)
            await served.gateway.stop()
            response = await asking
            assert response.status_code == 503
            assert response.headers["content-type"] == media
            assert response.json()["code"] == "BROKER_AWAY"
            assert "not known whether" in response.text
            assert "Repeat" in response.json()["advice"]

    run(visit())
    assert not [record for record in caplog.records if record.exc_info]


def test_a_request_whose_sender_the_broker_never_identifies_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_DRAIN_S", 0.2)

    async def visit() -> None:
        async with serving(brokers=("tcp://127.0.0.1:1",)) as served:
            asking = asyncio.ensure_future(served.client.post("/v1/topics/t/messages", json={"value": 1}))
            await eventually(lambda: served.gateway._server.server_state.tasks)
            await served.gateway.stop()
            response = await asking
            assert (response.status_code, response.json()["code"]) == (503, "BROKER_AWAY")
            assert "did not happen" in response.text

    run(visit())


def test_connections_leave_descriptors_for_other_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    table = Connections(5000)
    table.fit_descriptors()
    assert table.count_max == 768


def test_nothing_large_is_fetched_for_a_client_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_budget, "_PERIOD_S", 0.05)

    async def visit() -> None:
        async with serving(buffer_bytes_max=_RESERVED) as served:
            await _store_much(served)
            (first,) = await _unread(served, 1)
            await eventually(lambda: _memory_of(served).replies.used_bytes)
            waiting = await _unread(served, 10)
            await _connected(served)
            sent: list[int] = []
            monkeypatch.setattr(memory.RequestMemory, "note_reply", lambda _, size: sent.append(size))
            for peer in (*waiting, first):
                peer.abort()
            await eventually(lambda: not served.gateway._server._app.admission.taken)
            assert max(sent, default=0) < _LARGE

    run(visit())
