"""Broker and gateway are killed while clients put and get with ids: exact counts, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import zmq

from tests.acceptance.processes import SMALL, wait_until
from tests.forking import ForkedBroker
from tests.gateways.hosts import TIMEOUT_S
from tests.gateways.text.rig import GatewayProcess, Req

MESSAGES = 80
KILLS = 3
#: The client's timeout. It is short, so that requests are repeated several times while something is down.
PATIENCE_S = 0.2
TRIES = 600
UNDECIDED = ("BROKER_AWAY", "STOPPING", "OVERLOADED", "STANDBY")


class Patient:
    """S1's client: after a timeout it sends the same request again, with the same id, through a new socket."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socket = Req(url, PATIENCE_S)

    def ask(self, *lines: str) -> str:
        for _ in range(TRIES):
            try:
                reply = self._socket.lines(*lines)
            except zmq.Again:
                self._socket.close()
                self._socket = Req(self._url, PATIENCE_S)
                continue
            if not reply.startswith(tuple(f"ERROR {code} " for code in UNDECIDED)):
                return reply
        raise TimeoutError

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedBroker]:
    process = ForkedBroker(tmp_path_factory.mktemp("broker") / "data", *SMALL)
    process.start()
    yield process
    process.kill()


@pytest.fixture
def gateway(broker: ForkedBroker) -> Iterator[GatewayProcess]:
    process = GatewayProcess([broker.url])
    process.start()
    yield process
    process.kill()


def put_all(gateway: GatewayProcess, stored: list[str]) -> None:
    client = Patient(gateway.url)
    for number in range(MESSAGES):
        reply = client.ask(f"p{number}", "put", "bob", "orders", f"{number}")
        late = client.ask(f"p{number // 2}", "put", "bob", "orders", f"{number // 2}") if number % 7 == 0 else reply
        stored += {reply, late}
    client.close()


def get_all(gateway: GatewayProcess, subscriber: str, got: list[str]) -> None:
    client, number = Patient(gateway.url), 0
    while len(got) < MESSAGES and number < 1000 * MESSAGES:
        number += 1
        reply = client.ask(f"g{number}", "get", subscriber, "orders")
        if reply.startswith("OK "):
            assert client.ask(f"g{number}", "get", subscriber, "orders") == reply
            got.append(reply.removeprefix("OK "))
        else:
            assert reply.startswith("ERROR NOTHING_NEW "), reply
    client.close()


def test_nothing_is_lost_or_doubled_when_broker_and_gateway_are_killed(
    broker: ForkedBroker, gateway: GatewayProcess
) -> None:
    client = Patient(gateway.url)
    for subscriber in ("alice", "carol"):
        assert client.ask(f"s-{subscriber}", "sub", subscriber, "orders") == "OK SUBSCRIBED"
    stored: list[str] = []
    got: dict[str, list[str]] = {"alice": [], "carol": []}
    threads = [threading.Thread(target=put_all, args=(gateway, stored), daemon=True)]
    threads += [threading.Thread(target=get_all, args=(gateway, *each), daemon=True) for each in got.items()]
    for thread in threads:
        thread.start()
    restarts: list[Callable[[], None]] = [broker.restart, gateway.restart]
    for kill in range(1, KILLS + 1):
        due = kill * MESSAGES // (KILLS + 1)
        wait_until(lambda due=due: len(got["alice"]) >= due, "messages flow", TIMEOUT_S)  # type: ignore[misc]
        restarts[kill % 2]()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert set(stored) == {"OK STORED 2"}
    for messages in got.values():
        assert messages == [f"{number}" for number in range(MESSAGES)]
    for subscriber in got:
        assert client.ask("last", "get", subscriber, "orders").startswith("ERROR NOTHING_NEW ")
        assert client.ask(f"u-{subscriber}", "unsub", subscriber, "orders") == "OK UNSUBSCRIBED"
    gateway.restart()
    for subscriber in got:
        assert client.ask(f"s-{subscriber}", "sub", subscriber, "orders") == "OK SUBSCRIBED"
        assert client.ask(f"u-{subscriber}", "unsub", subscriber, "orders") == "OK UNSUBSCRIBED"
    assert client.ask("new", "get", "alice", "orders").startswith("ERROR TOPIC_UNKNOWN ")
    client.close()


def test_a_gateway_that_is_asked_to_stop_does(broker: ForkedBroker, gateway: GatewayProcess) -> None:
    client = Req(gateway.url)
    assert client.ask("sub orders alice") == "OK SUBSCRIBED"
    client.close()
    assert gateway.stop() == 0
