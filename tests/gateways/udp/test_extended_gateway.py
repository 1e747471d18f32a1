"""Extended datagrams over real sockets: exactly once, in spite of losses and killed processes."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from examples.datagrams.peers import BYE, CHALLENGE, FROM_THE_EARLIEST, MAGIC, Peer, Publisher, Refused, Subscriber

from oncemq.gateways.udp.extended import packets
from oncemq.testing.broker_process import BrokerProcess
from tests.forking import ForkedBroker
from tests.gateways.hosts import TIMEOUT_S
from tests.gateways.udp.proxy import LossyProxy
from tests.gateways.udp.rig import GatewayProcess, GatewayThread, wait_until


@pytest.fixture(scope="module")
def gateway(broker: BrokerProcess) -> Iterator[GatewayThread]:
    gateway = GatewayThread([broker.url], loopback_is_validated=False)
    yield gateway
    gateway.stop()


def publish(gateway: tuple[str, int], topic: str, count: int, name: str = "publisher") -> None:
    with closing(Publisher(gateway, name)) as publisher:
        for number in range(1, count + 1):
            publisher.put(topic, b"%d" % number, create=True)
        publisher.flush()
        assert publisher.refusals == {}


def take(subscriber: Subscriber, count: int) -> list[int]:
    taken = []
    for _, content in subscriber.messages(TIMEOUT_S):
        taken.append(int(content))
        if len(taken) == count:
            break
    subscriber.position += 1
    return taken


def test_everything_arrives_once_and_in_order_through_a_bad_network_while_gateway_and_broker_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.datagrams.peers.RESEND_S_MAX", 0.2)
    travel(tmp_path, seed=4, count=100)


def travel(folder: Path, seed: int, count: int) -> None:
    broker = ForkedBroker(folder / "data", "--segment-bytes=6MiB", "--batch-bytes-max=4MiB")
    broker.start()
    gateway = GatewayProcess([broker.url])
    gateway.start()
    proxy = LossyProxy(gateway.address, seed, loss=0.3, doubling=0.2, delay_s=0.02)
    try:
        publish(gateway.address, "readings", 1, "maker")
        subscriber = Subscriber(proxy.address, "readings", "reader", timeout_s=TIMEOUT_S)
        publisher = threading.Thread(target=publish, args=(proxy.address, "readings", count), daemon=True)
        publisher.start()
        assert take_while_killing(subscriber, gateway, broker, count) == list(range(1, count + 1))
        publisher.join(TIMEOUT_S)
        assert not publisher.is_alive()
        assert next(subscriber.messages(0.2), None) is None
        with broker.connect() as client:
            [topic] = client.topics()
            assert topic.end_offset == 1 + count
        assert proxy.lost
        assert proxy.duplicated
        subscriber.socket.close()
    finally:
        proxy.close()
        gateway.kill()
        broker.kill()


def take_while_killing(subscriber: Subscriber, gateway: GatewayProcess, broker: BrokerProcess, count: int) -> list[int]:
    taken = []
    for _, content in subscriber.messages(TIMEOUT_S):
        taken.append(int(content))
        if len(taken) == count // 3:
            gateway.restart()
        elif len(taken) == 2 * count // 3:
            broker.restart()
        elif len(taken) == count:
            break
    return taken


def test_a_subscriber_that_vanished_catches_up_from_another_port(gateway: GatewayThread) -> None:
    publish(gateway.address, "catching up", 1, "first")
    gone = Subscriber(gateway.address, "catching up", "reader")
    publish(gateway.address, "catching up", 3, "second")
    assert take(gone, 1) == [1]
    gone.finish()
    gone.socket.close()
    back = Subscriber(gateway.address, "catching up", "reader")
    assert take(back, 2) == [2, 3]
    back.finish()
    back.close()


def test_peers_whose_address_changes_under_way_go_on(gateway: GatewayThread) -> None:
    def rebind(peer: Peer) -> None:
        peer.socket.close()
        peer.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        peer.socket.connect(gateway.address)
        peer.socket.setblocking(False)

    with closing(Publisher(gateway.address, "roamer")) as publisher:
        publisher.put("roaming", b"0", create=True)
        publisher.flush()
        with closing(Subscriber(gateway.address, "roaming", "reader")) as subscriber:
            for number in (1, 2, 3):
                rebind(publisher)
                publisher.put("roaming", b"%d" % number)
                publisher.flush()
                rebind(subscriber)
                assert take(subscriber, 1) == [number]


def test_a_subscriber_that_starts_with_its_own_position_gets_nothing_twice(gateway: GatewayThread) -> None:
    publish(gateway.address, "inbox", 1, "inbox-1")
    first = Subscriber(gateway.address, "inbox", "reader")
    publish(gateway.address, "inbox", 4, "inbox-2")
    with closing(first):
        offsets = [offset for _, (offset, _) in zip(range(2), first.messages(TIMEOUT_S), strict=False)]
    # Its acks are lost, but not the messages that it has stored.
    with closing(Subscriber(gateway.address, "inbox", "reader", position=offsets[-1] + 1)) as second:
        assert take(second, 2) == [3, 4]


def test_whoever_takes_over_fences_the_one_before(gateway: GatewayThread) -> None:
    publish(gateway.address, "owned", 1, "owner")
    first = Subscriber(gateway.address, "owned", "reader")
    second = Subscriber(gateway.address, "owned", "reader")
    with pytest.raises(Refused, match="FENCED"):
        for _ in first.messages(TIMEOUT_S):
            pass
    # A late copy of the first one's hello changes nothing.
    first.epoch = 0
    first.say_hello()
    with pytest.raises(Refused, match="FENCED"):
        first.step(TIMEOUT_S)
        first.step(TIMEOUT_S)
    publish(gateway.address, "owned", 1, "owner-2")
    assert take(second, 1) == [1]
    first.socket.close()
    second.close()


def test_a_publisher_that_starts_anew_goes_on_behind_its_last_number(gateway: GatewayThread) -> None:
    publish(gateway.address, "lines", 5, "lines")
    with closing(Publisher(gateway.address, "lines")) as again:
        assert again.last_number == 5
        assert again.put("lines", b"six") == 6
        again.flush()


def test_a_put_that_is_refused_uses_up_its_number_and_the_next_one_goes_on(gateway: GatewayThread) -> None:
    with closing(Publisher(gateway.address, "careless")) as publisher:
        publisher.put("no such topic", b"lost")
        publisher.put("not*a*name", b"lost", create=True)
        publisher.put("careless", b"kept", create=True)
        publisher.flush()
        assert publisher.refusals == {1: "TOPIC_UNKNOWN", 2: "NAME_INVALID"}
        assert publisher.last_number == 3


def test_subscribing_to_a_topic_that_is_not_there_is_refused(gateway: GatewayThread) -> None:
    with pytest.raises(Refused, match="TOPIC_UNKNOWN"):
        Subscriber(gateway.address, "nowhere", "reader")


def test_a_message_that_no_packet_holds_is_announced_in_its_place(
    broker: BrokerProcess, gateway: GatewayThread
) -> None:
    publish(gateway.address, "large", 1, "large")
    with closing(Subscriber(gateway.address, "large", "reader")) as subscriber:
        with broker.connect() as client:
            client.put("large", b"x" * 70_000)
            client.put("large", b"7")
        contents = [content for _, (_, content) in zip(range(2), subscriber.messages(TIMEOUT_S), strict=False)]
        assert contents == [b"(a message of 70000 bytes, too large for a packet)", b"7"]


def test_an_unsubscribed_subscription_is_gone(broker: BrokerProcess, gateway: GatewayThread) -> None:
    publish(gateway.address, "leaving", 1, "leaver")
    subscriber = Subscriber(gateway.address, "leaving", "reader", position=FROM_THE_EARLIEST)
    with broker.connect() as client:
        assert [found.subscriber for found in client.subscriptions("leaving")] == ["reader"]
        subscriber.send(BYE, struct.pack(">QB", subscriber.epoch, packets.UNSUBSCRIBE))
        wait_until(lambda: not client.subscriptions("leaving"), "the subscription ends")
    subscriber.socket.close()


def test_a_packet_from_another_socket_is_challenged_and_changes_nothing(gateway: GatewayThread) -> None:
    publish(gateway.address, "spoofed", 1, "honest")
    with closing(Subscriber(gateway.address, "spoofed", "reader")) as honest:
        publish(gateway.address, "spoofed", 1, "honest-2")
        stranger = Stranger(gateway.address)
        # What an eavesdropper could send: the token, the epoch, and an ack of everything.
        stranger.token, stranger.epoch = honest.token, honest.epoch
        stranger.send(3, struct.pack(">QQQ", honest.epoch, 2, 0))
        assert stranger.kinds(1) == [CHALLENGE]
        stranger.socket.close()
        assert take(honest, 1) == [1]


def test_an_address_that_is_not_validated_gets_a_challenge_shorter_than_its_question(
    gateway: GatewayThread,
) -> None:
    stranger = Stranger(gateway.address)
    questions = [struct.pack(">BQQQq", role, 5, 0, 0, -1) + b"\x01n" + b"\x01t" for role in (0, 1, 2)] + [
        struct.pack(">QQBB", 1, 1, 1, 1) + b"t",
        struct.pack(">QQQ", 1, 1, 0),
        struct.pack(">QB", 1, 1),
    ]
    for kind, body in zip((1, 1, 1, 2, 3, 4), questions, strict=True):
        stranger.send(kind, body)
        stranger.socket.settimeout(TIMEOUT_S)
        answer = stranger.socket.recv(65_536)
        assert answer[1] == CHALLENGE
        assert len(answer) < 10 + len(body)
    stranger.socket.close()


class Stranger(Peer):
    """A peer that ignores challenges."""

    def __init__(self, gateway: tuple[str, int]) -> None:
        super().__init__(gateway, 0, "stranger")
        self.nonce = 5

    def kinds(self, count: int) -> list[int]:
        self.socket.settimeout(TIMEOUT_S)
        return [self.socket.recv(65_536)[1] for _ in range(count)]


def test_a_forged_answer_is_not_the_gateways(gateway: GatewayThread) -> None:
    with closing(Publisher(gateway.address, "wary")) as publisher:
        forged = struct.pack(">BBQ", MAGIC, CHALLENGE, publisher.nonce ^ 1) + struct.pack(">Q", 7)
        before = publisher.token
        publisher._receive(forged)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as elsewhere:
            elsewhere.sendto(forged, publisher.socket.getsockname())
            publisher.put("wary", b"1", create=True)
            publisher.flush()
        assert publisher.token == before


def test_a_subscriber_that_was_silent_for_too_long_goes_on_by_itself(
    gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(gateway.address, "silence", 1, "silent")
    with closing(Subscriber(gateway.address, "silence", "reader")) as subscriber:
        with monkeypatch.context() as patch:
            patch.setattr("oncemq.gateways.udp.extended.server.SUBSCRIBER_SILENT_MS", -1)
            before = gateway.counter("peers_silent")
            wait_until(lambda: gateway.counter("peers_silent") > before, "it is dropped")
        publish(gateway.address, "silence", 2, "silent-2")
        assert take(subscriber, 2) == [1, 2]


def test_a_subscription_that_was_moved_is_opened_anew(broker: BrokerProcess, gateway: GatewayThread) -> None:
    with broker.connect() as client:
        client.create_topic("moved", retain_ms=3_600_000)
        publish(gateway.address, "moved", 3, "mover")
        with closing(Subscriber(gateway.address, "moved", "reader")) as subscriber:
            client.seek("moved", "reader", "earliest")
            with pytest.raises(Refused, match="SOUGHT"):
                take(subscriber, 1)
        with closing(Subscriber(gateway.address, "moved", "reader")) as subscriber:
            assert take(subscriber, 3) == [1, 2, 3]


def test_a_position_on_a_topic_that_was_made_anew_is_refused(broker: BrokerProcess, gateway: GatewayThread) -> None:
    publish(gateway.address, "remade", 2, "maker-1")
    subscriber = Subscriber(gateway.address, "remade", "reader")
    with broker.connect() as client:
        client.delete_topic("remade")
        with pytest.raises(Refused, match="TOPIC_GONE"):
            take(subscriber, 1)
    publish(gateway.address, "remade", 3, "maker-2")
    again = Stranger(gateway.address)
    again.token, again.role, again.name, again.topic = subscriber.token, 2, "reader", "remade"
    again.socket.close()
    again.socket = subscriber.socket
    again.topic_id, again.position = subscriber.topic_id, 2
    again.say_hello()
    again.socket.settimeout(TIMEOUT_S)
    while (packet := again.socket.recv(65_536))[1] != packets.REFUSED or b"TOPIC_GONE" not in packet:
        pass
    subscriber.socket.close()


def test_an_ack_beyond_the_end_is_refused(gateway: GatewayThread) -> None:
    publish(gateway.address, "beyond", 1, "beyonder")
    subscriber = Subscriber(gateway.address, "beyond", "reader")
    subscriber.position = 1000
    subscriber.send_again()
    with pytest.raises(Refused, match="OFFSET_OUT_OF_RANGE"):
        take(subscriber, 1)
    subscriber.socket.close()


def test_a_put_that_is_too_long_is_refused_and_the_next_one_goes_on(broker: BrokerProcess) -> None:
    gateway = GatewayThread([broker.url], name="narrow", packet_bytes_max=500)
    try:
        with closing(Publisher(gateway.address, "wordy")) as publisher:
            with pytest.raises(ValueError, match="at most 500 bytes"):
                publisher.put("wordy", b"x" * 500, create=True)
            publisher.packet_bytes_max = 10_000
            publisher.put("wordy", b"x" * 5000, create=True)
            publisher.put("wordy", b"short", create=True)
            publisher.flush()
            assert publisher.refusals == {1: "TOO_LARGE"}
            # A packet that can't be parsed uses no number.
            publisher.send(2, b"\xff")
            with pytest.raises(Refused, match="MALFORMED"):
                publisher.step(TIMEOUT_S)
        assert gateway.counter("bugs") == 0
    finally:
        gateway.stop()
