"""A gateway in the process of the tests, for the tests of the queue; and a transport for the blocking library."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.gateways.http.rig import Gateway, Json

_numbers = itertools.count(1)


class Queue(Gateway):
    """A gateway; without a broker's address it has a broker of its own."""

    def __init__(self, broker: str = "") -> None:
        super().__init__(broker or f"memory:queue-{next(_numbers)}")

    def ok(self, method: str, path: str, key: str | None = None, **parameters: Any) -> Json:
        response = self.ask(method, path, key, **parameters)
        found: Json = response.json()
        assert (response.status_code, found.pop("status")) == (200, "success"), response.text
        return found

    def refused(self, method: str, path: str, key: str | None = None, **parameters: Any) -> tuple[int, str]:
        """Return the status and the code, and check the form of the response."""
        response = self.ask(method, path, key, **parameters)
        failure = response.json()
        assert list(failure)[:4] == ["status", "error", "code", "advice"]
        assert ("position" in failure) == (failure["code"] == "CONSUMED")
        assert failure["status"] == "failure"
        assert failure["error"]
        assert response.headers["content-type"] == "application/json"
        return response.status_code, failure["code"]

    def ask(self, method: str, path: str, key: str | None = None, **parameters: Any) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        place = {"params": parameters} if method == "GET" else {"json": parameters}
        return self.run(self.client.request(method, path, headers=headers, **place))  # type: ignore[arg-type]

    def populate(self, *messages: str, topic: str = "T1") -> None:
        """P1 has published these for C1."""
        self.ok("POST", "/producer/register", topic=topic, producer_id="P1")
        self.ok("POST", "/consumer/register", topic=topic, consumer_id="C1")
        for message in messages:
            self.produce(message, topic)

    def produce(self, message: str, topic: str = "T1", key: str | None = None) -> Json:
        return self.ok("POST", "/producer/produce", key, topic=topic, producer_id="P1", message=message)

    def consume(self, key: str | None = None, topic: str = "T1", **parameters: Any) -> str:
        found = self.ok("GET", "/consumer/consume", key, topic=topic, consumer_id="C1", **parameters)
        assert found["next_position"] == found["position"] + 1
        return str(found["message"])

    def cant_consume(self, key: str | None = None, topic: str = "T1", **parameters: Any) -> tuple[int, str]:
        return self.refused("GET", "/consumer/consume", key, topic=topic, consumer_id="C1", **parameters)

    def size(self, topic: str = "T1") -> int:
        return int(self.ok("GET", "/size", topic=topic, consumer_id="C1")["size"])


@pytest.fixture
def queue() -> Iterator[Queue]:
    gateway = Queue()
    yield gateway
    gateway.close()


class Straight(httpx.BaseTransport):
    """A transport from the blocking library to the application. `spoil` may raise before or after a request."""

    def __init__(self, gateway: Gateway, spoil: Callable[[httpx.Request, bool], None] | None = None) -> None:
        self._gateway = gateway
        self._spoil = spoil or (lambda _request, _arrived: None)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._spoil(request, False)
        sent = httpx.Request(request.method, request.url, headers=request.headers, content=request.read())
        answered = self._gateway.run(self._gateway.client.send(sent))
        self._spoil(request, True)
        return httpx.Response(answered.status_code, headers=answered.headers, content=answered.content)
