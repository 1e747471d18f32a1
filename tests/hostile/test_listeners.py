"""One hostile peer of each kind at each ZeroMQ listener: it is cut off, memory stays bounded, others are served."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import zmq

import oncemq
from oncemq.client.sync import Client
from oncemq.gateways.text.gateway import TextGateway
from oncemq.gateways.text.settings import TextSettings
from oncemq.testing.broker_process import BrokerProcess, free_url
from tests.forking import ForkedBroker
from tests.gateways.hosts import ProcessHost
from tests.gateways.push.processes import GatewayProcess as PushProcess
from tests.gateways.push.processes import settings_here
from tests.gateways.text.rig import Req
from tests.hostile.attacks import read_request
from tests.hostile.watched import MIB, Ask, Watched, put
from tests.hostile.zmtp_peer import ZmtpPeer

#: Well above every limit, and above the growth that is allowed.
ENDLESS_BYTES = 1000 * MIB
#: 1-byte frames, each of which takes 64 bytes of memory.
TINY_FRAMES = 12_000_000
_LIMITS: dict[str, Any] = {"peer_bytes_max": MIB}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    flags = ("--segment-bytes=6MiB", "--batch-bytes-max=1MiB", "--peer-bytes-max=1MiB", f"--listen=ipc://{folder}/b")
    broker = ForkedBroker(folder / "data", *flags, "--write-timeout-ms=2000", transport="zeromq")
    broker.start()
    with broker.connect() as client:
        for topic in ("orders", "read"):
            client.create_topic(topic)
            client.subscribe(topic, "hostile")
            for _ in range(12):
                client.put(topic, b"x" * (MIB - 1000))
    yield broker
    broker.kill()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with broker.connect() as client:
        yield client


@pytest.fixture(scope="module")
def text(broker: BrokerProcess) -> Iterator[ProcessHost]:
    settings = TextSettings(listen=free_url("zeromq"), request_bytes_max=MIB, patience_ms=2000, **_LIMITS)
    host = ProcessHost(TextGateway, (broker.url,), settings)
    host.url = host.start()[0]  # type: ignore[attr-defined]
    yield host
    host.kill()


@pytest.fixture(scope="module")
def push(broker: BrokerProcess) -> Iterator[PushProcess]:
    host = PushProcess(broker.url, settings_here(message_bytes_max=MIB, write_timeout_s=2.0, **_LIMITS))
    host.start()
    yield host
    host.kill()


def endless(url: str, kind: str, frame_bytes: int = 64 * 1024) -> None:
    with ZmtpPeer(url, kind) as peer:
        peer.send_unfinished(bytes(frame_bytes), ENDLESS_BYTES // frame_bytes)
        assert peer.wait_until_disconnected()


def tiny(url: str, kind: str) -> None:
    with ZmtpPeer(url, kind) as peer:
        peer.send_unfinished(b"x", TINY_FRAMES)
        assert peer.wait_until_disconnected()


def unread(url: str, kind: str, request: list[bytes], count: int) -> None:
    with ZmtpPeer(url, kind, receive_buffer_bytes=4096) as peer:
        for _ in range(count):
            peer.send(request)
        # It does not read until the listener gives up. What the kernel holds can still be read.
        wait_for_hang_up(peer)


def wait_for_hang_up(peer: ZmtpPeer) -> None:
    poller = select.poll()
    poller.register(peer.socket, select.POLLRDHUP)
    assert poller.poll(20_000), "the listener does not disconnect a peer that does not read"


def ipc_of(broker: BrokerProcess) -> str:
    return f"ipc://{broker.folder.parent}/b"


@pytest.mark.parametrize("attack", [endless, tiny])
@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_request_that_never_ends_is_cut_off(
    broker: BrokerProcess, client: Client, attack: Callable[[str, str], None], transport: str
) -> None:
    before = client.health().counters.get("peers_cut_unfinished", 0)
    url = broker.url if transport == "tcp" else ipc_of(broker)
    Watched(broker.pid, put(client)).attack(lambda: attack(url, "DEALER"))
    assert client.health().counters["peers_cut_unfinished"] > before


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_each_of_a_series_of_peers_is_cut_off(broker: BrokerProcess, client: Client, transport: str) -> None:
    """Each begins as a good peer, right after another was cut off."""
    url = broker.url if transport == "tcp" else ipc_of(broker)

    def attack() -> None:
        for _ in range(10):
            with ZmtpPeer(url) as peer:
                peer.send(read_request("read", 1000))
                peer.receive()
                peer.send_unfinished(bytes(64 * 1024), ENDLESS_BYTES // (64 * 1024))
                assert peer.wait_until_disconnected()

    Watched(broker.pid, put(client)).attack(attack)


def test_good_unix_peers_with_much_in_flight_are_not_cut_off(broker: BrokerProcess, client: Client) -> None:
    before = client.health().counters

    def produce(_: int) -> None:
        with oncemq.connect(ipc_of(broker), timeout_s=60) as producer:
            for _ in range(30):
                producer.put_nowait("orders", bytes(MIB - 1000))

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(produce, range(8)))
    after = client.health().counters
    assert after.get("peers_cut_unfinished", 0) == before.get("peers_cut_unfinished", 0)


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_client_that_never_reads_its_replies_is_cut_off(
    broker: BrokerProcess, client: Client, transport: str
) -> None:
    before = client.health().counters
    request = read_request("read", 4 * MIB)
    url = broker.url if transport == "tcp" else ipc_of(broker)
    Watched(broker.pid, put(client)).attack(lambda: unread(url, "DEALER", request, 100))
    after = client.health().counters
    assert after["peers_cut_unread"] > before.get("peers_cut_unread", 0)
    assert after["replies_dropped"] > before.get("replies_dropped", 0)


def send_by_version_1(url: str) -> None:
    """Send messages in version 1 of ZeroMQ's protocol: length (1) | flags | body, first the routing id."""
    host, port = url.rpartition("/")[2].split(":")
    with socket.create_connection((host, int(port))) as peer:
        peer.sendall(b"\x01\x00" + b"\x06\x00hello" * 100)
        peer.settimeout(0.2)
        with suppress(OSError):
            while peer.recv(4096):
                pass


