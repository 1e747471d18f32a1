"""Requests as they arrive on a connection: in pieces, many at once, too large, or not valid."""

from __future__ import annotations

import json

import pytest

from tests.gateways.http.served import Served, run, serving

_GET = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def _refused(served: Served, request: bytes) -> tuple[int, str]:
    """Return the status and the code of the response, after which the connection is closed."""
    peer = await served.peer(request)
    status, body = await peer.response()
    assert await peer.until_closed() == b""
    return status, json.loads(body)["code"]


@pytest.mark.parametrize("cut", [5, 40, -1, -2, -3, -4])
def test_a_head_may_arrive_in_two_parts_with_a_large_body_after_it(cut: int) -> None:
    async def visit() -> None:
        async with serving() as served:
            value = b"x" * 1_000_000
            head = b"POST /v1/topics/t/messages?create=true HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            head %= len(value)
            peer = await served.peer()
            await peer.write_apart(head[:cut], head[cut:] + value)
            assert (await peer.response())[0] == 201
            # The next request on the same connection is not affected.
            await peer.write_apart(_GET[:9], _GET[9:])
            assert (await peer.response())[0] == 404

    run(visit())


def test_a_body_in_chunks_may_be_followed_by_another_request() -> None:
    async def visit() -> None:
        async with serving() as served:
            head = b"POST /v1/topics/t/messages?create=true HTTP/1.1\r\nHost: localhost\r\n"
            body = b"Transfer-Encoding: chunked\r\n\r\n6\r\na\r\n\r\nb\r\n0\r\n\r\n"
            peer = await served.peer(head + body + _GET)
            assert [(await peer.response())[0] for _ in range(2)] == [201, 404]

    run(visit())


def test_thousands_of_requests_at_once_are_answered_in_order() -> None:
    async def visit() -> None:
        async with serving() as served:
            count = 5_000
            peer = await served.peer(*(b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % n for n in range(count)))
            for number in range(count):
                status, body = await peer.response()
                assert (status, json.loads(body)["detail"]) == (404, f"there is no endpoint at /{number}")

    run(visit())


def test_requests_behind_a_long_poll_are_not_taken_into_memory() -> None:
    async def visit() -> None:
        async with serving() as served:
            assert (await served.client.put("/v1/topics/t/subscriptions/s")).is_success
            wait = b"GET /v1/topics/t/messages?position=new&wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            peer = await served.peer(wait, *[_GET] * 100_000)
            assert await served.status() == 200
            (protocol,) = [each for each in served.gateway._server.server_state.connections if each.pipeline]
            assert len(protocol.pipeline) == 1
            assert (await served.client.post("/v1/topics/t/messages", content="x")).is_success
            assert [(await peer.response())[0] for _ in range(3)] == [200, 404, 404]

    run(visit())


def test_heads_that_are_not_valid_are_refused_with_a_problem() -> None:
    async def visit() -> None:
        async with serving() as served:
            line = b"GET /v1/topics HTTP/1.1\r\n"
            host = b"Host: localhost\r\n"
            assert await _refused(served, line + host + host + b"\r\n") == (400, "MALFORMED")
            assert await _refused(served, line + host + b"Host: elsewhere.example\r\n\r\n") == (400, "MALFORMED")
            assert await _refused(served, line + b"X: y\r\n" * 8_000 + b"\r\n") == (431, "TOO_LARGE")
            assert await _refused(served, line + b"X: " + b"x" * 100_000) == (431, "TOO_LARGE")
            assert await _refused(served, b"\0\1\2\r\n\r\n") == (400, "MALFORMED")
            assert await _refused(served, b"\r\n" * 50_000) == (431, "TOO_LARGE")

    run(visit())


def test_many_long_heads_on_one_connection_are_accepted() -> None:
    async def visit() -> None:
        async with serving() as served:
            whole = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n" % (b"x" * 40_000)
            peer = await served.peer(whole * 3)
            assert [(await peer.response())[0] for _ in range(3)] == [404, 404, 404]

    run(visit())


def test_an_announced_body_that_is_too_large_is_refused_at_once() -> None:
    async def visit() -> None:
        async with serving() as served:
            line = b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\n"
            terabytes = b"Content-Length: 10000000000000\r\n\r\n"
            assert await _refused(served, line + terabytes + b"x" * 1000) == (413, "TOO_LARGE")

    run(visit())


def test_trailers_without_end_are_refused() -> None:
    async def visit() -> None:
        async with serving() as served:
            line = b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            peer = await served.peer(line + b"1\r\nx\r\n0\r\nX: ")
            # It is not answered: its body is incomplete. A body that takes too long would be answered.
            assert await peer.write_until_closed(b"x" * 10_000) == b""

    run(visit())
