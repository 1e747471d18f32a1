"""A stream listener serves its connections over real sockets: requests and replies arrive whole, for every peer."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq.net.poller import READABLE, WRITABLE
from oncemq.net.stream.listener import PEER_PREFIX
from oncemq.net.system import System
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.stream import encode_message
from tests.net.stream_rig import ANY_PORT, LIMITS, MIB, ManualClock, Names, Rig, has_ipv6, name_of, received, rigged
from tests.stream_peer import OPENING, StreamPeer, connected

_HANG_UP = 0x10 | 0x8


@pytest.fixture
def rig() -> Iterator[Rig]:
    with rigged() as rig:
        yield rig


@pytest.fixture(params=["tcp", "unix"])
def url(rig: Rig, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The listener's address."""
    return rig.listen(ANY_PORT if request.param == "tcp" else f"oncemq+unix://{tmp_path}/broker.sock")


# Requests and replies.


def test_requests_right_behind_the_opening_are_served_and_the_opening_is_answered(rig: Rig, url: str) -> None:
    peer = rig.peer(url, OPENING + b"".join(encode_message([b"one"]) + encode_message([b"two", b"2"])))
    assert rig.requests() == [[b"one"], [b"two", b"2"]]
    rig.listener.send(rig.name(), [b"reply", b"payload"])
    assert peer.receive() == [b"reply", b"payload"]
    assert peer.properties == {"message_bytes_max": 32 * MIB}


def test_each_connection_has_a_name_of_its_own_that_is_not_used_again(rig: Rig, url: str) -> None:
    names = set()
    for _ in range(3):
        with rig.peer(url):
            names.add(rig.name())
        rig.serve_until(lambda: not len(rig.listener))
    assert len(names) == 3
    assert all(name.startswith(PEER_PREFIX) for name in names)


def test_a_request_that_arrives_byte_by_byte_is_whole(rig: Rig, url: str) -> None:
    peer = rig.peer(url, b"")
    for byte in OPENING + b"".join(encode_message([b"header", b"payload"])):
        assert not rig.arrived
        peer.socket.send(bytes((byte,)))
        rig.serve()
    rig.serve_until(lambda: bool(rig.arrived))
    assert rig.requests() == [[b"header", b"payload"]]
    assert rig.listener.buffered_bytes == 0


def test_a_request_that_arrives_in_parts_of_any_size_is_whole(rig: Rig, url: str) -> None:
    large = os.urandom(3 * MIB)
    data = b"".join(encode_message([b"header", large, b"end"]))
    peer = rig.peer(url)
    for begin in range(0, len(data), 77_777):
        peer.socket.sendall(data[begin : begin + 77_777])
        rig.serve_all()
    rig.serve_until(lambda: bool(rig.arrived))
    assert rig.requests() == [[b"header", large, b"end"]]
    assert rig.listener.buffered_bytes == 0


def test_a_reply_that_does_not_fit_into_the_socket_arrives_whole(rig: Rig, url: str) -> None:
    peer = rig.peer(url, receive_buffer_bytes=4096)
    large = os.urandom(8 * MIB)
    rig.listener.send(rig.name(), [b"header", large])
    for number in range(10):
        rig.listener.send(rig.name(), [b"later %d" % number])
    assert rig.listener.buffered_bytes > MIB
    first, *others = received(peer, rig, 11)
    assert first == [b"header", large]
    assert others == [[b"later %d" % number] for number in range(10)]
    assert rig.listener.buffered_bytes == 0
    # It is not watched for writing any more.
    assert rig.ready(0) == []


def test_a_reply_of_more_frames_than_one_system_call_takes_arrives_whole(rig: Rig, url: str) -> None:
    peer = rig.peer(url)
    frames: list[Frame] = [b"%060d" % number for number in range(3000)]
    rig.listener.send(rig.name(), frames)
    assert received(peer, rig, 1) == [frames]


def test_more_replies_than_one_system_call_takes_arrive_in_order(rig: Rig, url: str) -> None:
    peer = rig.peer(url, receive_buffer_bytes=4096)
    rig.listener.send(rig.name(), [bytes(8 * MIB)])
    for number in range(3000):
        rig.listener.send(rig.name(), [b"%d" % number])
    assert received(peer, rig, 3001)[1:] == [[b"%d" % number] for number in range(3000)]


