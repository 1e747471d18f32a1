"""The gateway with real sockets, and processes that are killed while callers repeat requests without a response."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.processes import SMALL, wait_until
from tests.forking import ForkedBroker
from tests.gateways.http.processes import GatewayProcess

DEADLINE_S = 60
CALLERS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with ForkedBroker(tmp_path_factory.mktemp("broker") / "data", *SMALL) as process:
        yield process


@pytest.fixture
def gateway(tmp_path: Path, broker: BrokerProcess) -> Iterator[GatewayProcess]:
    process = GatewayProcess(tmp_path, broker.url)
    yield process
    process.stop()


def client_of(gateway: GatewayProcess) -> httpx.Client:
    return httpx.Client(base_url=f"{gateway.url}/v1", timeout=DEADLINE_S, trust_env=False)


def until_answered(send: Callable[[], httpx.Response]) -> httpx.Response:
    """Repeat a request until it has an outcome."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        with contextlib.suppress(httpx.TransportError):
            response = send()
            if response.status_code < 500:
                return response
        time.sleep(0.01)
    raise TimeoutError


class Callers:
    """Producers that put messages, each under a key or a number, until they are stopped."""

    def __init__(self, gateway: GatewayProcess, topic: str) -> None:
        self._gateway = gateway
        self._path = f"/topics/{topic}/messages"
        self._stopped = threading.Event()
        self.stored: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(CALLERS)
        self._working = [self._pool.submit(self._with_keys, number) for number in range(CALLERS - 1)]
        self._working.append(self._pool.submit(self._with_numbers))

    def _with_keys(self, caller: int) -> None:
        with client_of(self._gateway) as client:
            number = 0
            while not self._stopped.is_set():
                number += 1
                self._put(client, f"{caller}-{number}", {"Idempotency-Key": f"{self._path} {caller}-{number}"})

    def _with_numbers(self) -> None:
        with client_of(self._gateway) as client:
            body = {"session": f"caller of {self._path}", "nonce": 1}
            epoch = until_answered(lambda: client.post("/sessions", json=body)).json()["epoch"]
            number = 0
            while not self._stopped.is_set():
                number += 1
                headers = {"OnceMQ-Session": body["session"], "OnceMQ-Epoch": epoch, "OnceMQ-Number": number}
                self._put(client, f"n-{number}", {name: str(value) for name, value in headers.items()})

    def _put(self, client: httpx.Client, value: str, headers: dict[str, str]) -> None:
        reply = until_answered(lambda: client.post(self._path, content=value, headers=headers))
        assert reply.status_code == 201, reply.text
        self.stored[value] += 1

    def wait_for_more(self) -> None:
        before = self.stored.total()
        until_s = time.monotonic() + DEADLINE_S
        while self.stored.total() < before + 20:
            assert time.monotonic() < until_s
            time.sleep(0.005)

    def stop(self) -> None:
        self._stopped.set()
        for work in self._working:
            work.result(DEADLINE_S)
        self._pool.shutdown()


def check_once(gateway: GatewayProcess, topic: str, callers: Callers) -> None:
    found: Counter[str] = Counter()
    with client_of(gateway) as client:
        at = {"position": 0, "limit": 10_000}
        page = {"end_offset": 1}
        while at["position"] < page["end_offset"]:
            page = until_answered(lambda: client.get(f"/topics/{topic}/messages", params=at)).json()
            found.update(message["value"] for message in page["messages"])
            at["position"] = page["next_position"]
    assert found == callers.stored


def make_topic(gateway: GatewayProcess, topic: str) -> None:
    with client_of(gateway) as client:
        assert client.put(f"/topics/{topic}", json={"retain_ms": 3_600_000}).status_code == 201


def test_a_gateway_that_is_killed_again_and_again_stores_each_put_once(gateway: GatewayProcess) -> None:
    make_topic(gateway, "killed-gateway")
    callers = Callers(gateway, "killed-gateway")
    for _ in range(3):
        callers.wait_for_more()
        gateway.kill()
        gateway.start()
    callers.wait_for_more()
    callers.stop()
    check_once(gateway, "killed-gateway", callers)


