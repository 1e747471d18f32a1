"""A stream listener with TLS: requests and replies arrive whole, and a handshake that does not end harms nobody."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from oncemq.auth.certificates import create_authority, create_client, create_server
from oncemq.net.stream.listener import StreamListener
from oncemq.net.stream.tls_connection import TlsConnection
from oncemq.net.tls import client_context, server_context
from oncemq.protocol.frames import Frame
from oncemq.protocol.stream import encode_message
from tests.net.stream_rig import ANY_PORT, LIMITS, MIB, Rig, rigged
from tests.net.tls_peer import TlsPeer
from tests.secure_broker import FakeGate, make_keys
from tests.stream_peer import OPENING, StreamPeer, connected


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_keys(tmp_path_factory.mktemp("keys"))
    create_client(folder, "client-1")
    return folder


@pytest.fixture
def rig(keys: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rigged(getattr(request, "param", LIMITS)) as rig:
        rig.listener.use_tls(server_context(keys))
        yield rig


@pytest.fixture
def url(rig: Rig) -> str:
    return rig.listen(ANY_PORT)


@pytest.fixture
def trust(keys: Path) -> ssl.SSLContext:
    """The context of a client that trusts the listener."""
    return client_context(str(keys / "ca.pem"))


@pytest.fixture
def connect(rig: Rig, url: str, trust: ssl.SSLContext) -> Iterator[Callable[[], TlsPeer]]:
    peers: list[TlsPeer] = []

    def connect() -> TlsPeer:
        peers.append(TlsPeer(rig, url, trust))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.close()


Connect = Callable[[], TlsPeer]


# Requests and replies.


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_and_replies_arrive_whole(
    rig: Rig, connect: Connect, trust: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    trust.maximum_version = version
    peer = connect()
    peer.shake_hands()
    assert peer.socket.version() == {ssl.TLSVersion.TLSv1_2: "TLSv1.2"}.get(version, "TLSv1.3")
    peer.send_bytes(OPENING + b"".join(encode_message([b"one"]) + encode_message([b"two", b"2"])))
    assert peer.receive_opening() == {"message_bytes_max": 32 * MIB}
    assert rig.requests() == [[b"one"], [b"two", b"2"]]
    rig.listener.send(rig.name(), [b"reply", b"payload"])
    assert peer.receive() == [b"reply", b"payload"]


def test_large_requests_arrive_whole_one_right_behind_the_other(rig: Rig, connect: Connect) -> None:
    peer = connect()
    peer.open()
    sent = [os.urandom(3 * MIB + 7), b"small", os.urandom(100_000), os.urandom(2 * MIB), b"last"]
    peer.send_bytes(b"".join(b"".join(encode_message([b"header", each])) for each in sent))
    rig.serve_until(lambda: len(rig.arrived) == len(sent))
    assert rig.requests() == [[b"header", each] for each in sent]
    assert rig.listener.buffered_bytes == 0
    assert not rig.listener.waiting


def test_a_large_reply_arrives_whole_and_what_is_sent_meanwhile_comes_after_it(rig: Rig, connect: Connect) -> None:
    peer = connect()
    peer.open()
    large = os.urandom(8 * MIB)
    rig.listener.send(rig.name(), [b"header", large])
    for number in range(10):
        rig.listener.send(rig.name(), [b"later %d" % number])
    assert rig.listener.buffered_bytes > MIB
    assert peer.receive() == [b"header", large]
    assert [peer.receive() for _ in range(10)] == [[b"later %d" % number] for number in range(10)]
    assert rig.listener.buffered_bytes == 0
    # It is not watched for writing any more.
    assert rig.ready(0) == []


def test_a_reply_of_more_frames_than_one_system_call_takes_arrives_whole(rig: Rig, connect: Connect) -> None:
    peer = connect()
    peer.open()
    frames: list[Frame] = [b"%060d" % number for number in range(3000)]
    rig.listener.send(rig.name(), frames)
    assert peer.receive() == frames


def test_small_requests_that_have_arrived_together_are_served_in_one_turn(rig: Rig, connect: Connect) -> None:
    peer = connect()
    peer.open()
    # They leave together.
    peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    for number in range(200):
        peer.socket.send(b"".join(encode_message([b"%d" % number])))
    peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    [(descriptor, events)] = rig.ready()
    rig.serve_one(descriptor, events)
    assert len(rig.arrived) == 200


def test_what_is_inside_tls_is_served_although_the_socket_has_nothing_new(rig: Rig, connect: Connect) -> None:
    peer = connect()
    peer.open()
    data = b"".join(encode_message([bytes(100_000)]))
    peer.socket.send(data[:70_000][:16_000])
    peer.send_bytes(data[16_000:70_000])
    while rig.ready(50):
        rig.serve(0)
    # The rest of the large request, and another one, are received with one call.
    for part in (data[70_000:], b"".join(encode_message([b"behind it"]))):
        sent = 0
        while sent < len(part):
            sent += peer.socket.send(part[sent:])
    [(descriptor, events)] = rig.ready()
    rig.serve_one(descriptor, events)
    while rig.listener.waiting:
        [(descriptor, events)] = rig.listener.waiting
        rig.serve_one(descriptor, events)
    rig.serve_until(lambda: len(rig.arrived) == 2)
    assert rig.requests() == [[bytes(100_000)], [b"behind it"]]


def test_a_unix_socket_is_not_encrypted(rig: Rig, tmp_path: Path) -> None:
    peer = rig.peer(rig.listen(f"oncemq+unix://{tmp_path}/broker.sock"))
    peer.send([b"request"])
    rig.serve_until(lambda: bool(rig.arrived))


# Certificates.


def test_a_replaced_certificate_is_for_new_connections(
    rig: Rig, url: str, connect: Connect, trust: ssl.SSLContext, tmp_path: Path
) -> None:
    former = connect()
    former.open()
    name = rig.name()
    create_authority(tmp_path)
    create_server(tmp_path, ["localhost"])
    rig.listener.use_tls(server_context(tmp_path))
    with pytest.raises(ssl.SSLCertVerificationError):
        connect().shake_hands()
    trust.load_verify_locations(tmp_path / "ca.pem")
    later = connect()
    later.open()
    former.send([b"request"])
    later.send([b"another"])
    rig.serve_until(lambda: len(rig.arrived) == 2)
    rig.listener.send(name, [b"reply"])
    assert former.receive() == [b"reply"]


def test_the_common_name_of_a_clients_certificate_is_who_it_is(keys: Path) -> None:
    gate = FakeGate()
    with rigged(gate=gate) as rig:
        rig.listener.use_tls(server_context(keys, client_certificates=True))
        url = rig.listen(ANY_PORT)
        own = (str(keys / "client-1.pem"), str(keys / "client-1-key.pem"))
        peer = TlsPeer(rig, url, client_context(str(keys / "ca.pem"), *own))
        peer.open()
        assert gate.asked == [("certificate", "client-1", "127.0.0.1")]
        assert rig.listener.caller_of(rig.name()) == "client-1/certificate=client-1"
        without = TlsPeer(rig, url, client_context(str(keys / "ca.pem")))
        without.shake_hands()
        without.send_bytes(OPENING)
        assert without.receive_opening()["error"][0] == "UNAUTHENTICATED"
        assert gate.asked[1:] == [("none", "", "127.0.0.1")]
        for each in (peer, without):
            each.close()


def test_a_clients_certificate_of_another_authority_is_refused(keys: Path, tmp_path: Path) -> None:
    create_authority(tmp_path)
    own = create_client(tmp_path, "client-1")
    gate = FakeGate()
    with rigged(gate=gate) as rig:
        rig.listener.use_tls(server_context(keys, client_certificates=True))
        peer = TlsPeer(rig, rig.listen(ANY_PORT), client_context(str(keys / "ca.pem"), *map(str, own)))
        peer.shake_hands()
        peer.socket.send(OPENING)
        assert peer.is_disconnected()
        assert not gate.asked
        assert rig.counters["tls_failed"] == 1
        peer.close()


# Peers without TLS, and with TLS where there is none.


@pytest.mark.parametrize("sent", [OPENING, b"O", b"GET / HTTP/1.1\r\n\r\n", b"\xff\0\0\0\0\0\0\0\x01\x7f"])
def test_a_peer_without_tls_gets_an_error_that_it_can_read(
    rig: Rig, url: str, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    peer = StreamPeer(url, sent)
    rig.serve_until(lambda: rig.counters["tls_failed"] == 1)
    peer.receive_some()
    assert peer.properties == {"error": ["TLS_FAILED", "this address needs TLS: connect with tls=…"]}
    assert peer.wait_until_disconnected()
    assert len(rig.listener) == 0
    assert "this address needs TLS" in caplog.text
    peer.close()


def test_a_peer_with_tls_where_there_is_none_gets_an_error(rig: Rig, url: str, connect: Connect) -> None:
    rig.listener.use_tls(None)
    with pytest.raises(ssl.SSLError, match=r"(?i)wrong.version.number|record"):
        connect().shake_hands()
    assert rig.counters["malformed"] == 1


def test_nonsense_instead_of_a_handshake_is_disconnected(rig: Rig, url: str, caplog: pytest.LogCaptureFixture) -> None:
    peer = StreamPeer(url, b"\x16\x03\x01\x00\x30" + b"nonsense" * 10)
    rig.serve_until(lambda: rig.counters["tls_failed"] == 1)
    assert peer.wait_until_disconnected()
    assert len(rig.listener) == 0
    assert "the TLS handshake failed" in caplog.text
    peer.close()


def test_a_full_listener_does_not_answer_in_plain_text(keys: Path, connect: Connect, rig: Rig) -> None:
    rig.listener._limits = msgspec.structs.replace(LIMITS, connections_max=1)
    connect().open()
    refused = connect()
    with pytest.raises((ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        refused.shake_hands()
    assert rig.counters["connections_refused"] == 1


# Handshakes that do not end.


def hello_of(trust: ssl.SSLContext) -> bytes:
    """Return what a client sends first."""
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        trust.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


def test_a_handshake_byte_by_byte_is_a_handshake(rig: Rig, url: str, trust: ssl.SSLContext) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
    sock = connected(url)
    sock.setblocking(False)

    def send() -> None:
        for byte in outgoing.read():
            sock.send(bytes((byte,)))
            rig.serve()

    def receive() -> bool:
        send()
        try:
            incoming.write(sock.recv(65536))
        except BlockingIOError:
            rig.serve(10)
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    rig.serve_until(receive)
    tls.write(OPENING + b"".join(encode_message([b"request"])))
    send()
    rig.serve_until(lambda: bool(rig.arrived))
    assert rig.requests() == [[b"request"]]
    sock.close()


def test_a_peer_that_leaves_in_the_middle_of_its_handshake_leaves_nothing(
    rig: Rig, url: str, trust: ssl.SSLContext
) -> None:
    hello = hello_of(trust)
    for size in (0, 1, 4, 5, 6, 50, len(hello) - 1, len(hello)):
        for leave in (socket.socket.close, lambda sock: sock.shutdown(socket.SHUT_WR)):
            sock = connected(url)
            sock.sendall(hello[:size])
            rig.serve_until(lambda: len(rig.listener) == 1)
            rig.serve(0)
            leave(sock)
            rig.serve_until(lambda: not len(rig.listener))
            sock.close()
    assert not rig.listener._unopened
    assert rig.listener.buffered_bytes == 0
    assert "Traceback" not in str(rig.counters.counts)


def test_a_slow_handshake_gains_no_time(rig: Rig, url: str, trust: ssl.SSLContext) -> None:
    hello = hello_of(trust)
    sock = connected(url)
    for byte in hello[:14]:
        with contextlib.suppress(ConnectionError):
            sock.send(bytes((byte,)))
        # There is always something to receive when the listener looks.
        ready = rig.ready()
        rig.listener.check(ready)
        for descriptor, events in ready:
            rig.serve_one(descriptor, events)
        rig.system.at_s += 1.0
    assert len(rig.listener) == 0
    assert rig.counters["peers_cut_unfinished"] == 1
    sock.close()


@pytest.mark.parametrize("sent", [0, 1, 100, 10_000], ids=["nothing", "a byte", "a half", "all"])
def test_a_peer_that_does_not_finish_its_handshake_is_cut_off(
    rig: Rig, url: str, trust: ssl.SSLContext, sent: int
) -> None:
    sock = connected(url)
    sock.sendall(hello_of(trust)[:sent])
    rig.serve_until(lambda: len(rig.listener) == 1)
    rig.serve(10)
    rig.pass_s(9.0)
    assert len(rig.listener) == 1
    rig.pass_s(2.0)
    assert len(rig.listener) == 0
    sock.close()


def test_a_peer_that_is_not_opened_after_its_handshake_is_cut_off(rig: Rig, connect: Connect) -> None:
    peer = connect()
    peer.shake_hands()
    rig.serve(10)
    rig.pass_s(11.0)
    assert len(rig.listener) == 0
    assert peer.is_disconnected()


def answered(listener: StreamListener) -> int:
    """Return how many handshakes the listener has answered."""
    connections = [each for each in listener._by_descriptor.values() if isinstance(each, TlsConnection)]
    return sum(each.socket.raw_sent_bytes > 0 for each in connections)


def test_one_turn_has_a_few_steps_of_handshakes(rig: Rig, connect: Connect) -> None:
    for _ in range(30):
        with pytest.raises(ssl.SSLWantReadError):
            connect().socket.do_handshake()
    counts = [0]
    while counts[-1] < 30:
        rig.serve()
        counts.append(answered(rig.listener))
    assert all(later - earlier <= 8 for earlier, later in itertools.pairwise(counts))


@pytest.mark.parametrize("rig", [msgspec.structs.replace(LIMITS, connections_max=400)], indirect=True)
def test_a_storm_of_handshakes_is_served_in_turns_and_nobody_is_lost(rig: Rig, connect: Connect) -> None:
    good = connect()
    good.open()
    name = rig.name()
    storm = [connect() for _ in range(200)]
    waiting = {*storm}
    while waiting:
        for peer in list(waiting):
            try:
                peer.socket.do_handshake()
                waiting.discard(peer)
                peer.socket.send(OPENING)
            except ssl.SSLWantReadError:
                pass
        # Others are served meanwhile.
        good.send([b"request"])
        rig.serve_until(lambda: bool(rig.arrived))
        rig.arrived.clear()
        rig.listener.send(name, [b"reply"])
        assert good.receive() == [b"reply"]
    for peer in storm:
        peer.receive_opening()
    assert len(rig.listener) == 201
    assert not rig.counters.counts


@pytest.mark.parametrize("rig", [msgspec.structs.replace(LIMITS, connections_max=400)], indirect=True)
def test_two_thousand_peers_that_do_not_finish_their_handshake_keep_nobody_out(
    rig: Rig, url: str, connect: Connect, trust: ssl.SSLContext
) -> None:
    hello = hello_of(trust)
    hostile = []
    for number in range(2000):
        sock = connected(url)
        sock.setblocking(False)
        sock.send(hello[: (0, 1, 100, len(hello))[number % 4]])
        hostile.append(sock)
        if number % 50 == 0:
            rig.serve(0)
    rig.serve_until(lambda: len(rig.listener) == 100 and not rig.ready(0))
    assert rig.counters["peers_cut_unfinished"] == 1900
    for _ in range(20):
        connect().open()
    assert len(rig.listener) - len(rig.listener._unopened) == 20
    for sock in hostile:
        sock.close()
