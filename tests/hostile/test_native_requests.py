"""Heavy requests of one peer: the puts of another peer are answered in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from oncemq.protocol.commands import Topics
from oncemq.protocol.replies import Reply
from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.processes import wait_until
from tests.forking import ForkedBroker
from tests.hostile.native_requests import ATTACKS, NativePeer, Stopping, create_topics
from tests.transports import TRANSPORTS

TOPICS = 100
PUTS = 10


@pytest.fixture(scope="module", params=TRANSPORTS)
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    process = ForkedBroker(tmp_path_factory.mktemp("hostile") / "data", transport=request.param)
    process.start()
    create_topics(process.url, TOPICS)
    yield process
    process.kill()


def note_responses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Reply, ...]]:
    """Return a list of what attackers receive from now on."""
    responses: list[tuple[Reply, ...]] = []
    receive = NativePeer.receive

    def note(peer: NativePeer, stopping: Stopping) -> tuple[Reply, ...]:
        received = receive(peer, stopping)
        if received:
            responses.append(received)
        return received

    monkeypatch.setattr(NativePeer, "receive", note)
    return responses


@pytest.mark.parametrize("name", ATTACKS)
def test_puts_are_answered_during_the_attack(broker: BrokerProcess, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = threading.Event()
    responses = note_responses(monkeypatch)
    attacker = threading.Thread(target=ATTACKS[name], args=(broker.url, stopping.is_set))
    attacker.start()
    try:
        # The first response may be that of a hello.
        wait_until(lambda: len(responses) > 1, "the attacker is answered")
        with broker.connect() as client:
            client.create_topic("victim")
            offsets = [client.put("victim", "x").offset for _ in range(PUTS)]
    finally:
        stopping.set()
        attacker.join()
    assert offsets == list(range(offsets[0], offsets[0] + PUTS))


def test_a_put_overtakes_the_long_request_of_another_peer(broker: BrokerProcess) -> None:
    peer = NativePeer(broker.url)
    with broker.connect() as client:
        client.create_topic("overtaking")
        # It is connected before the puts.
        peer.ask([Topics()], lambda: False)
        for _ in range(20):
            peer.send([Topics()] * 1_000)
        # All of these lists take much longer than five puts.
        for _ in range(5):
            client.put("overtaking", "x")
        answered = peer.answered_count()
    peer.close()
    assert answered < 5
