"""Who may connect to a stream listener: the gate decides with the opening of each connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncemq.net.gate import Gate
from oncemq.net.stream.listener import PEER_PREFIX
from oncemq.protocol import errors
from oncemq.protocol.stream import encode_message, encode_opening
from tests.net.stream_rig import ANY_PORT, LIMITS, Rig, has_ipv6, rigged
from tests.secure_broker import FakeGate
from tests.stream_peer import OPENING, StreamPeer

KITCHEN = encode_opening({"client": "test", "auth": {"token": "omq-kitchen"}})
_REQUEST = b"".join(encode_message([b"request"]))


@pytest.fixture
def gate() -> FakeGate:
    return FakeGate()


@pytest.fixture
def rig(gate: FakeGate, request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rigged(getattr(request, "param", LIMITS), gate=gate) as rig:
        yield rig


@pytest.fixture(params=["tcp", "unix"])
def url(rig: Rig, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    return rig.listen(ANY_PORT if request.param == "tcp" else f"oncemq+unix://{tmp_path}/broker.sock")


def refusal(rig: Rig, url: str, opening: bytes) -> list[str]:
    """Return how a connection is refused. Nothing that it has sent arrives, and it is closed."""
    with StreamPeer(url, opening + _REQUEST) as peer:
        before = rig.counters["connections_refused"]
        rig.serve_until(lambda: rig.counters["connections_refused"] == before + 1)
        peer.receive_some()
        assert peer.properties is not None
        assert peer.wait_until_disconnected()
    assert not rig.arrived
    assert len(rig.listener) == 0
    found: list[str] = peer.properties["error"]
    return found


def address_of(url: str) -> str:
    return "unix" if url.startswith("oncemq+unix") else "127.0.0.1"


def test_a_token_is_who_a_connection_is(rig: Rig, url: str, gate: FakeGate) -> None:
    peer = rig.peer(url, KITCHEN + _REQUEST)
    assert gate.asked == [("token", "omq-kitchen", address_of(url))]
    [(name, [request])] = rig.arrived
    assert (name, request) == (rig.name(), b"request")
    assert name == PEER_PREFIX + (1).to_bytes(8, "big") + b"kitchen/one"
    assert rig.listener.caller_of(name) == "kitchen/one"
    assert rig.listener.is_connected(name)
    rig.listener.send(name, [b"reply"])
    assert peer.receive() == [b"reply"]
    assert gate.inside == {"kitchen/one": 1}


@pytest.mark.parametrize(
    ("auth", "asked"),
    [
        ({"token": "omq-unknown"}, ("token", "omq-unknown")),
        ({"token": ""}, ("none", "")),
        ({}, ("none", "")),
        ({"password": "of another version"}, ("none", "")),
        (None, None),
        ("omq-kitchen", None),
        ({"token": 7}, None),
        ({"token": b"omq-kitchen"}, None),
        ({"token": ["omq-kitchen"]}, None),
    ],
)
def test_others_are_told_why_they_are_refused(
    rig: Rig, url: str, gate: FakeGate, auth: Any, asked: tuple[str, str] | None
) -> None:
    code, text = refusal(rig, url, encode_opening({"auth": auth}))
    if asked is None:
        assert (code, "`auth`" in text) == ("MALFORMED", True)
        assert gate.asked == []
    else:
        assert (code, text) == ("UNAUTHENTICATED", "the credentials are not valid")
        assert gate.asked == [(*asked, address_of(url))]
    assert not +gate.inside


def test_without_credentials_a_connection_is_refused_unless_there_are_no_users(
    rig: Rig, url: str, gate: FakeGate
) -> None:
    assert refusal(rig, url, OPENING)[0] == "UNAUTHENTICATED"
    gate.is_open = True
    rig.peer(url)
    assert rig.listener.caller_of(rig.name()) == ""
    assert gate.inside == {"": 1}


@pytest.mark.parametrize(
    "error", [errors.RateLimited("later"), errors.QuotaReached("too many"), errors.LimitReached("too many")]
)
def test_whatever_the_gate_says_is_passed_on(
    rig: Rig, url: str, gate: FakeGate, monkeypatch: pytest.MonkeyPatch, error: errors.OnceMQError
) -> None:
    def refuse(*_: str) -> str:
        raise error

    monkeypatch.setattr(gate, "admit", refuse)
    assert refusal(rig, url, KITCHEN) == [error.code, error.text]


def test_each_connection_leaves_once_however_it_ends(rig: Rig, url: str, gate: FakeGate) -> None:
    peers = [rig.peer(url, KITCHEN) for _ in range(4)]
    names = [*rig.listener._by_peer]
    assert gate.inside == {"kitchen/one": 4}
    peers[0].close()
    rig.serve_until(lambda: len(rig.listener) == 3)
    peers[1].socket.sendall(bytes(12))
    rig.serve_until(lambda: len(rig.listener) == 2)
    rig.listener.disconnect(names[2])
    rig.listener.disconnect(names[2])
    assert gate.inside == {"kitchen/one": 1}
    rig.listener.close()
    assert gate.inside == {"kitchen/one": 0}


def test_those_who_were_not_admitted_do_not_leave(rig: Rig, url: str, gate: FakeGate) -> None:
    with rig.peer(url, b""):
        pass
    with rig.peer(url, KITCHEN[:-1]):
        pass
    rig.serve_until(lambda: not len(rig.listener))
    refusal(rig, url, OPENING)
    assert not gate.inside


def test_peers_whose_credentials_were_removed_are_disconnected(rig: Rig, url: str, gate: FakeGate) -> None:
    kitchen, other = rig.peer(url, KITCHEN), rig.peer(url, KITCHEN)
    waiter = rig.peer(url, encode_opening({"auth": {"token": "omq-waiter"}}))
    name = rig.name()
    unopened = rig.peer(url, b"")
    gone: list[bytes] = []
    rig.listener.when_gone = gone.append
    rig.listener.drop_invalid()
    assert len(rig.listener) == 4
    gate.revoked = {"kitchen/one"}
    rig.listener.drop_invalid()
    assert [rig.listener.caller_of(peer) for peer in gone] == ["kitchen/one"] * 2
    for peer in (kitchen, other):
        assert peer.wait_until_disconnected()
    assert rig.counters["peers_cut_revoked"] == 2
    waiter.send([b"request"])
    rig.serve_until(lambda: bool(rig.arrived))
    rig.listener.send(name, [b"reply"])
    assert waiter.receive() == [b"reply"]
    unopened.socket.sendall(KITCHEN)
    rig.serve_until(lambda: rig.counters["connections_refused"] == 1)
    assert +gate.inside == {"waiter/two": 1}


def test_no_log_line_contains_a_token(rig: Rig, url: str, gate: FakeGate, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    secret = "omq-very-secret"
    for auth in ({"token": secret}, {"token": [secret]}, secret, {"token": secret, secret: 1}):
        refusal(rig, url, encode_opening({"auth": auth}))
    peer = StreamPeer(url, encode_opening({"auth": {"token": secret}})[:-3])
    rig.serve_until(lambda: len(rig.listener) == 1)
    rig.pass_s(11.0)
    broken = StreamPeer(url, b"ONCEMQ\x01\0\x20\0\0\0\x81\xa4auth\x81\xa5token\xb0" + secret.encode() + b"\xc1" * 9)
    rig.serve_until(lambda: bool(rig.counters["malformed"]))
    gate.tokens[secret] = "secret/three"
    rig.peer(url, encode_opening({"auth": {"token": secret}}))
    gate.revoked = {"secret/three"}
    rig.listener.drop_invalid()
    assert len(caplog.records) >= 7
    assert secret not in caplog.text
    for each in (peer, broken):
        each.close()


def test_a_peer_that_is_gone_when_its_opening_is_read_is_not_admitted(rig: Rig, gate: FakeGate) -> None:
    with StreamPeer(rig.listen(), KITCHEN) as peer:
        rig.serve_until(lambda: len(rig.listener) == 1)
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    rig.serve_until(lambda: not len(rig.listener))
    assert not +gate.inside


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_the_address_of_a_peer_has_one_form(rig: Rig, gate: FakeGate) -> None:
    port = int(rig.listen("oncemq://[::1]:*").rpartition(":")[2])
    with socket.create_connection(("::1", port)) as sock:
        sock.sendall(KITCHEN)
        rig.serve_until(lambda: bool(gate.asked))
    both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    rig.listener._start(both)
    with socket.create_connection(("127.0.0.1", both.getsockname()[1])) as sock:
        sock.sendall(KITCHEN)
        rig.serve_until(lambda: len(gate.asked) == 2)
    assert [address for _, _, address in gate.asked] == ["::1", "127.0.0.1"]


# Connections that are not opened.


@pytest.mark.parametrize("rig", [msgspec.structs.replace(LIMITS, connections_max=10)], indirect=True)
def test_connections_that_are_not_opened_take_no_place_of_others(rig: Rig, url: str, gate: FakeGate) -> None:
    silent = [rig.peer(url, b"") for _ in range(64)]
    good = [rig.peer(url, KITCHEN) for _ in range(10)]
    assert gate.inside == {"kitchen/one": 10}
    assert not rig.counters["connections_refused"]
    # One more is told so at once, and one that was not opened in time is told so with its opening.
    for late in (StreamPeer(url, KITCHEN), silent[-1]):
        if late is silent[-1]:
            late.socket.sendall(KITCHEN)
        rig.serve()
        late.receive_some()
        assert late.properties == {"error": ["LIMIT_REACHED", "there are too many connections"]}
        late.close()
    assert gate.inside == {"kitchen/one": 10}
    good[0].close()
    rig.serve_until(lambda: gate.inside == {"kitchen/one": 9})
    rig.peer(url, KITCHEN)
    assert gate.inside == {"kitchen/one": 10}


@pytest.mark.parametrize("rig", [msgspec.structs.replace(LIMITS, connections_max=400)], indirect=True)
def test_of_too_many_connections_that_are_not_opened_the_oldest_goes(rig: Rig, url: str) -> None:
    silent = [rig.peer(url, b"") for _ in range(100)]
    half = rig.peer(url, KITCHEN[:5])
    assert rig.counters["peers_cut_unfinished"] == 1
    assert silent[0].wait_until_disconnected()
    silent[1].socket.sendall(KITCHEN + _REQUEST)
    rig.serve_until(lambda: bool(rig.arrived))
    half.socket.sendall(KITCHEN[5:] + _REQUEST)
    rig.serve_until(lambda: len(rig.arrived) == 2)
    assert len(rig.listener) == 100


@pytest.mark.parametrize("rig", [msgspec.structs.replace(LIMITS, connections_max=100)], indirect=True)
def test_of_many_clients_that_connect_at_the_same_time_none_is_lost(rig: Rig, url: str, gate: FakeGate) -> None:
    peers = [StreamPeer(url, KITCHEN + _REQUEST) for _ in range(100)]
    rig.serve_until(lambda: len(rig.arrived) == 100)
    assert gate.inside == {"kitchen/one": 100}
    assert not rig.counters.counts
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("rig", [msgspec.structs.replace(LIMITS, connections_max=400)], indirect=True)
@pytest.mark.parametrize("sent", [b"", KITCHEN[:-1]], ids=["silent", "half an opening"])
def test_two_thousand_connections_that_never_authenticate_keep_nobody_out(
    rig: Rig, url: str, gate: FakeGate, sent: bytes
) -> None:
    hostile = []
    for number in range(2000):
        hostile.append(StreamPeer(url, sent))
        if number % 100 == 0:
            rig.serve_all()
            rig.peer(url, KITCHEN)
    assert gate.inside == {"kitchen/one": 20}
    assert len(rig.listener) <= 120
    for peer in hostile:
        peer.close()


def test_without_a_gate_everybody_is_admitted_and_the_token_is_ignored(tmp_path: Path) -> None:
    nobody: Gate | None = None
    with rigged(gate=nobody) as rig:
        url = rig.listen()
        for opening in (OPENING, KITCHEN, encode_opening({"auth": 7})):
            rig.peer(url, opening + _REQUEST)
            assert rig.requests() == [[b"request"]]
            assert rig.listener.caller_of(rig.name()) == ""
        rig.listener.drop_invalid()
        assert len(rig.listener) == 3
