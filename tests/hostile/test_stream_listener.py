"""One hostile peer of each kind at the stream listener: it is cut off, memory stays bounded, others are served."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from oncemq.client.sync import Client
from oncemq.protocol.stream import encode_message
from oncemq.testing.broker_process import BrokerProcess
from tests.forking import ForkedBroker
from tests.hostile import stream_peers
from tests.hostile.attacks import read_request
from tests.hostile.watched import MIB, Watched, put
from tests.stream_peer import OPENING, StreamPeer

#: No request is larger than 5 MiB, and no peer may have more than 1 MiB of replies that it has not read.
_FLAGS = ("--segment-bytes=6MiB", "--batch-bytes-max=1MiB", "--peer-bytes-max=1MiB", "--write-timeout-ms=1000")
GROWTH_BYTES_MAX = 64 * MIB


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    broker = ForkedBroker(folder / "data", *_FLAGS, f"--listen=oncemq+unix://{folder}/b")
    broker.start()
    with broker.connect() as client:
        for topic in ("orders", "read"):
            client.create_topic(topic)
            client.subscribe(topic, "hostile")
        for _ in range(12):
            client.put("read", b"x" * (MIB - 1000))
    yield broker
    broker.kill()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with broker.connect() as client:
        yield client


def urls_of(broker: BrokerProcess) -> tuple[str, str]:
    return broker.url, f"oncemq+unix://{broker.folder.parent}/b"


@pytest.fixture(params=["tcp", "unix"])
def url(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    return urls_of(broker)[request.param == "unix"]


def stall(url: str, sent: bytes) -> None:
    """Send a part of a request, and wait for the end."""
    with StreamPeer(url) as peer:
        peer.socket.sendall(sent)
        assert peer.wait_until_disconnected()


def never_read(url: str) -> None:
    """Ask for large replies, and do not read them until the listener gives up."""
    request = read_request("read", 4 * MIB)
    with StreamPeer(url, receive_buffer_bytes=4096) as peer:
        for _ in range(100):
            peer.send(request)
        assert stream_peers.wait_for_hang_up(peer, 20.0), "the listener does not disconnect a peer that does not read"


def test_peers_that_stall_are_cut_off(broker: BrokerProcess, client: Client) -> None:
    """All of them wait for the same timeout, so they run at the same time."""
    before = client.health().counters
    large = b"".join(encode_message([bytes(4 * MIB)]))
    attacks: list[Callable[[], object]] = []
    for url in urls_of(broker):
        attacks += [lambda url=url, size=size: stall(url, large[:size]) for size in (3, 100, 3 * MIB)]  # type: ignore[misc]
        attacks.append(lambda url=url: never_read(url))  # type: ignore[misc]
    Watched(broker.pid, put(client), GROWTH_BYTES_MAX).attack(*attacks)
    after = client.health().counters
    assert after["peers_cut_unfinished"] == before.get("peers_cut_unfinished", 0) + 6
    assert after["peers_cut_unread"] == before.get("peers_cut_unread", 0) + 2
    assert after["replies_dropped"] > before.get("replies_dropped", 0)


@pytest.mark.parametrize(
    "attack",
    [
        lambda url: stream_peers.unfinished(url, count=5),
        lambda url: stream_peers.large_claims(url, count=200, seconds=0.1),
        lambda url: stream_peers.tiny_chunks(url, seconds=0.3),
        lambda url: stream_peers.tiny_requests(url, seconds=0.3),
        lambda url: stream_peers.tiny_frames(url, seconds=0.3),
        lambda url: stream_peers.silent_connections(url, count=300, seconds=0.1),
        lambda url: stream_peers.slow_openings(url, count=100, seconds=0.1),
        lambda url: stream_peers.connection_flood(url, seconds=0.3),
        lambda url: stream_peers.malformed(url, seconds=0.3),
    ],
    ids=[
        "unfinished messages",
        "large claims",
        "tiny chunks",
        "tiny requests",
        "tiny frames",
        "silent connections",
        "slow openings",
        "connection flood",
        "malformed",
    ],
)
def test_others_are_served_during_an_attack(
    broker: BrokerProcess, client: Client, url: str, attack: Callable[[str], object]
) -> None:
    Watched(broker.pid, put(client), GROWTH_BYTES_MAX).attack(lambda: attack(url))


def test_a_request_beyond_the_limit_is_cut_off_at_once(broker: BrokerProcess, client: Client, url: str) -> None:
    before = client.health().counters.get("malformed", 0)
    Watched(broker.pid, put(client), GROWTH_BYTES_MAX).attack(lambda: stream_peers.beyond_the_limit(url))
    assert client.health().counters["malformed"] == before + 1


def test_each_of_a_series_of_peers_is_cut_off(broker: BrokerProcess, client: Client, url: str) -> None:
    """Each begins as a good peer, and then sends something else than a request."""

    def attack() -> None:
        for _ in range(10):
            with StreamPeer(url, OPENING) as peer:
                peer.send(read_request("read", 1000))
                peer.receive()
                peer.send_raw(b"no request " * 1000, 100_000)
                assert peer.wait_until_disconnected()

    Watched(broker.pid, put(client), GROWTH_BYTES_MAX).attack(attack)


def test_good_peers_with_much_in_flight_are_not_cut_off(broker: BrokerProcess, client: Client, url: str) -> None:
    before = client.health().counters
    with StreamPeer(url, receive_buffer_bytes=4096) as peer:
        for _ in range(5):
            # It reads slowly, but it reads.
            peer.send(read_request("read", MIB))
            assert sum(map(len, peer.receive())) > MIB // 2
    after = client.health().counters
    for name in ("peers_cut_unfinished", "peers_cut_unread", "replies_dropped"):
        assert after.get(name, 0) == before.get(name, 0)
