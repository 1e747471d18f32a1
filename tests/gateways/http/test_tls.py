"""HTTP over TLS: certificates that are replaced while the gateway runs, and handshakes that never end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from oncemq.gateways.http import certificate, connections, gateway
from oncemq.gateways.http.certificate import Certificate
from oncemq.gateways.http.connections import Connections
from oncemq.gateways.http.gateway import HttpGateway
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.gateways.http.tls import TlsAcceptor
from oncemq.protocol import errors
from tests.gateways.http.certificates import Authority, replace
from tests.gateways.http.processes import GatewayProcess
from tests.gateways.http.served import TIMEOUT_S, Peer, Served, eventually, serving

PUT = b"PUT /v1/topics/t HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def keys(authority: Authority, tmp_path: Path) -> Path:
    authority.issue(tmp_path / "keys", "first")
    return tmp_path / "keys"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], None]:
    """Run a test on each of the event loops that gateways use."""

    def run_on_loop(work: Coroutine[Any, Any, Any]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(2 * TIMEOUT_S):
                await work

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(limited())

    return run_on_loop


Run = Callable[[Coroutine[Any, Any, Any]], None]


@contextlib.asynccontextmanager
async def serving_tls(keys: Path, authority: Authority, **settings: Any) -> AsyncIterator[Served]:
    async with serving(keys=str(keys), **settings) as served:
        assert served.url.startswith("https://127.0.0.1:")
        await served.client.aclose()
        served.client = httpx.AsyncClient(
            base_url=served.url, timeout=TIMEOUT_S, trust_env=False, verify=authority.client_context()
        )
        yield served


def _port(served: Served) -> int:
    return int(served.url.rpartition(":")[2])


async def _connect(served: Served, authority: Authority, limit_bytes: int = 1 << 16) -> Peer:
    context = authority.client_context()
    streams = await asyncio.open_connection("127.0.0.1", _port(served), ssl=context, limit=limit_bytes)
    peer = Peer(*streams)
    served._peers.append(peer)
    return peer


async def _name_of_certificate(served: Served, authority: Authority) -> str:
    peer = await _connect(served, authority)
    found = peer._writer.get_extra_info("peercert")["subject"][0][0][1]
    peer.close()
    return str(found)


def _counted(served: Served) -> int:
    return len(served.gateway._connections)


# Requests.


def test_requests_are_encrypted(run: Run, keys: Path, authority: Authority) -> None:
    async def visit() -> None:
        async with serving_tls(keys, authority) as served:
            assert (await served.client.put("/v1/topics/t/subscriptions/s")).status_code == 201
            body = "x" * 3_000_000
            headers = {"Content-Type": "text/plain"}
            reply = await served.client.post("/v1/topics/t/messages", content=body, headers=headers)
            assert reply.status_code == 201
            got = await served.client.get(
                "/v1/topics/t/subscriptions/s/messages", headers={"Accept": "application/octet-stream"}
            )
            assert got.text == body
            with pytest.raises(httpx.TransportError):
                async with httpx.AsyncClient(trust_env=False) as stranger:
                    await stranger.get(served.url + "/v1/topics")

    run(visit())


def test_a_request_may_come_with_the_end_of_the_handshake(run: Run, keys: Path, authority: Authority) -> None:
    async def visit() -> None:
        async with serving_tls(keys, authority) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = authority.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
            with pytest.raises(ssl.SSLWantReadError):
                client.do_handshake()
            writer.write(outgoing.read())
            while True:
                incoming.write(await _more(reader))
                with contextlib.suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                    break
            # Its last message and two requests arrive together.
            client.write(PUT + PUT)
            writer.write(outgoing.read())
            answer = b""
            while answer.count(b'"created"') < 2:
                incoming.write(await _more(reader))
                with contextlib.suppress(ssl.SSLWantReadError):
                    while True:
                        answer += client.read(1 << 16)
            assert b"201 Created" in answer
            writer.close()

    run(visit())


async def _more(reader: asyncio.StreamReader) -> bytes:
    received = await reader.read(1 << 16)
    assert received, "the connection was closed"
    return received


def test_a_stream_that_nobody_reads_is_ended_over_tls_too(
    run: Run, keys: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.2)
    monkeypatch.setattr(connections, "_SWEEP_S", 0.05)

    async def visit() -> None:
        async with serving_tls(keys, authority) as served:
            await served.client.put("/v1/topics/t/subscriptions/s")
            for _ in range(8):
                await served.client.post("/v1/topics/t/messages", content=b"x" * 1_000_000)
            peer = await _connect(served, authority, limit_bytes=1)
            peer._writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.write(b"GET /v1/topics/t/subscriptions/s/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await served.client.aclose()
            await eventually(lambda: _counted(served) == 1)
            await eventually(lambda: _counted(served) == 0)

    run(visit())


def test_a_host_name_need_not_be_configured(run: Run, keys: Path, authority: Authority) -> None:
    """The browser has found it in the certificate."""

    async def visit() -> None:
        async with serving_tls(keys, authority) as served:
            port = _port(served)
            own = {"Host": f"gateway.example:{port}", "Origin": f"https://gateway.example:{port}"}
            assert (await served.client.get("/v1/topics", headers=own)).status_code == 200
            for foreign in (f"http://gateway.example:{port}", "https://foreign.example"):
                reply = await served.client.get("/v1/topics", headers=own | {"Origin": foreign})
                assert (reply.status_code, reply.json()["code"]) == (403, "ORIGIN_REFUSED")

    run(visit())


# Certificates.


def test_a_new_certificate_is_used_for_new_connections_under_load(
    run: Run, keys: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate, "_CHECK_S", 0.02)

    async def visit() -> None:
        async with serving_tls(keys, authority) as served:
            await served.client.put("/v1/topics/t")
            is_replaced = asyncio.Event()
            names: set[str] = set()

            async def use(*, keeps_connection: bool) -> None:
                context = authority.client_context()
                async with httpx.AsyncClient(base_url=served.url, verify=context, trust_env=False) as client:
                    headers = {} if keeps_connection else {"Connection": "close"}
                    while not is_replaced.is_set():
                        assert (await client.get("/v1/topics", headers=headers)).status_code == 200

            async def replace_all() -> None:
                for name in ("second", "third"):
                    authority.issue(keys, name)
                    while name not in names:
                        names.add(await _name_of_certificate(served, authority))
                is_replaced.set()

            await asyncio.gather(use(keeps_connection=True), use(keeps_connection=False), replace_all())

    run(visit())


def test_a_certificate_that_cant_be_used_changes_nothing(
    run: Run,
    keys: Path,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(certificate, "_CHECK_S", 0.0)

    async def visit() -> None:
        async with serving_tls(keys, authority) as served:
            former = (keys / "server-key.pem").read_bytes()
            for broken in (b"", b"no key", former.replace(b"A", b"B")):
                replace(keys / "server-key.pem", broken)
                for _ in range(3):
                    assert await _name_of_certificate(served, authority) == "first"
            assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
            (keys / "server.pem").unlink()
            assert await _name_of_certificate(served, authority) == "first"
            authority.issue(keys, "second")
            assert await _name_of_certificate(served, authority) == "second"

    run(visit())


def test_a_gateway_with_half_a_certificate_does_not_start(keys: Path) -> None:
    (keys / "server-key.pem").unlink()
    with pytest.raises(errors.SettingInvalid, match="keys"):
        HttpGateway(GatewaySettings(brokers=("memory:",), keys=str(keys)))


def test_without_a_certificate_nothing_is_encrypted(tmp_path: Path, run: Run) -> None:
    async def visit() -> None:
        async with serving(keys=str(tmp_path / "none")) as served:
            assert served.url.startswith("http://")
            assert await served.status() == 200

    run(visit())


def test_sighup_makes_a_gateway_process_use_a_new_certificate(keys: Path, authority: Authority, tmp_path: Path) -> None:
    process = GatewayProcess(tmp_path, "memory:hang-up", "--keys", str(keys))
    try:

        def name() -> str:
            with (
                socket.create_connection(("127.0.0.1", process.port), TIMEOUT_S) as plain,
                authority.client_context().wrap_socket(plain, server_hostname="localhost") as encrypted,
            ):
                shown: Any = encrypted.getpeercert()
                return str(shown["subject"][0][0][1])

        assert name() == "first"
        times = [(path, path.stat()) for path in keys.iterdir()]
        authority.issue(keys, "second")
        for path, former in times:
            os.utime(path, ns=(former.st_atime_ns, former.st_mtime_ns))
        process.send_signal(signal.SIGHUP)
        until_s = time.monotonic() + TIMEOUT_S
        while name() != "second":
            assert time.monotonic() < until_s
    finally:
        assert process.stop() == 0


# Handshakes.


def test_a_handshake_has_limited_time(
    run: Run, keys: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    monkeypatch.setattr(connections, "_SWEEP_S", 0.05)

    async def visit() -> None:
        async with serving_tls(keys, authority) as served:
            hello = _client_hello(authority)
            silent, slow, half = await served.peer(), await served.peer(), await served.peer(hello[:50])
            for part in (hello[index : index + 1] for index in range(40)):
                slow.write(part)
                await asyncio.sleep(0.001)
            for peer in (silent, slow, half):
                await peer.until_closed()
            await eventually(lambda: _counted(served) == 0)
            assert (await served.client.put("/v1/topics/t")).status_code == 201

    run(visit())


def _client_hello(authority: Authority) -> bytes:
    outgoing = ssl.MemoryBIO()
    client = authority.client_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "sent",
    [PUT, b"\x00" * 1000, b"\x16\x03\x01\xff\xff" + b"x" * 100, b"\x16\x03\x01\x00\x05hello", os.urandom(70_000)],
    ids=["http", "zeros", "too long", "no hello", "random"],
)
def test_what_is_no_handshake_ends_the_connection(
    run: Run, keys: Path, authority: Authority, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def visit() -> None:
        async with serving_tls(keys, authority) as served:
            peers = [await served.peer(sent) for _ in range(5)]
            (await served.peer(_client_hello(authority))).abort()
            for peer in peers:
                peer._writer.write_eof()
                assert b"HTTP" not in await peer.until_closed()
            await eventually(lambda: _counted(served) == 0)
            assert (await served.client.put("/v1/topics/t")).status_code == 201

    run(visit())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_connections_without_a_handshake_have_limited_places_and_keep_nobody_out(
    run: Run, keys: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "_IDLE_CONNECTIONS", 18)

    async def visit() -> None:
        async with serving_tls(keys, authority, connections_max=1) as served:
            assert (await served.client.put("/v1/topics/t")).status_code == 201
            silent = [await served.peer() for _ in range(100)]
            await eventually(lambda: _counted(served) == 20)
            # The oldest ones have been closed; new ones are accepted.
            assert await silent[0].until_closed() == b""
            peer = await _connect(served, authority)
            peer.write(PUT)
            assert (await peer.response())[0] == 200
            # The connection that had a request before is closed last.
            assert (await served.client.put("/v1/topics/t")).status_code == 200

    run(visit())


def test_a_gateway_that_stops_does_not_wait_for_handshakes(run: Run, keys: Path, authority: Authority) -> None:
    async def visit() -> None:
        async with serving_tls(keys, authority) as served:
            peers = [await served.peer(), await served.peer(_client_hello(authority)[:20])]
            idle = await _connect(served, authority)
            await eventually(lambda: _counted(served) == 3)
            began_s = time.monotonic()
            await served.gateway.stop()
            assert time.monotonic() - began_s < TIMEOUT_S / 2
            for peer in (*peers, idle):
                await peer.until_closed()
            assert _counted(served) == 0

    run(visit())


class _Wire:
    """The connection below TLS, without a network."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.sent += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0


def test_no_bytes_do_any_harm_in_a_handshake(keys: Path, authority: Authority) -> None:
    """Random changes of a client's first message, and random bytes, in parts of any size."""
    chance = random.Random(7)

    async def fuzz() -> None:
        table = Connections(10)
        acceptor = TlsAcceptor(Certificate(keys), table)
        for _ in range(2_000):
            sent = bytearray(_client_hello(authority)) if chance.random() < 0.9 else bytearray(chance.randbytes(300))
            for _ in range(chance.choice((0, 1, 1, 2, 5))):
                sent[chance.randrange(len(sent))] = chance.randrange(256)
            del sent[chance.choice((len(sent), len(sent), chance.randrange(len(sent)))) :]
            wire: Any = _Wire()
            peer = acceptor.accept(lambda: pytest.fail("a first message completes no handshake"))
            peer.connection_made(wire)
            while sent and not wire.is_closed:
                part = chance.choice((len(sent), 1 + chance.randrange(64)))
                peer.data_received(bytes(sent[:part]))
                del sent[:part]
            assert len(wire.sent) < 10_000
            peer.connection_lost(None)
            assert (len(table), acceptor.handshakes) == (0, set())

    asyncio.run(fuzz())