def test_a_peer_that_does_not_read_delays_nobody(rig: Rig, url: str) -> None:
    rig.peer(url, receive_buffer_bytes=4096)
    rig.listener.send(rig.name(), [bytes(8 * MIB)])
    other = rig.peer(url)
    for number in range(10):
        other.send([b"request %d" % number])
        rig.serve_until(lambda: bool(rig.arrived))
        [(name, [request])] = rig.arrived
        rig.arrived.clear()
        rig.listener.send(name, [b"reply to " + request])
        assert other.receive() == [b"reply to request %d" % number]


def test_one_turn_of_a_connection_is_one_receive_call(rig: Rig, url: str) -> None:
    peer = rig.peer(url)
    peer.socket.sendall(8 * b"".join(encode_message([bytes(10_000)])))
    [(descriptor, events)] = rig.ready()
    rig.serve_one(descriptor, events)
    assert 0 < len(rig.arrived) < 8


def test_the_listener_says_that_more_of_a_large_request_may_wait(rig: Rig, url: str) -> None:
    peer = rig.peer(url)
    data = b"".join(encode_message([bytes(100_000)]))
    peer.socket.sendall(data[:70_000])
    [(descriptor, events)] = rig.ready()
    assert rig.serve_one(descriptor, events)
    peer.socket.sendall(data[70_000:])
    while not rig.arrived:
        [(descriptor, events)] = rig.ready()
        # The next one may be large too.
        assert rig.serve_one(descriptor, events)
    peer.send([b"small"])
    [(descriptor, events)] = rig.ready()
    assert not rig.serve_one(descriptor, events)


# The end of a connection.


def test_a_reply_to_a_peer_that_is_gone_is_dropped(rig: Rig, url: str) -> None:
    with rig.peer(url):
        name = rig.name()
    rig.serve_until(lambda: not len(rig.listener))
    assert rig.listener.is_reading(name)
    rig.listener.send(name, [b"reply"])
    rig.listener.send(PEER_PREFIX + bytes(8), [b"reply"])


def test_a_peer_that_resets_its_connection_is_forgotten(rig: Rig) -> None:
    peer = rig.peer(rig.listen())
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    rig.listener.send(rig.name(), [bytes(16 * MIB)])
    peer.close()
    rig.serve_until(lambda: not len(rig.listener))
    assert rig.listener.buffered_bytes == 0


def test_a_peer_that_sends_no_more_gets_the_replies_of_the_same_round(rig: Rig, url: str) -> None:
    peer = rig.peer(url)
    peer.send([b"last request"])
    peer.socket.shutdown(socket.SHUT_WR)
    rig.serve_until(lambda: bool(rig.arrived))
    rig.listener.send(rig.name(), [b"last reply"])
    assert peer.receive() == [b"last reply"]
    rig.serve_until(lambda: not len(rig.listener))
    assert peer.wait_until_disconnected()


def test_a_peer_that_has_gone_before_it_was_accepted_takes_no_place(rig: Rig, url: str) -> None:
    for _ in range(5):
        sock = connected(url)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    rig.serve()
    rig.serve_until(lambda: not len(rig.listener))


@pytest.mark.parametrize("events", [READABLE, WRITABLE, READABLE | WRITABLE, READABLE | _HANG_UP])
def test_news_of_a_connection_that_was_closed_is_not_taken_for_news_of_its_successor(
    rig: Rig, url: str, events: int
) -> None:
    former = rig.peer(url)
    descriptor = rig.connection().descriptor
    former.close()
    rig.serve_until(lambda: not len(rig.listener))
    # Nobody has the descriptor, and then the next connection has.
    assert not rig.serve_one(descriptor, events)
    peer = rig.peer(url)
    assert rig.connection().descriptor == descriptor
    assert not rig.serve_one(descriptor, events)
    assert len(rig.listener) == 1
    peer.send([b"request"])
    rig.serve_until(lambda: bool(rig.arrived))
    rig.listener.send(rig.name(), [b"reply"])
    assert peer.receive() == [b"reply"]