def test_a_broker_that_is_killed_behind_the_gateway_stores_each_put_once(
    gateway: GatewayProcess, broker: BrokerProcess
) -> None:
    make_topic(gateway, "killed-broker")
    callers = Callers(gateway, "killed-broker")
    for _ in range(2):
        callers.wait_for_more()
        broker.kill()
        broker.start()
    callers.wait_for_more()
    callers.stop()
    check_once(gateway, "killed-broker", callers)


def test_puts_in_flight_when_the_broker_is_killed_have_an_unknown_outcome_and_are_stored_once_when_repeated(
    gateway: GatewayProcess, broker: BrokerProcess
) -> None:
    make_topic(gateway, "in-flight")
    requests: list[dict[str, Any]] = [
        {"url": "/topics/in-flight/messages", "content": "a", "headers": {"Idempotency-Key": "in-flight a"}},
        {"url": "/topics/in-flight/messages", "json": {"messages": [{"value": "b"}, {"value": "c"}]}},
        {"url": "/topics/in-flight/messages", "content": "d"},
    ]
    with client_of(gateway) as client, ThreadPoolExecutor(len(requests)) as pool:
        broker.pause()
        try:
            answers = [pool.submit(client.post, **request) for request in requests]
            wait_until(lambda: unread_bytes(broker) > 0, "the puts are sent")
        finally:
            broker.kill()
        for answer in answers:
            response = answer.result(DEADLINE_S)
            assert response.status_code == 503, response.text
            assert response.json()["code"] == "BROKER_AWAY"
            assert "Repeat" in response.json()["advice"]
        broker.start()
        again = until_answered(lambda: client.post(**requests[0]))
        assert again.status_code == 201
        assert until_answered(lambda: client.post(**requests[0])).json() == again.json()
        page = until_answered(lambda: client.get("/topics/in-flight/messages", params={"position": 0})).json()
        found = Counter(message["value"] for message in page["messages"])
        assert found["a"] == max(found.values()) == 1


def unread_bytes(broker: BrokerProcess) -> int:
    """Return what the broker's process has not read of what was sent to it."""
    port = int(broker.url.rpartition(":")[2])
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(line[4].partition(":")[2], 16) for line in lines if int(line[1].partition(":")[2], 16) == port)


def test_messages_stream_over_a_socket_and_end_with_the_gateway(gateway: GatewayProcess) -> None:
    path = "/topics/streamed/subscriptions/kitchen"
    seen: list[str] = []
    with client_of(gateway) as client, client_of(gateway) as other:
        assert client.put(path).status_code == 201
        with client.stream("GET", f"{path}/events") as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if line.startswith(":")) == ": next offset 0"
            for number in range(3):
                other.post("/topics/streamed/messages", content=str(number))
                seen.append(next(line for line in lines if line.startswith("id: ") and line.count("-") == 2)[4:])
                assert seen[-1].endswith(f"-{number}")
            # It answers the requests in progress, and does not wait for streams.
            assert gateway.stop() == 0
            assert "problem" not in "".join(lines)
    gateway.start()
    headers = {"Last-Event-ID": seen[1]}
    with client_of(gateway) as client, client.stream("GET", f"{path}/events", headers=headers) as stream:
        assert next(line for line in stream.iter_lines() if line.endswith("-2")).startswith("id: ")


def test_a_get_waits_over_a_socket(gateway: GatewayProcess) -> None:
    path = "/topics/polled/subscriptions/kitchen"
    with client_of(gateway) as client, client_of(gateway) as other, ThreadPoolExecutor(1) as pool:
        assert client.put(path).status_code == 201
        waiting = pool.submit(client.get, f"{path}/messages", params={"wait_ms": 60_000})
        other.post("/topics/polled/messages", content="late")
        assert [message["value"] for message in waiting.result(DEADLINE_S).json()["messages"]] == ["late"]


def test_callers_without_ids_are_served_when_the_broker_is_back(gateway: GatewayProcess, broker: BrokerProcess) -> None:
    path = "/topics/plain/subscriptions/kitchen"
    with client_of(gateway) as client:
        assert client.put(path).status_code == 201
        client.post("/topics/plain/messages", content="a")
        broker.kill()
        broker.start()
        reply = until_answered(lambda: client.get(f"{path}/messages"))
        assert [message["value"] for message in reply.json()["messages"]] == ["a"]
