"""The stream transport of a client finds its broker again, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import oncemq
import oncemq.aio
from oncemq.client.runtime import stream
from oncemq.client.runtime.stream import StreamTransport
from oncemq.client.runtime.transport import check_urls, open_transport
from oncemq.net.lookup import Lookup, Name
from oncemq.net.system import System
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.stream import StreamReader, encode_message, encode_opening
from oncemq.testing.broker_process import BrokerProcess, free_port
from tests.client.event_loop import on_event_loop
from tests.net.stream_rig import name_of

DEADLINE_S = 30.0
MIB = 2**20


class Server:
    """Listens as a broker does. The test decides what it does with each connection."""

    def __init__(self, address: str | tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        if not isinstance(address, str):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(address)
        self._socket.listen()
        self._socket.settimeout(DEADLINE_S)
        self.port = 0 if isinstance(address, str) else self._socket.getsockname()[1]
        self.url = f"oncemq+unix://{address}" if isinstance(address, str) else f"oncemq://127.0.0.1:{self.port}"
        self._accepted: list[Accepted] = []

    def has_connection(self) -> bool:
        """Whether a connection waits to be accepted."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def accept(self) -> Accepted:
        accepted = Accepted(self._socket.accept()[0])
        self._accepted.append(accepted)
        return accepted

    def close(self) -> None:
        self._socket.close()
        for accepted in self._accepted:
            accepted.socket.close()


class Accepted:
    """The broker's side of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.socket.settimeout(DEADLINE_S)
        self.reader = StreamReader(2**31, 2**31, as_bytes=True)

    def receive(self) -> list[Frame]:
        """Return the next request. Raises ConnectionError at the end of the connection."""
        while (frames := self.reader.next()) is None:
            self._receive_some()
        return frames

    def _receive_some(self) -> None:
        target = self.reader.target
        if target is None:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError
            self.reader.feed(data)
        else:
            self.reader.filled(self.socket.recv_into(target))

    def open(self, **properties: object) -> None:
        """Wait for the client's opening, and answer it."""
        while self.reader.properties is None:
            self._receive_some()
        self.socket.sendall(encode_opening(properties))

    def send(self, frames: Sequence[Frame]) -> None:
        self.socket.sendall(b"".join(encode_message(frames)))

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Rig:
    """Servers and transports, which are closed at the end."""

    def __init__(self) -> None:
        self._closing: list[Any] = []

    def server(self, address: str | tuple[str, int] = ("127.0.0.1", 0)) -> Server:
        self._closing.append(made := Server(address))
        return made

    def transport(self, *urls: str, system: System | None = None) -> StreamTransport:
        self._closing.append(made := StreamTransport(urls, system))
        return made

    def connected(self, server: Server, system: System | None = None) -> tuple[StreamTransport, Accepted]:
        """A transport, and the other end of its connection."""
        transport = self.transport(server.url, system=system)
        return transport, opened(transport, server)

    def close(self) -> None:
        for each in self._closing:
            each.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


@pytest.fixture(params=["tcp", "unix"])
def server(rig: Rig, tmp_path: Path, request: pytest.FixtureRequest) -> Server:
    return rig.server(("127.0.0.1", 0) if request.param == "tcp" else f"{tmp_path}/broker.sock")