def test_a_descriptor_that_is_used_again_within_one_round_belongs_to_the_new_connection(rig: Rig, url: str) -> None:
    former, other = rig.peer(url), rig.peer(url)
    descriptor = next(iter(rig.listener._by_descriptor))
    other.send([b"request of the other one"])
    former.close()
    successor = StreamPeer(url, OPENING + b"".join(encode_message([b"request of the successor"])))
    # The connection is closed, another one is accepted, and a second look at the same result finds the descriptor.
    for each in (descriptor, *rig.listener._listening, descriptor):
        rig.serve_one(each, READABLE)
    assert rig.connection().descriptor == descriptor
    rig.serve_until(lambda: len(rig.arrived) == 2)
    assert sorted(rig.requests()) == [[b"request of the other one"], [b"request of the successor"]]
    successor.close()


def test_the_owner_of_the_listener_can_end_a_connection(rig: Rig, url: str) -> None:
    peer = rig.peer(url)
    name = rig.name()
    rig.peer(url)
    assert rig.listener.is_connected(name)
    rig.listener.disconnect(name)
    rig.listener.disconnect(name)
    assert not rig.listener.is_connected(name)
    assert peer.wait_until_disconnected()
    assert len(rig.listener) == 1


def test_closing_ends_all_connections_and_removes_the_files(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    before = open_descriptors()
    with rigged() as rig:
        urls = [rig.listen(), rig.listen(f"oncemq+unix://{path}")]
        peers = [rig.peer(url) for url in urls]
        rig.listener.send(rig.name(), [bytes(8 * MIB)])
        rig.listener.close()
        assert not path.exists()
        assert all(peer.wait_until_disconnected() for peer in peers)
        assert len(rig.listener) == rig.listener.buffered_bytes == 0
        for url in urls:
            with pytest.raises(OSError, match=r"refused|No such file"):
                connected(url)
        rig.listener.close()
    assert open_descriptors() == before


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# Bytes that break the rules.


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "does not use the stream protocol"),
        (b"ONCEMQ\x02\0\0\0\0\0", "version 2"),
        (b"ONCEMQ\x01\0\xff\xff\xff\xff", "bytes of properties"),
        (b"ONCEMQ\x01\0\x01\0\0\0\xc1", "could not be decoded"),
    ],
)
def test_a_peer_with_another_opening_is_told_why_and_disconnected(rig: Rig, url: str, sent: bytes, why: str) -> None:
    peer = rig.peer(url, b"")
    peer.socket.sendall(sent)
    rig.serve()
    assert len(rig.listener) == 0
    peer.receive_some()
    assert peer.properties is not None
    code, text = peer.properties["error"]
    assert code == "MALFORMED"
    assert why in text
    assert peer.wait_until_disconnected()
    assert rig.counters["malformed"] == 1


@pytest.mark.parametrize("sent", [bytes(12), struct.pack("<I", 32 * MIB + 1), struct.pack("<III", 8, 1, 1)])
def test_a_peer_with_a_broken_message_is_disconnected(rig: Rig, url: str, sent: bytes) -> None:
    peer = rig.peer(url)
    peer.socket.sendall(sent)
    rig.serve_until(lambda: not len(rig.listener))
    assert peer.wait_until_disconnected()
    assert rig.counters["malformed"] == 1
    assert not rig.arrived


def test_the_end_of_one_peer_harms_no_other(rig: Rig, url: str) -> None:
    good = rig.peer(url)
    name = rig.name()
    for sent in (b"nonsense", OPENING + bytes(12), OPENING[:5]):
        bad = rig.peer(url, b"")
        bad.socket.sendall(sent)
        bad.close()
    rig.serve_until(lambda: len(rig.listener) == 1)
    good.send([b"request"])
    rig.serve_until(lambda: bool(rig.arrived))
    rig.listener.send(name, [b"reply"])
    assert good.receive() == [b"reply"]


# Addresses.


