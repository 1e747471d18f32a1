"""Extended packets with MACs over real sockets, at a broker that has users."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from examples.datagrams.peers import (
    ACK,
    BYE,
    CHALLENGE,
    FROM_THE_EARLIEST,
    HELLO,
    MAGIC,
    MAGIC_WITH_MAC,
    NOT_NOW,
    PUT,
    REFUSED,
    Macs,
    Peer,
    Publisher,
    Refused,
    Subscriber,
    find_end,
)

from oncemq.auth.tokens import new_token, stored, token_id
from oncemq.testing.broker_process import BrokerProcess, free_port
from tests.forking import ForkedBroker
from tests.gateways.hosts import TIMEOUT_S
from tests.gateways.udp.proxy import LossyProxy
from tests.gateways.udp.rig import GatewayProcess, GatewayThread, PlainClient, wait_until
from tests.gateways.udp.users import BrokerWithUsers

Address = tuple[str, int]


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerWithUsers]:
    broker = BrokerWithUsers(tmp_path_factory.mktemp("users"))
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def gateway(users: BrokerWithUsers) -> Iterator[GatewayThread]:
    gateway = GatewayThread([users.url], is_plain=False, loopback_is_validated=False)
    yield gateway
    gateway.stop()
    assert gateway.counter("bugs") == 0


class Recorder:
    """A socket of a peer that keeps what was sent, and can send it again, from the same address."""

    def __init__(self, peer: Peer) -> None:
        self._socket = peer.socket
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        peer.socket = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send(self, packet: bytes) -> int:
        self.sent.append(packet)
        return self._socket.send(packet)

    def recv(self, size: int) -> bytes:
        self.received.append(self._socket.recv(size))
        return self.received[-1]

    def of_kind(self, kind: int) -> list[bytes]:
        return [packet for packet in self.sent if packet[1] == kind]

    def repeat(self, packet: bytes) -> None:
        self._socket.send(packet)


class Silent(Peer):
    """A peer that only sends what it is told to."""

    def receive(self) -> bytes:
        self.socket.settimeout(TIMEOUT_S)
        return self.socket.recv(65_536)

    def hello_packet(self, role: int = 1, name: str = "silent", token: int = 0) -> bytes:
        head = struct.pack(">BBQ", MAGIC, HELLO, token)
        packet = head + struct.pack(">BQQQq", role, self.nonce, 0, 0, -1) + bytes([len(name)]) + name.encode() + b"\0"
        return self.macs.seal(packet, token, self.nonce) if self.macs else packet

    def ask(self, packet: bytes) -> bytes:
        self.socket.send(packet)
        return self.receive()


def silent(gateway: GatewayThread, access_token: str = "") -> Silent:
    return Silent(gateway.address, 1, "silent", access_token=access_token)


def publisher_of(gateway: GatewayThread, users: BrokerWithUsers, name: str, user: str = "alice") -> Publisher:
    return Publisher(gateway.address, name, timeout_s=TIMEOUT_S, access_token=users.token(user))


def end_of(gateway: GatewayThread, users: BrokerWithUsers, topic: str) -> int:
    return find_end(gateway.address, topic, access_token=users.token("alice"))


def is_unanswered(gateway: GatewayThread, peer: Peer) -> bool:
    """Return whether a peer has got nothing, when the gateway has handled all that was sent to it before."""
    with closing(PlainClient(gateway.address)) as client:
        before = gateway.counter("malformed")
        client.send(b"\xf2")
        wait_until(lambda: gateway.counter("malformed") > before, "it is received")
    try:
        return not peer.socket.recv(65_536)
    except BlockingIOError:
        return True


def names(gateway: GatewayThread) -> list[str]:
    """Return the last parts of the identities of the peers that are served."""
    return [peer.identity[-1] for peer in gateway.gateway._extended.peers]


# With the right token.


def test_what_a_user_puts_arrives_once_and_in_order(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    with closing(publisher_of(gateway, users, "maker")) as publisher:
        publisher.put("fresh", b"0", create=True)
        publisher.flush()
        token = users.token("alice")
        with closing(Subscriber(gateway.address, "fresh", "reader", access_token=token)) as subscriber:
            for number in range(1, 201):
                publisher.put("fresh", b"%d" % number)
            publisher.flush()
            got = [int(content) for _, (_, content) in zip(range(200), subscriber.messages(TIMEOUT_S), strict=False)]
            subscriber.finish()
    assert got == list(range(1, 201))
    assert publisher.refusals == {}
    assert end_of(gateway, users, "fresh") == 201
    assert "udp/alice/maker" in users.sessions
    wait_until(lambda: not {"udp/alice/maker", "reader"} & {*names(gateway)}, "they have left")


def test_everything_arrives_once_through_a_bad_network_while_the_gateway_is_killed(
    users: BrokerWithUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.datagrams.peers.RESEND_S_MAX", 0.2)
    count, token = 100, users.token("alice")
    gateway = GatewayProcess([users.url], name="lossy")
    gateway.start()
    proxy = LossyProxy(gateway.address, 4, loss=0.3, doubling=0.2, delay_s=0.02)

    def publish(address: Address, name: str, count: int) -> None:
        with closing(Publisher(address, name, timeout_s=TIMEOUT_S, access_token=token)) as publisher:
            for number in range(count):
                publisher.put("travelled", b"%d" % number, create=True)
            publisher.flush()

    try:
        publish(gateway.address, "first", 1)
        subscriber = Subscriber(proxy.address, "travelled", "reader", timeout_s=TIMEOUT_S, access_token=token)
        thread = threading.Thread(target=publish, args=(proxy.address, "traveller", count), daemon=True)
        thread.start()
        got = []
        for _, content in subscriber.messages(TIMEOUT_S):
            got.append(int(content))
            if len(got) == count // 2:
                gateway.restart()
            if len(got) == count:
                break
        thread.join(TIMEOUT_S)
        subscriber.socket.close()
        assert got == list(range(count))
        assert proxy.lost
        assert proxy.duplicated
    finally:
        proxy.close()
        gateway.kill()


def test_a_peer_whose_address_changes_continues(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    with closing(publisher_of(gateway, users, "roamer")) as publisher:
        for number in range(3):
            publisher.put("roamed", b"%d" % number, create=True)
            publisher.flush()
            publisher.socket.close()
            publisher.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            publisher.socket.connect(gateway.address)
            publisher.socket.setblocking(False)
    assert end_of(gateway, users, "roamed") == 3


def test_a_message_that_only_fits_without_a_mac_is_announced(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    token, limit = users.token("alice"), 1000
    narrow = GatewayThread([users.url], is_plain=False, name="narrow", packet_bytes_max=limit)
    try:
        with closing(publisher_of(gateway, users, "large")) as publisher:
            publisher.put("large", b"", create=True)
            publisher.flush()
            with closing(Subscriber(narrow.address, "large", "reader", access_token=token)) as subscriber:
                publisher.put("large", b"x" * (limit - 27 - 32))
                publisher.put("large", b"x" * (limit - 27 - 31))
                publisher.flush()
                got = [content for _, (_, content) in zip(range(2), subscriber.messages(TIMEOUT_S), strict=False)]
        assert got == [b"x" * 941, b"(a message of 942 bytes, too large for a packet)"]
        with closing(publisher_of(narrow, users, "narrow")) as publisher:
            with pytest.raises(ValueError, match="at most 1000 bytes"):
                publisher.put("large", b"x" * (limit - 28 - 5 - 31))
            publisher.put("large", b"x" * (limit - 28 - 5 - 32))
            publisher.flush()
            assert publisher.refusals == {}
    finally:
        narrow.stop()


# Packets that are not genuine.


def test_a_packet_with_a_wrong_mac_changes_nothing_and_is_not_answered(
    gateway: GatewayThread, users: BrokerWithUsers
) -> None:
    with closing(publisher_of(gateway, users, "forged")) as publisher:
        record = Recorder(publisher)
        publisher.put("forged", b"1", create=True)
        publisher.flush()
        [put] = record.of_kind(PUT)
        before = gateway.counter("unverified")
        for forged in (put[:-1] + bytes([put[-1] ^ 1]), put.replace(b"forged1", b"forged2"), put[:-16] + bytes(16)):
            record.repeat(forged)
        bye = struct.pack(">BBQQB", MAGIC_WITH_MAC, BYE, publisher.token, publisher.epoch, 0)
        record.repeat(bye + put[-32:])
        assert is_unanswered(gateway, publisher)
        assert gateway.counter("unverified") == before + 4
        publisher.put("forged", b"2")
        publisher.flush()
    assert end_of(gateway, users, "forged") == 2


@pytest.mark.parametrize("whose", ["unknown", "wrong secret", "no id"])
def test_a_hello_with_a_wrong_token_is_refused_briefly(
    gateway: GatewayThread, users: BrokerWithUsers, whose: str
) -> None:
    token = new_token()
    if whose == "wrong secret":
        token = users.token("alice")[:-1] + "~"
    if whose == "no id":
        token = "omq_NO/id!!!_x"
    sessions = users.sessions
    peer = silent(gateway, token)
    challenge = peer.ask(peer.hello_packet())
    assert (challenge[0], challenge[1]) == (MAGIC, CHALLENGE)
    hello = peer.hello_packet(token=int.from_bytes(challenge[10:], "big"))
    refused = peer.ask(hello)
    assert (refused[0], refused[1]) == (MAGIC, REFUSED)
    assert b"UNAUTHENTICATED" in refused
    assert len(challenge) < len(refused) < len(hello)
    assert users.sessions == sessions
    assert "udp/alice/silent" not in names(gateway)
    peer.socket.close()
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        Publisher(gateway.address, "stranger", access_token=token)


def test_packets_without_a_mac_are_refused(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        Publisher(gateway.address, "stranger")
    peer = silent(gateway)
    hello = peer.hello_packet(name="n")
    assert len(peer.ask(hello)) <= len(hello)
    before = gateway.counter("unauthenticated")
    with closing(publisher_of(gateway, users, "downgraded")) as publisher:
        publisher.put("downgraded", b"1", create=True)
        publisher.flush()
        # What an attacker can make of what he has seen.
        put = struct.pack(">BBQQQBB", MAGIC, PUT, publisher.token, publisher.epoch, 2, 0, 10) + b"downgradedx"
        publisher.socket.send(put)
        publisher.socket.send(struct.pack(">BBQQB", MAGIC, BYE, publisher.token, publisher.epoch, 0))
        assert is_unanswered(gateway, publisher)
        assert gateway.counter("unauthenticated") == before + 2
        publisher.put("downgraded", b"2")
        publisher.flush()
    assert end_of(gateway, users, "downgraded") == 2
    peer.socket.close()


def test_nobody_makes_the_gateway_look_up_tokens_with_a_forged_address(
    gateway: GatewayThread, users: BrokerWithUsers
) -> None:
    attempts = users.security.counters["logins_failed"]
    peers = [silent(gateway, new_token()) for _ in range(50)]
    for peer in peers:
        # Its sender does not see the answer, so it has no address token.
        assert peer.ask(peer.hello_packet())[1] == CHALLENGE
        assert peer.ask(peer.hello_packet(token=1))[1] == CHALLENGE
        peer.socket.close()
    assert users.security.counters["logins_failed"] == attempts


def test_the_failures_of_a_source_are_limited(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    attempts, dropped = users.security.counters["logins_failed"], gateway.counter("dropped_failures")
    peer = silent(gateway, new_token())
    token = int.from_bytes(peer.ask(peer.hello_packet())[10:], "big")
    sent = 0
    while gateway.counter("dropped_failures") < dropped + 50:
        peer.macs = Macs(new_token())
        peer.socket.send(peer.hello_packet(token=token))
        sent += 1
    assert 0 < users.security.counters["logins_failed"] - attempts <= sent - 50
    peer.socket.close()


# Recorded packets.


def test_a_recorded_packet_is_not_accepted_twice(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    token = users.token("alice")
    with closing(publisher_of(gateway, users, "recorded")) as publisher:
        record = Recorder(publisher)
        publisher.put("recorded", b"1", create=True)
        publisher.flush()
        with closing(Subscriber(gateway.address, "recorded", "r", position=FROM_THE_EARLIEST, access_token=token)) as s:
            acks = Recorder(s)
            s.send_again()
            s.wait(lambda: s.acked >= 0, TIMEOUT_S)
            before = gateway.counter("replayed")
            record.repeat(record.of_kind(PUT)[0])
            acks.repeat(acks.of_kind(ACK)[0])
            assert is_unanswered(gateway, publisher)
            assert gateway.counter("replayed") == before + 2
    assert end_of(gateway, users, "recorded") == 1


def test_a_recorded_hello_does_not_bring_back_a_peer_that_has_left(
    gateway: GatewayThread, users: BrokerWithUsers
) -> None:
    token = users.token("alice")
    first = Publisher(gateway.address, "returning", access_token=token)
    sent: list[bytes] = []
    record = Recorder(first)
    first.is_welcome = False
    first.say_hello()
    first.wait(lambda: first.is_welcome, TIMEOUT_S)
    sent = record.of_kind(HELLO)
    first.put("returning", b"1", create=True)
    first.flush()
    sent += record.of_kind(PUT)
    # It was silent for long: the gateway has forgotten it, without a goodbye.
    peers = gateway.gateway._extended.peers
    [peer] = [peer for peer in peers if peer.nonce == first.nonce]
    gateway._thread.call(_call(gateway.gateway._extended._drop, peer))
    with closing(Publisher(gateway.address, "returning", access_token=token)) as second:
        epoch = second.epoch
        for packet in sent:
            record.repeat(packet)
            # Only challenges: nothing in them has changed anything.
            assert _next_kind(record) == CHALLENGE
        assert [peer.epoch for peer in peers if peer.identity[-1] == "udp/alice/returning"] == [epoch]
        assert second.put("returning", b"2") == 2
        second.flush()
    record._socket.close()
    assert end_of(gateway, users, "returning") == 2


async def _call(work: Any, *arguments: Any) -> Any:
    return work(*arguments)


def _next_kind(record: Recorder) -> int:
    record._socket.settimeout(TIMEOUT_S)
    return record._socket.recv(65_536)[1]


def test_packets_of_one_session_are_worthless_in_another_one_at_the_same_address(
    gateway: GatewayThread, users: BrokerWithUsers
) -> None:
    token = users.token("alice")
    with closing(Publisher(gateway.address, "former", access_token=token)) as first:
        record = Recorder(first)
        first.put("former", b"1", create=True)
        first.flush()
        second = Publisher(gateway.address, "other", access_token=token)
        second.put("former", b"other")
        second.flush()
        # The same socket, and the epoch of the other one.
        [put] = record.of_kind(PUT)
        forged = put[:10] + struct.pack(">Q", second.epoch) + put[18:]
        before = gateway.counter("unvalidated")
        record.repeat(forged)
        wait_until(lambda: gateway.counter("unvalidated") == before + 1, "it is dropped")
        before = gateway.counter("unvalidated")
        second.socket.send(put)
        wait_until(lambda: gateway.counter("unvalidated") == before + 1, "it is dropped")
        before = gateway.counter("unverified")
        second.socket.send(put[:2] + struct.pack(">QQ", second.token, second.epoch) + put[18:])
        wait_until(lambda: gateway.counter("unverified") == before + 1, "it is dropped")
        second.close()
    assert end_of(gateway, users, "former") == 2


def test_packets_from_before_a_restart_of_the_gateway_are_worthless(users: BrokerWithUsers) -> None:
    gateway = GatewayThread([users.url], is_plain=False, name="restarted")
    publisher = Publisher(gateway.address, "survivor", access_token=users.token("alice"))
    record = Recorder(publisher)
    publisher.put("survived", b"1", create=True)
    publisher.flush()
    publisher.is_welcome = False
    publisher.say_hello()
    publisher.wait(lambda: publisher.is_welcome, TIMEOUT_S)
    gateway.stop()
    again = GatewayThread([users.url], is_plain=False, name="restarted", listen=gateway.settings.listen)
    try:
        for packet in record.sent:
            record.repeat(packet)
        wait_until(lambda: again.counter("unvalidated") == len(record.sent), "they are dropped")
        assert not len(again.gateway._extended.peers)
        publisher.put("survived", b"2")
        publisher.flush()
        assert end_of(again, users, "survived") == 2
        publisher.close()
    finally:
        again.stop()


def test_packets_that_come_back_to_their_sender_are_dropped(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    with closing(publisher_of(gateway, users, "mirrored")) as publisher:
        record = Recorder(publisher)
        publisher.put("mirrored", b"1", create=True)
        publisher.flush()
        [put], done = record.of_kind(PUT), record.received[-1]
        malformed, unverified = gateway.counter("malformed"), gateway.counter("unverified")
        record.repeat(done)
        # As a put: its fields are those of a put with this epoch.
        record.repeat(bytes([MAGIC_WITH_MAC, PUT]) + struct.pack(">QQ", publisher.token, publisher.epoch) + done[10:])
        wait_until(lambda: gateway.counter("malformed") == malformed + 1, "it is dropped")
        wait_until(lambda: gateway.counter("unverified") == unverified + 1, "it is dropped")
        assert publisher.macs is not None
        assert publisher.macs.open(put, publisher.token, publisher.nonce) is None


def test_a_peer_does_nothing_because_of_answers_that_are_forged(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    with closing(publisher_of(gateway, users, "wary")) as publisher:
        record = Recorder(publisher)
        publisher.put("wary", b"1", create=True)
        publisher.flush()
        done, before = record.received[-1], (publisher.token, publisher.epoch)
        refused = struct.pack(">QB", 0, 6) + b"FENCEDover"
        head = struct.pack(">BQ", REFUSED, publisher.nonce)
        publisher._receive(bytes([MAGIC]) + head + refused)
        publisher._receive(bytes([MAGIC_WITH_MAC]) + head + refused + done[-32:])
        publisher._receive(bytes([MAGIC]) + struct.pack(">BQQ", CHALLENGE, publisher.nonce, 7))
        publisher._receive(bytes([MAGIC]) + struct.pack(">BQQQQHI", 0x82, publisher.nonce, 9, 9, 9, 9, 9))
        publisher._receive(b"\xf2")
        publisher._receive(done)
        assert (publisher.token, publisher.epoch) == before
        publisher.put("wary", b"2")
        publisher.flush()
        assert publisher.refusals == {}


# Users.


def test_two_users_with_publishers_of_the_same_name_do_not_meet(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    with (
        closing(publisher_of(gateway, users, "twin", "alice")) as one,
        closing(publisher_of(gateway, users, "twin", "bob")) as other,
    ):
        assert [one.put("twins", b"a%d" % number, create=True) for number in range(3)] == [1, 2, 3]
        one.flush()
        assert other.put("twins", b"b") == 1
        other.flush()
        # Nobody was fenced.
        assert one.put("twins", b"a") == 4
        one.flush()
    assert {"udp/alice/twin", "udp/bob/twin"} <= users.sessions
    assert end_of(gateway, users, "twins") == 5


def test_a_subscription_of_another_user_is_not_taken_over(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    with closing(publisher_of(gateway, users, "owned")) as publisher:
        publisher.put("owned", b"0", create=True)
        publisher.flush()
        with closing(Subscriber(gateway.address, "owned", "r", access_token=users.token("alice"))) as mine:
            with pytest.raises(Refused, match="FORBIDDEN"):
                Subscriber(gateway.address, "owned", "r", access_token=users.token("bob"))
            # Not even with the nonce of its owner.
            thief = Peer(gateway.address, 2, "r", "owned", access_token=users.token("bob"))
            thief.nonce = mine.nonce
            with pytest.raises(NotImplementedError):
                thief.wait(lambda: thief.is_welcome, TIMEOUT_S)
            thief.socket.close()
            publisher.put("owned", b"1")
            publisher.flush()
            assert next(mine.messages(TIMEOUT_S))[1] == b"1"


def test_a_user_has_only_its_own_rights(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    with closing(publisher_of(gateway, users, "news")) as publisher:
        publisher.put("news", b"0", create=True)
        publisher.put("secrets", b"0", create=True)
        publisher.flush()
    token = users.token("reader")
    with closing(Subscriber(gateway.address, "news", "reads", access_token=token)):
        pass
    assert find_end(gateway.address, "news", access_token=token) == 1
    with pytest.raises(Refused, match="FORBIDDEN"):
        Subscriber(gateway.address, "secrets", "reads", access_token=token)
    with pytest.raises(Refused, match="FORBIDDEN"):
        find_end(gateway.address, "secrets", access_token=token)
    with closing(publisher_of(gateway, users, "reads", "reader")) as publisher:
        publisher.put("news", b"fake")
        publisher.put("new topic", b"fake", create=True)
        publisher.flush()
        assert publisher.refusals == {1: "FORBIDDEN", 2: "FORBIDDEN"}
    assert end_of(gateway, users, "news") == 1


class Impatient(Publisher):
    def received(self, kind: int, body: bytes) -> None:
        if kind == NOT_NOW:
            raise Refused(body[9 : 9 + body[8]].decode())
        super().received(kind, body)


def test_one_user_leaves_room_for_others(users: BrokerWithUsers) -> None:
    gateway = GatewayThread([users.url], is_plain=False, name="roomy", peers_max=20)
    peers = []
    try:
        with pytest.raises(Refused, match="LIMIT_REACHED"):
            for number in range(17):
                peers.append(Impatient(gateway.address, f"n{number}", access_token=users.token("alice")))
        assert len(peers) == 16
        publisher_of(gateway, users, "n", "bob").close()
    finally:
        for peer in peers:
            peer.close()
        gateway.stop()


def test_another_token_is_another_peer(
    gateway: GatewayThread, users: BrokerWithUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = users.add_token("bob")
    first = users.tokens["bob"][0]
    with closing(Publisher(gateway.address, "same", access_token=first)) as publisher:
        publisher.put("same", b"1", create=True)
        publisher.flush()
        thief = Peer(gateway.address, 1, "same", access_token=second)
        thief.nonce, thief.token, thief.epoch = publisher.nonce, publisher.token, publisher.epoch
        thief.socket.close()
        thief.socket = publisher.socket
        before = gateway.counter("unverified")
        thief.send(BYE, struct.pack(">QB", publisher.epoch, 0))
        wait_until(lambda: gateway.counter("unverified") == before + 1, "it is dropped")
        thief.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        thief.socket.connect(gateway.address)
        thief.socket.setblocking(False)
        refusals: list[str] = []
        monkeypatch.setattr(thief, "refused", lambda _, code, __: refusals.append(code))
        thief.wait(lambda: bool(refusals), TIMEOUT_S)
        assert refusals[0] == "UNAUTHENTICATED"
        assert not thief.is_welcome
        thief.socket.close()
        publisher.put("same", b"2")
        publisher.flush()
    users.remove_token("bob")


def test_a_token_that_is_removed_ends_its_sessions(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    token = users.add_token("bob")
    with closing(publisher_of(gateway, users, "kept")) as kept:
        kept.put("revoked", b"0", create=True)
        kept.flush()
        publisher = Publisher(gateway.address, "leaver", access_token=token)
        publisher.put("revoked", b"1")
        publisher.flush()
        subscriber = Subscriber(gateway.address, "revoked", "leaver", access_token=token)
        users.tokens["bob"].reverse()
        users.remove_token("bob")
        kept.put("revoked", b"2")
        kept.flush()
        with pytest.raises(Refused, match="UNAUTHENTICATED"):
            next(subscriber.messages(TIMEOUT_S))
        publisher.put("revoked", b"3")
        with pytest.raises(Refused, match="UNAUTHENTICATED"):
            publisher.flush()
        publisher.socket.close()
        subscriber.socket.close()
        wait_until(lambda: not {"udp/bob/leaver", "leaver"} & {*names(gateway)}, "they are not served")
    assert end_of(gateway, users, "revoked") == 3


def test_a_token_is_replaced_without_an_error(gateway: GatewayThread, users: BrokerWithUsers) -> None:
    current = [users.token("bob")]

    def read() -> str:
        return current[-1]

    with closing(Publisher(gateway.address, "rotating", access_token=read)) as publisher:
        publisher.put("rotated", b"0", create=True)
        publisher.flush()
        with closing(Subscriber(gateway.address, "rotated", "rotating", access_token=read)) as subscriber:
            messages = subscriber.messages(TIMEOUT_S)
            for number in range(1, 4):
                current.append(users.add_token("bob"))
                users.remove_token("bob")
                for turn in range(5):
                    publisher.put("rotated", b"%d" % (5 * number + turn))
                publisher.flush()
                for turn in range(5):
                    assert next(messages)[1] == b"%d" % (5 * number + turn)
        assert publisher.refusals == {}


# With and without users.


def test_a_packet_with_a_mac_is_refused_by_a_broker_without_users(broker: BrokerProcess) -> None:
    gateway = GatewayThread([broker.url], name="open")
    try:
        with pytest.raises(Refused, match="UNSUPPORTED"):
            Publisher(gateway.address, "secretive", access_token=new_token())
        with closing(Publisher(gateway.address, "public")) as publisher:
            publisher.put("public", b"1", create=True)
            publisher.flush()
    finally:
        gateway.stop()


def test_when_a_broker_gets_users_peers_without_a_token_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemq.gateways.udp.callers.KNOWN_MS", 100)
    users = BrokerWithUsers(tmp_path, has_users=False)
    gateway = GatewayThread([users.url])
    try:
        with closing(Publisher(gateway.address, "early")) as publisher, closing(PlainClient(gateway.address)) as plain:
            publisher.put("early", b"1", create=True)
            publisher.flush()
            assert plain.ask("2 early") == "Subscribed to early!"
            users.reload()
            with pytest.raises(Refused, match="UNAUTHENTICATED"):
                while True:
                    publisher.put("early", b"2")
                    publisher.flush()
                    publisher.is_welcome = False
            wait_until(lambda: not len(gateway.gateway._extended.peers), "it is not served")
            wait_until(lambda: plain.ask("4 list").startswith("Error UNAUTHENTICATED"), "plain packets are refused")
        token = users.token("alice")
        with closing(Publisher(gateway.address, "late", access_token=token)) as publisher:
            publisher.put("early", b"3")
            publisher.flush()
            assert publisher.refusals == {}
    finally:
        gateway.stop()
        users.stop()


def test_the_gateway_of_a_broker_that_serves_users(tmp_path: Path) -> None:
    tokens = {name: new_token() for name in ("alice", "visitor")}
    port = free_port()
    data = tmp_path / "data"
    data.mkdir()
    auth = data / "auth.toml"
    auth.touch(0o600)
    auth.write_text(
        "".join(
            f"[user.{name}]\nallow = ['all {name}.#']\ntokens = ['{stored(token)}']\n" for name, token in tokens.items()
        ),
        encoding="utf-8",
    )
    flags = (f"--udp=127.0.0.1:{port}", "--udp-plain-user=visitor", "--segment-bytes=6MiB", "--batch-bytes-max=4MiB")
    broker = ForkedBroker(data, *flags)
    broker.start(wait=False)
    try:
        gateway = ("127.0.0.1", port)
        with closing(Publisher(gateway, "p", timeout_s=TIMEOUT_S, access_token=tokens["alice"])) as publisher:
            publisher.put("alice.news", b"0", create=True)
            publisher.put("visitor.news", b"0", create=True)
            publisher.flush()
            assert publisher.refusals == {2: "FORBIDDEN"}
            token = tokens["alice"]
            with closing(Subscriber(gateway, "alice.news", "s", timeout_s=TIMEOUT_S, access_token=token)) as subscriber:
                publisher.put("alice.news", b"1")
                publisher.flush()
                assert next(subscriber.messages(TIMEOUT_S))[1] == b"1"
        with closing(PlainClient(gateway)) as plain:
            assert plain.insist("1 visitor.board hello") == "Acknowledged!"
            assert plain.insist("1 alice.news hello").startswith("Error FORBIDDEN")
        with pytest.raises(Refused, match="UNAUTHENTICATED"):
            Publisher(gateway, "p")
    finally:
        broker.stop()


def test_no_secret_is_logged(gateway: GatewayThread, users: BrokerWithUsers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with closing(publisher_of(gateway, users, "discreet")) as publisher:
        publisher.put("discreet", b"1", create=True)
        publisher.flush()
    known = gateway.gateway._callers.known(token_id(users.token("alice")))
    assert known is not None
    assert known.key
    secrets = [users.token("alice"), known.key.hex(), repr(known.key)]
    assert not any(secret in caplog.text or secret in repr(known) for secret in secrets)