class Clock:
    """The clock of the transport, which stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_ms = 1_000_000.0
        monkeypatch.setattr(stream, "now_ms", lambda: self.at_ms)


def received(transport: StreamTransport) -> Sequence[Frame]:
    """Return the next reply."""
    found: list[Sequence[Frame]] = []
    run_until(transport, lambda: bool(found), found.append)
    return found[0]


def run_until(
    transport: StreamTransport,
    condition: Callable[[], bool],
    arrived: Callable[[Sequence[Frame]], object] | None = None,
) -> None:
    """Receive and wait as a driver does."""
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s, "this did not happen in time"
        frames = transport.receive()
        if frames is None:
            transport.wait(10)
        else:
            assert arrived is not None, f"{frames} arrived"
            arrived(frames)
            return


def opened(transport: StreamTransport, server: Server) -> Accepted:
    """Let the transport connect, and answer its opening."""
    run_until(transport, server.has_connection)
    accepted = server.accept()
    run_until(transport, lambda: not transport.wants_write)
    accepted.open()
    run_until(transport, lambda: transport._reader.properties is not None)
    return accepted


def lost(transport: StreamTransport) -> None:
    """Run until the transport has noticed that its connection is lost."""
    run_until(transport, lambda: transport.descriptor == -1)


# Requests and replies.


def test_the_opening_comes_first_and_says_which_client_this_is(rig: Rig, server: Server) -> None:
    transport = rig.transport(server.url)
    transport.send([b"first"])
    transport.send([b"second", b"payload"])
    accepted = server.accept()
    run_until(transport, lambda: not transport.wants_write)
    assert [accepted.receive(), accepted.receive()] == [[b"first"], [b"second", b"payload"]]
    assert accepted.reader.properties is not None
    assert accepted.reader.properties["client"].startswith("oncemq-python ")
    accepted.open()
    accepted.send([b"reply", b"payload"])
    assert received(transport) == [b"reply", b"payload"]
    assert not transport.is_renewed


def test_a_large_request_is_sent_in_parts_and_arrives_whole(rig: Rig, server: Server) -> None:
    transport, accepted = rig.connected(server)
    large = os.urandom(8 * MIB)
    transport.send([b"header", large])
    transport.send([b"small"])
    assert transport.wants_write
    requests: list[list[Frame]] = []
    reading = threading.Thread(target=lambda: requests.extend(accepted.receive() for _ in range(2)))
    reading.start()
    run_until(transport, lambda: not transport.wants_write)
    reading.join(DEADLINE_S)
    assert requests == [[b"header", large], [b"small"]]
    # What is sent later needs no queue.
    transport.send([b"later"])
    assert not transport.wants_write
    assert accepted.receive() == [b"later"]


def test_a_request_of_very_many_frames_arrives_whole(rig: Rig, server: Server) -> None:
    transport, accepted = rig.connected(server)
    frames: list[Frame] = [b"%050d" % number for number in range(3000)]
    transport.send(frames)
    run_until(transport, lambda: not transport.wants_write)
    assert accepted.receive() == frames


def test_a_large_reply_arrives_whole(rig: Rig, server: Server) -> None:
    transport, accepted = rig.connected(server)
    large = os.urandom(8 * MIB)
    sending = threading.Thread(target=lambda: accepted.send([b"header", large]))
    sending.start()
    assert received(transport) == [b"header", large]
    sending.join(DEADLINE_S)


def test_nothing_is_received_and_nobody_waits_long_without_a_connection(rig: Rig, tmp_path: Path) -> None:
    transport = rig.transport(f"oncemq+unix://{tmp_path}/nothing")
    assert transport.receive() is None
    # It ends when it is time to connect again.
    transport.wait(1000 * DEADLINE_S)
    assert transport.descriptor == -1


# Lost connections.


@pytest.mark.parametrize("lose", [Accepted.close, Accepted.reset])
def test_after_the_broker_has_closed_the_connection_it_is_opened_again(
    rig: Rig, server: Server, lose: Callable[[Accepted], None]
) -> None:
    transport, accepted = rig.connected(server)
    accepted.send([b"reply"])
    assert received(transport) == [b"reply"]
    lose(accepted)
    lost(transport)
    run_until(transport, server.has_connection)
    again = server.accept()
    run_until(transport, lambda: not transport.wants_write)
    assert not transport.is_renewed, "the broker has not answered yet"
    again.open()
    run_until(transport, lambda: transport.is_renewed)
    transport.is_renewed = False
    transport.send([b"request"])
    assert again.receive() == [b"request"]


def test_replies_that_arrived_before_the_end_of_the_connection_are_received(rig: Rig, server: Server) -> None:
    transport, accepted = rig.connected(server)
    for number in range(3):
        accepted.send([b"%d" % number])
    accepted.close()
    assert [received(transport) for _ in range(3)] == [[b"0"], [b"1"], [b"2"]]
    lost(transport)


def test_what_is_sent_while_there_is_no_connection_is_left_to_the_driver(rig: Rig, server: Server) -> None:
    transport, accepted = rig.connected(server)
    accepted.close()
    lost(transport)
    transport.send([b"dropped"])
    again = opened(transport, server)
    assert transport.is_renewed
    transport.is_renewed = False
    transport.send([b"sent again"])
    assert again.receive() == [b"sent again"]


def test_half_of_a_lost_request_is_not_sent_over_the_next_connection(rig: Rig, server: Server) -> None:
    transport, accepted = rig.connected(server)
    transport.send([bytes(8 * MIB)])
    assert transport.wants_write
    accepted.reset()
    lost(transport)
    again = opened(transport, server)
    transport.is_renewed = False
    transport.send([b"request"])
    assert again.receive() == [b"request"]


def test_half_of_a_lost_reply_is_not_taken_for_the_begin_of_the_next_one(rig: Rig, server: Server) -> None:
    transport, accepted = rig.connected(server)
    accepted.socket.sendall(b"".join(encode_message([b"x" * 200_000]))[:100_000])
    run_until(transport, lambda: transport._reader.incomplete_bytes > 0)
    accepted.close()
    lost(transport)
    again = opened(transport, server)
    again.send([b"reply"])
    assert received(transport) == [b"reply"]


# Pauses.


def pauses(transport: StreamTransport, clock: Clock, count: int, attempt: Callable[[], object]) -> list[float]:
    """Let attempts fail, and return how long the transport waits after each of them."""
    found = []
    for _ in range(count):
        attempt()
        lost(transport)
        found.append(transport.retry_ms - clock.at_ms)
        assert transport.receive() is None
        assert transport.descriptor == -1, "it has not waited"
        clock.at_ms = transport.retry_ms
        assert transport.receive() is None
    return found


def test_the_pauses_after_refused_connections_grow_up_to_half_a_second(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    transport = rig.transport(f"oncemq+unix://{tmp_path}/nothing")
    grown = [20.0, 40.0, 80.0, 160.0, 320.0, 500.0, 500.0]
    assert pauses(transport, clock, 7, lambda: None) == grown
    server = rig.server(f"{tmp_path}/nothing")
    clock.at_ms = transport.retry_ms
    opened(transport, server).close()
    lost(transport)
    # It was open for a moment only.
    assert transport.retry_ms == clock.at_ms + 500.0
    clock.at_ms = transport.retry_ms
    accepted = opened(transport, server)
    assert transport.retry_ms == float("inf")
    clock.at_ms += 1000.0
    accepted.close()
    lost(transport)
    assert transport.retry_ms == clock.at_ms


def test_a_tcp_connection_that_is_refused_is_tried_again_after_a_pause(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    transport = rig.transport(f"oncemq://127.0.0.1:{free_port()}")
    assert pauses(transport, clock, 3, lambda: None) == [20.0, 40.0, 80.0]


def test_a_broker_that_only_ends_connections_gets_pauses(
    rig: Rig, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    transport = rig.transport(server.url)
    assert pauses(transport, clock, 3, lambda: server.accept().close()) == [20.0, 40.0, 80.0]


def test_a_broker_that_is_out_of_connections_gets_pauses(
    rig: Rig, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(monkeypatch)
    transport = rig.transport(server.url)

    def refuse() -> None:
        accepted = server.accept()
        accepted.socket.sendall(encode_opening({"error": ["LIMIT_REACHED", "there are too many connections"]}))
        accepted.close()

    with caplog.at_level(logging.WARNING, "oncemq.client"):
        assert pauses(transport, clock, 3, refuse) == [20.0, 40.0, 80.0]
    # The same problem is logged once.
    [record] = caplog.records
    assert record.getMessage().startswith(f"{server.url} has refused the connection: ['LIMIT_REACHED', ")
    accepted = opened(transport, server)
    accepted.send([b"reply"])
    assert received(transport) == [b"reply"]


@pytest.mark.parametrize("is_opening_sent", [False, True])
def test_why_a_connection_was_refused_is_logged_even_if_nothing_can_be_sent_any_more(
    rig: Rig, server: Server, caplog: pytest.LogCaptureFixture, is_opening_sent: bool
) -> None:
    transport = rig.transport(server.url)
    if is_opening_sent:
        run_until(transport, lambda: not transport.wants_write)
    accepted = server.accept()
    accepted.socket.sendall(encode_opening({"error": ["LIMIT_REACHED", "there are too many connections"]}))
    accepted.close()
    with caplog.at_level(logging.WARNING, "oncemq.client"):
        transport.send([b"request"])
        lost(transport)
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        f"{server.url} has refused the connection"
    ]
    assert transport.retry_ms < float("inf")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not use the stream protocol"),
        (b"\xff\0\0\0\0\0\0\0\x01\x7f", "does not use the stream protocol"),
        (b"ONCEMQ\x07\0\0\0\0\0", "uses version 7 of the stream protocol"),
        (encode_opening({}) + bytes(12), "a message of 0 bytes"),
    ],
    ids=["HTTP", "ZeroMQ", "another version", "a broken message"],
)
def test_a_peer_that_is_no_broker_is_logged_and_tried_again(
    rig: Rig, server: Server, caplog: pytest.LogCaptureFixture, answer: bytes, why: str
) -> None:
    transport = rig.transport(server.url)
    with caplog.at_level(logging.WARNING, "oncemq.client"):
        for _ in range(2):
            run_until(transport, server.has_connection)
            accepted = server.accept()
            accepted.socket.sendall(answer)
            lost(transport)
    [record] = caplog.records
    assert record.getMessage().startswith(f"{server.url} does not answer as a broker: ")
    assert why in record.getMessage()
    accepted = opened(transport, server)
    accepted.send([b"reply"])
    assert received(transport) == [b"reply"]


# Addresses.


def test_the_next_address_is_tried_after_one_that_is_refused(rig: Rig, server: Server, tmp_path: Path) -> None:
    transport = rig.transport(f"oncemq+unix://{tmp_path}/nothing", f"oncemq://127.0.0.1:{free_port()}", server.url)
    accepted = opened(transport, server)
    accepted.send([b"reply"])
    assert received(transport) == [b"reply"]


def test_addresses_take_turns(rig: Rig) -> None:
    servers = [rig.server() for _ in range(3)]
    transport = rig.transport(*(server.url for server in servers))
    for server in (*servers, *servers):
        opened(transport, server).close()
        lost(transport)


def test_a_broker_that_does_not_answer_is_left_for_the_next_address(rig: Rig) -> None:
    silent, other = rig.server(), rig.server()
    transport = rig.transport(silent.url, other.url)
    transport.send([b"request"])
    accepted = silent.accept()
    run_until(transport, lambda: not transport.wants_write)
    assert accepted.receive() == [b"request"]
    # The core has waited long enough, and sends everything again itself.
    transport.reconnect()
    transport.send([b"request"])
    again = opened(transport, other)
    assert not transport.is_renewed
    assert again.receive() == [b"request"]
    with pytest.raises(ConnectionError):
        accepted.receive()


class Names(System):
    """A system on which names lead to several addresses."""

    def __init__(self, *names: tuple[str, int]) -> None:
        self._names = [name_of(host, port) for host, port in names]
        self.asked: list[tuple[str, int]] = []

    def names(self, host: str, port: int, flags: int = 0) -> list[Name]:
        self.asked.append((host, port))
        return self._names


def test_all_addresses_of_a_name_are_tried_without_a_pause(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    server = rig.server()
    system = Names(("127.0.0.1", free_port()), ("127.0.0.2", free_port()), ("127.0.0.1", server.port))
    transport = rig.transport("oncemq://broker:7000", system=system)
    # The clock stands still.
    accepted = opened(transport, server)
    assert system.asked == [("broker", 7000)]
    accepted.send([b"reply"])
    assert received(transport) == [b"reply"]


def test_a_name_is_looked_up_again_after_its_broker_was_lost(rig: Rig) -> None:
    first, second = rig.server(), rig.server()
    system = Names(("127.0.0.1", first.port), ("127.0.0.1", second.port))
    transport = rig.transport("oncemq://broker", system=system)
    for _ in range(3):
        opened(transport, first).close()
        lost(transport)
    assert system.asked == [("broker", 5554)] * 3


def test_if_all_addresses_of_a_name_are_refused_there_is_a_pause(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    system = Names(("127.0.0.1", free_port()), ("127.0.0.1", free_port()))
    transport = rig.transport("oncemq://broker", system=system)
    run_until(transport, lambda: transport.retry_ms == clock.at_ms + 20.0)
    assert len(system.asked) == 1


def test_a_name_that_does_not_exist_gets_a_pause_and_the_next_address_a_chance(rig: Rig) -> None:
    class Nameless(System):
        def names(self, host: str, port: int, flags: int = 0) -> list[Name]:
            if host == "missing":
                raise OSError(errno.ENOENT, "no such host")
            return super().names(host, port, flags)

    server = rig.server()
    opened(rig.transport("oncemq://missing", server.url, system=Nameless()), server)


def test_requests_wait_for_a_slow_name_server(rig: Rig) -> None:
    server, answered = rig.server(), threading.Event()

    class Slow(System):
        def look_up(self, host: str, port: int) -> Lookup:
            def find() -> list[Name]:
                answered.wait(DEADLINE_S)
                return [name_of("127.0.0.1", server.port)]

            return Lookup(find)

    transport = rig.transport("oncemq://broker", system=Slow())
    transport.send([b"first"])
    for _ in range(3):
        assert transport.receive() is None
        transport.wait(20)
    transport.send([b"second"])
    assert transport.descriptor == -1
    answered.set()
    accepted = opened(transport, server)
    assert [accepted.receive(), accepted.receive()] == [[b"first"], [b"second"]]
    assert not transport.is_renewed


@pytest.mark.parametrize("host", ["x" * 70, "a..b"])
def test_a_name_that_is_no_name_is_like_one_that_does_not_exist(rig: Rig, host: str) -> None:
    transport = rig.transport(f"oncemq://{host}:5554")
    lost(transport)
    assert transport.retry_ms < float("inf")


def test_without_descriptors_the_transport_tries_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted(System):
        count = 0

        def open_socket(self, family: int) -> socket.socket:
            self.count += 1
            if self.count < 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().open_socket(family)

    server = rig.server()
    transport, accepted = rig.connected(server, Exhausted())
    accepted.send([b"reply"])
    assert received(transport) == [b"reply"]


def test_a_connection_to_itself_is_not_taken_for_a_broker(rig: Rig) -> None:
    port = free_port()

    class Unlucky(System):
        """Gives the port of the broker to the socket that connects to it, once."""

        count = 0

        def open_socket(self, family: int) -> socket.socket:
            opened = super().open_socket(family)
            self.count += 1
            if self.count == 1:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                opened.bind(("127.0.0.1", port))
            return opened

    system = Unlucky()
    transport = rig.transport(f"oncemq://127.0.0.1:{port}", system=system)
    lost(transport)
    assert system.count == 1
    server = rig.server(("127.0.0.1", port))
    accepted = opened(transport, server)
    accepted.send([b"reply"])
    assert received(transport) == [b"reply"]


def test_addresses_of_different_kinds_are_refused() -> None:
    for urls in (["oncemq://a", "tcp://b:5555"], ["ipc:///x", "oncemq+unix:///y"], ["memory:", "oncemq://a"]):
        with pytest.raises(errors.SettingInvalid):
            check_urls(urls)
        with pytest.raises(errors.SettingInvalid):
            oncemq.connect(urls)
    check_urls(["oncemq://a", "oncemq+unix:///y", "oncemq://[::1]", "oncemq://[::1]:7000", "oncemq://b:1"])


@pytest.mark.parametrize("url", ["oncemq://", "oncemq+unix://", "oncemq://a:0", "oncemq://a:65536", "oncemq://a:b"])
def test_an_address_of_the_stream_transport_must_be_complete(url: str) -> None:
    with pytest.raises(errors.SettingInvalid, match="address"):
        open_transport([url])


# Threads.


def waits(transport: StreamTransport, act: Callable[[], object]) -> None:
    """Check that a wait of another thread ends after this."""
    waiting = threading.Thread(target=lambda: transport.wait(1000 * DEADLINE_S), daemon=True)
    waiting.start()
    act()
    waiting.join(DEADLINE_S / 2)
    assert not waiting.is_alive()


def test_another_thread_can_end_a_wait(rig: Rig, server: Server) -> None:
    transport, _ = rig.connected(server)
    # Before and during the wait.
    transport.wake()
    waits(transport, lambda: None)
    waits(transport, transport.wake)


def test_a_wait_ends_when_another_thread_opens_a_new_connection(rig: Rig, server: Server) -> None:
    transport, _ = rig.connected(server)
    waits(transport, transport.reconnect)


def test_a_wait_ends_when_another_thread_sends_more_than_fits(rig: Rig, server: Server) -> None:
    transport, _ = rig.connected(server)
    waits(transport, lambda: transport.send([bytes(8 * MIB)]))
    assert transport.wants_write


def test_a_wait_ends_when_a_reply_arrives_or_the_connection_is_lost(rig: Rig, server: Server) -> None:
    transport, accepted = rig.connected(server)
    waits(transport, lambda: accepted.send([b"reply"]))
    assert transport.receive() == [b"reply"]
    waits(transport, accepted.close)


def test_no_wait_is_too_long_for_the_system(rig: Rig, server: Server) -> None:
    transport, accepted = rig.connected(server)
    accepted.send([b"reply"])
    transport.wait(1e15)
    assert received(transport) == [b"reply"]


def test_very_many_wakes_do_no_harm(rig: Rig, server: Server) -> None:
    transport, accepted = rig.connected(server)
    for _ in range(2000):
        transport.wake()
    accepted.send([b"reply"])
    assert received(transport) == [b"reply"]


# Resources and counters.


def test_closing_leaves_no_descriptor(server: Server) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        transport = StreamTransport([server.url])
        accepted = opened(transport, server)
        transport.reconnect()
        server.accept().close()
        transport.close()
        accepted.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_connection_sends_at_once_and_notices_a_dead_broker(rig: Rig) -> None:
    transport, _ = rig.connected(rig.server())
    assert transport._socket is not None
    option = transport._socket.getsockopt
    assert option(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


def test_the_bytes_of_requests_and_replies_are_counted(rig: Rig, server: Server) -> None:
    transport, accepted = rig.connected(server)
    wire = transport.wire_bytes()
    assert wire is not None
    assert wire.acked <= 1
    assert wire.received == 0
    transport.send([bytes(10_000)])
    accepted.receive()

    def has_acked() -> bool:
        found = transport.wire_bytes()
        # The system counts the first byte of a TCP connection, too.
        return found is not None and 10_000 <= found.acked <= 10_013

    run_until(transport, has_acked)
    reply = b"".join(encode_message([bytes(100_000)]))
    accepted.socket.sendall(reply[:60_000])

    def has_received_a_part() -> bool:
        found = transport.wire_bytes()
        return found is not None and 59_000 < found.received <= 60_000

    run_until(transport, has_received_a_part)
    accepted.socket.sendall(reply[60_000:])
    assert [len(frame) for frame in received(transport)] == [100_000]
    wire = transport.wire_bytes()
    assert wire is not None
    assert 100_000 <= wire.received <= 100_020


def test_what_the_broker_has_not_read_is_not_counted_as_arrived(rig: Rig) -> None:
    transport, _ = rig.connected(rig.server())
    transport.send([bytes(32 * MIB)])
    wire = transport.wire_bytes()
    assert wire is not None
    assert wire.acked < 32 * MIB


def test_each_connection_is_counted_from_zero(rig: Rig, server: Server) -> None:
    transport, accepted = rig.connected(server)
    transport.send([bytes(10_000)])
    accepted.send([bytes(10_000)])
    received(transport)
    accepted.close()
    lost(transport)
    opened(transport, server)
    wire = transport.wire_bytes()
    assert wire is not None
    assert wire.acked <= 1
    assert wire.received == 0


# Clients.


def test_a_client_continues_after_a_kill_without_waiting_for_a_timeout(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect(timeout_s=10 * DEADLINE_S, tries=1) as client:
        subscription = client.subscribe("orders", "kitchen")
        assert client.put("orders", "before").offset == 0
        for number in range(2):
            oncemq_broker.kill()
            handle = client.put_nowait("orders", f"during {number}")
            oncemq_broker.start()
            assert handle.result(timeout_s=DEADLINE_S).offset == 2 * number + 1
            assert client.put("orders", f"after {number}").offset == 2 * number + 2
        found = [message.text for message in subscription.get_many(10, timeout_s=DEADLINE_S)]
        assert found == ["before", "during 0", "after 0", "during 1", "after 1"]


def test_a_get_that_waits_continues_after_a_kill(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect(timeout_s=10 * DEADLINE_S, tries=1) as client:
        subscription = client.subscribe("orders", "kitchen")
        found: list[str] = []

        def get() -> None:
            message = subscription.get(timeout_s=DEADLINE_S)
            assert message is not None
            found.append(message.text)

        getting = threading.Thread(target=get)
        getting.start()
        oncemq_broker.restart()
        with oncemq_broker.connect() as other:
            other.put("orders", "one pizza")
        getting.join(DEADLINE_S)
        assert found == ["one pizza"]


def watched(loop: asyncio.AbstractEventLoop) -> dict[int, int]:
    """Return the descriptors that an event loop watches, and for what."""
    keys = loop._selector.get_map().values()  # type: ignore[attr-defined]
    return {key.fd: key.events for key in keys}


@on_event_loop
async def test_an_asyncio_client_continues_after_a_kill_without_waiting_for_a_timeout(
    oncemq_broker: BrokerProcess,
) -> None:
    loop = asyncio.get_running_loop()
    before = watched(loop)
    async with oncemq.aio.connect(oncemq_broker.url, timeout_s=10 * DEADLINE_S, tries=1) as client:
        await client.subscribe("orders", "kitchen")
        assert (await client.put("orders", "before")).offset == 0
        transport = client._driver.transport
        seen = set()
        for number in range(1, 4):
            [descriptor] = watched(loop).keys() - before.keys()
            assert descriptor == transport.descriptor
            seen.add(os.stat(f"/proc/self/fd/{descriptor}").st_ino)
            oncemq_broker.kill()
            putting = asyncio.create_task(client.put("orders", "during"))
            await asyncio.to_thread(oncemq_broker.start)
            assert (await asyncio.wait_for(putting, DEADLINE_S)).offset == number
        assert len(seen) == 3, "each time there was another connection"
    assert watched(loop) == before


@on_event_loop
async def test_an_event_loop_watches_for_writing_only_while_something_waits_to_be_sent(
    oncemq_broker: BrokerProcess,
) -> None:
    loop = asyncio.get_running_loop()
    before = watched(loop)
    async with oncemq.aio.connect(oncemq_broker.url, timeout_s=DEADLINE_S) as client:
        await client.subscribe("orders", "kitchen")
        [descriptor] = watched(loop).keys() - before.keys()
        for _ in range(3):
            await client.put("orders", bytes(3 * MIB))
            assert watched(loop)[descriptor] == 1


@on_event_loop
async def test_an_event_loop_watches_nothing_while_there_is_no_connection(oncemq_broker: BrokerProcess) -> None:
    loop = asyncio.get_running_loop()
    before = watched(loop)
    async with oncemq.aio.connect(oncemq_broker.url, timeout_s=DEADLINE_S) as client:
        await client.subscribe("orders", "kitchen")
        oncemq_broker.kill()
        until_s = time.monotonic() + DEADLINE_S
        while watched(loop) != before:
            assert time.monotonic() < until_s
            await asyncio.sleep(0.001)
        await asyncio.to_thread(oncemq_broker.start)
        # It connects again although nobody asks for something.
        while client._driver.transport.descriptor == -1:
            assert time.monotonic() < until_s
            await asyncio.sleep(0.001)
        assert (await client.put("orders", "after")).offset == 0


def test_a_timeout_of_a_year_is_accepted(oncemq_broker: BrokerProcess) -> None:
    with oncemq_broker.connect(timeout_s=365 * 24 * 3600) as client:
        client.subscribe("orders", "kitchen")
        assert [client.put("orders", "x").offset for _ in range(3)] == [0, 1, 2]