def test_a_chosen_port_is_part_of_the_address(rig: Rig) -> None:
    url = rig.listen("oncemq://127.0.0.1:*")
    assert url.startswith("oncemq://127.0.0.1:")
    assert not url.endswith((":*", ":0"))
    assert rig.peer(url).socket.getpeername()[1] == int(url.rpartition(":")[2])


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_ipv6_is_served(rig: Rig) -> None:
    url = rig.listen("oncemq://[::1]:*")
    assert url.startswith("oncemq://[::1]:")
    with socket.create_connection(("::1", int(url.rpartition(":")[2]))) as peer:
        peer.sendall(OPENING + b"".join(encode_message([b"request"])))
        rig.serve_until(lambda: bool(rig.arrived))


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_name_with_an_address_of_each_family_is_served_at_one_port_on_both() -> None:
    with rigged(system=Names("127.0.0.1", "::1", "127.0.0.1")) as rig:
        url = rig.listen("oncemq://localhost:*")
        assert url.startswith("oncemq://localhost:")
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, int(url.rpartition(":")[2]))) as peer:
                peer.sendall(OPENING + b"".join(encode_message([host.encode()])))
                rig.serve_until(lambda: bool(rig.arrived))
                assert rig.requests() == [[host.encode()]]


def test_all_hosts_are_named_in_the_address() -> None:
    system = Names("127.0.0.1")
    with rigged(system=system) as rig:
        assert rig.listen("oncemq://*:*").startswith("oncemq://0.0.0.0:")
        assert system.asked == ["0.0.0.0"]


def test_an_address_that_this_machine_does_not_have_is_left_out() -> None:
    with rigged(system=Names("198.51.100.1", "127.0.0.1")) as rig:
        peer = rig.peer(rig.listen("oncemq://example:*").replace("example", "127.0.0.1"))
        peer.send([b"request"])
        rig.serve_until(lambda: bool(rig.arrived))


def test_if_this_machine_has_none_of_the_addresses_listening_fails() -> None:
    with rigged(system=Names("198.51.100.1", "203.0.113.1")) as rig, pytest.raises(errors.ListenFailed, match="assign"):
        rig.listen("oncemq://example:*")


@pytest.mark.parametrize("host", ["x" * 70, "a..b"])
def test_a_name_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(OSError, match="name"):
        System().names(host, 5554)
    with rigged() as rig, pytest.raises(errors.ListenFailed, match=f"can't listen at oncemq://{host}:5554"):
        rig.listen(f"oncemq://{host}:5554")