def test_a_peer_of_an_old_version_of_the_protocol_harms_nobody(
    broker: BrokerProcess, client: Client, text: Any, push: PushProcess
) -> None:
    pushes = [push.settings.publish, push.settings.acks, push.settings.feed]
    for url in (broker.url, text.url, *pushes):
        send_by_version_1(url)
    client.put("orders", b"one pizza")
    with asking(text.url, b"put orders one pizza") as ask:
        ask()
    with publishing(push) as publish:
        publish()


@contextmanager
def asking(url: str, request: bytes) -> Iterator[Ask]:
    req = Req(url)
    yield lambda: req.ask_bytes(request)
    req.close()


@pytest.mark.parametrize("attack", [endless, tiny])
def test_a_text_request_that_never_ends_is_cut_off(text: Any, attack: Callable[[str, str], None]) -> None:
    with asking(text.url, b"put orders one pizza") as ask:
        Watched(text._process.pid, ask).attack(lambda: attack(text.url, "REQ"))


def test_a_text_client_that_never_reads_is_cut_off(text: Any) -> None:
    get = [b"", b"get orders hostile"]
    with asking(text.url, b"put orders one pizza") as ask:
        Watched(text._process.pid, ask).attack(lambda: unread(text.url, "REQ", get, 50))


@contextmanager
def publishing(push: PushProcess, content: bytes = b"one pizza") -> Iterator[Ask]:
    req: Any = zmq.Context.instance().socket(zmq.REQ)
    req.setsockopt(zmq.LINGER, 0)
    req.setsockopt(zmq.RCVTIMEO, 20_000)
    req.connect(push.settings.acks)
    numbers = iter(range(1, 10**9))

    def publish() -> object:
        request = {"type": "publish", "origin": "me", "topic": "orders", "id": str(next(numbers))}
        req.send_multipart([json.dumps(request).encode(), content])
        return req.recv()

    yield publish
    req.close(0)


@pytest.mark.parametrize("attack", [endless, tiny])
@pytest.mark.parametrize(("listener", "kind"), [("publish", "PUB"), ("acks", "REQ"), ("feed", "SUB")])
def test_a_message_to_the_push_gateway_that_never_ends_is_cut_off(
    push: PushProcess, attack: Callable[..., None], listener: str, kind: str
) -> None:
    url = getattr(push.settings, listener)
    # The feed accepts small frames only.
    more = (1000,) if attack is endless and listener == "feed" else ()
    with publishing(push) as publish:
        Watched(push._process.pid, publish).attack(lambda: attack(url, kind, *more))


def test_a_peer_of_the_ack_listener_that_never_reads_is_cut_off(push: PushProcess) -> None:
    # The answer to what is not a request is an error text.
    with publishing(push) as publish:
        Watched(push._process.pid, publish).attack(lambda: unread(push.settings.acks, "REQ", [b"", b"{}"], 1000))


def test_a_subscriber_of_the_feed_that_never_reads_is_cut_off(push: PushProcess) -> None:
    def subscribe() -> None:
        with ZmtpPeer(push.settings.feed, "SUB", receive_buffer_bytes=4096) as peer:
            peer.send([b"\1orders"])
            wait_for_hang_up(peer)

    with publishing(push, b"x" * 100_000) as publish:
        Watched(push._process.pid, publish).attack(subscribe)


def test_a_slow_client_of_legal_size_is_served(broker: BrokerProcess) -> None:
    request = read_request("read", MIB)
    with ZmtpPeer(broker.url, receive_buffer_bytes=4096) as peer:
        for _ in range(5):
            peer.send(request)
        assert all(sum(map(len, peer.receive())) > MIB // 2 for _ in range(5))