def test_a_port_that_is_in_use_is_refused_and_nothing_is_left_open(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        before = open_descriptors()
        port = other.getsockname()[1]
        with pytest.raises(errors.ListenFailed, match=f"can't listen at oncemq://127.0.0.1:{port}: .*in use"):
            rig.listen(f"oncemq://127.0.0.1:{port}")
        assert open_descriptors() == before
    assert rig.listen(f"oncemq://127.0.0.1:{port}") == f"oncemq://127.0.0.1:{port}"


def test_if_one_address_of_a_name_is_in_use_the_others_are_not_kept() -> None:
    with socket.create_server(("127.0.0.2", 0)) as other, rigged(system=Names("127.0.0.1", "127.0.0.2")) as rig:
        before = open_descriptors()
        with pytest.raises(errors.ListenFailed, match="in use"):
            rig.listen(f"oncemq://example:{other.getsockname()[1]}")
        assert open_descriptors() == before


# Unix sockets.


def test_the_file_of_a_broker_that_died_is_replaced(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    peer = rig.peer(rig.listen(f"oncemq+unix://{path}"))
    peer.send([b"request"])
    rig.serve_until(lambda: bool(rig.arrived))


@pytest.mark.parametrize("has_full_queue", [False, True])
def test_the_file_of_a_running_broker_is_not_replaced(rig: Rig, tmp_path: Path, has_full_queue: bool) -> None:
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as running, socket.socket(socket.AF_UNIX) as waiting:
        running.bind(str(path))
        running.listen(0 if has_full_queue else 5)
        if has_full_queue:
            waiting.connect(str(path))
        with pytest.raises(errors.ListenFailed, match="in use"):
            rig.listen(f"oncemq+unix://{path}")
        assert path.exists()
        if not has_full_queue:
            waiting.connect(str(path))
    # It was not this listener's file.
    rig.listener.close()
    assert path.exists()


def test_a_file_that_is_no_socket_is_not_replaced(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "important"
    path.write_text("do not lose this")
    (tmp_path / "link").symlink_to(path)
    for name in ("important", "link"):
        with pytest.raises(errors.ListenFailed, match="in use"):
            rig.listen(f"oncemq+unix://{tmp_path / name}")
    assert path.read_text() == "do not lose this"
    with pytest.raises(errors.ListenFailed, match="in use"):
        rig.listen(f"oncemq+unix://{tmp_path}")


@pytest.mark.parametrize("path", ["missing/broker.sock", "x" * 200])
def test_a_path_that_can_not_be_bound_is_refused(rig: Rig, tmp_path: Path, path: str) -> None:
    before = open_descriptors()
    with pytest.raises(errors.ListenFailed, match=r"can't listen at oncemq\+unix://.*(No such file|too long)"):
        rig.listen(f"oncemq+unix://{tmp_path}/{path}")
    assert open_descriptors() == before


@pytest.mark.parametrize("umask", [0o077, 0o000])
@pytest.mark.parametrize("mode", ["0600", "0660", "0666"])
def test_the_file_has_the_mode_of_the_settings(rig: Rig, tmp_path: Path, umask: int, mode: str) -> None:
    former = os.umask(umask)
    try:
        rig.listen(f"oncemq+unix://{tmp_path}/broker.sock", mode)
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "broker.sock").stat().st_mode) == int(mode, 8)


def test_closing_does_not_need_the_file(tmp_path: Path) -> None:
    with rigged() as rig:
        rig.listen(f"oncemq+unix://{tmp_path}/broker.sock")
        (tmp_path / "broker.sock").unlink()


def test_an_abstract_unix_socket_has_no_file(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"oncemq-test-{secrets.token_hex(8)}"
    assert rig.listen(f"oncemq+unix://@{name}") == f"oncemq+unix://@{name}"
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(f"\0{name}")
        peer.sendall(OPENING + b"".join(encode_message([b"request"])))
        rig.serve_until(lambda: bool(rig.arrived))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(errors.ListenFailed, match="in use"):
        rig.listen(f"oncemq+unix://@{name}")


# Options of TCP connections.


def test_a_connection_sends_at_once_and_notices_a_dead_peer(rig: Rig) -> None:
    rig.peer(rig.listen())
    option = rig.connection().socket.getsockopt
    assert option(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
    assert option(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 10
    assert option(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
    # The listener itself disconnects peers that do not read, and counts them. The system would only end the connection.
    assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) >= 1000 * (LIMITS.write_timeout_s + 2.0)


# Descriptors.


class Exhausted(ManualClock):
    """A system whose listening sockets fail on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: int | None = None

    def open_socket(self, family: int) -> socket.socket:
        system = self

        class Listening(socket.socket):
            def accept(self) -> tuple[socket.socket, object]:
                if system.failure is not None:
                    code = system.failure
                    if code == errno.ECONNABORTED:
                        system.failure = None
                    raise OSError(code, os.strerror(code))
                return super().accept()

        return Listening(family, socket.SOCK_STREAM)


def test_without_descriptors_connections_wait_and_the_others_are_served() -> None:
    system = Exhausted()
    with rigged(system=system) as rig:
        url = rig.listen()
        peer = rig.peer(url)
        system.failure = errno.EMFILE
        waiting = StreamPeer(url)
        rig.serve()
        assert rig.counters["connections_refused"] == 1
        # The listening socket is not watched: it would be ready all the time.
        assert rig.ready(0) == []
        peer.send([b"request"])
        rig.serve()
        assert rig.requests() == [[b"request"]]
        system.failure = None
        rig.pass_s(0.1)
        rig.pass_s(1.0)
        waiting.send([b"later"])
        rig.serve_until(lambda: bool(rig.arrived))
        waiting.close()


def test_a_connection_that_was_aborted_before_it_was_accepted_is_skipped() -> None:
    system = Exhausted()
    with rigged(system=system) as rig:
        system.failure = errno.ECONNABORTED
        peer = rig.peer(rig.listen())
        peer.send([b"request"])
        rig.serve_until(lambda: bool(rig.arrived))
        assert not rig.counters.counts


def test_names_lead_to_the_families_that_they_have() -> None:
    assert System().names("127.0.0.1", 5554) == [name_of("127.0.0.1", 5554)]
