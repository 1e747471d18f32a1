"""A gateway in the process of the tests, for the tests of /v1."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.gateways.http.rig import Gateway, Json
from tests.gateways.http.served import eventually

DEADLINE_S = 30
_numbers = itertools.count(1)


class V1(Gateway):
    """A gateway with a broker of its own; paths are relative to /v1."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(f"memory:v1-{next(_numbers)}", **settings)

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        return self.run(self.client.request(method, f"/v1{path}", **given))

    def ok(self, method: str, path: str, body: Any = None, status: int = 200, **given: Any) -> Json:
        """Return the JSON of a response, which must have this status."""
        if body is not None:
            given["json"] = body
        response = self.ask(method, path, **given)
        assert response.status_code == status, response.text
        found: Json = response.json() if response.content else {}
        return found

    def refused(self, method: str, path: str, body: Any = None, **given: Any) -> str:
        """Return the code of a refused request."""
        if body is not None:
            given["json"] = body
        return code_of(self.ask(method, path, **given))

    def subscribe(self, topic: str, subscriber: str, **body: Any) -> Json:
        response = self.ask("PUT", f"/topics/{topic}/subscriptions/{subscriber}", json=body)
        assert response.status_code in (200, 201), response.text
        return dict(response.json())

    def store(self, topic: str, *values: str) -> Json:
        body = {"messages": [{"value": value} for value in values]}
        return self.ok("POST", f"/topics/{topic}/messages", body, 201)

    def got(self, topic: str, subscriber: str, **query: Any) -> Json:
        return self.ok("GET", f"/topics/{topic}/subscriptions/{subscriber}/messages", params=query)


@pytest.fixture
def v1() -> Iterator[V1]:
    gateway = V1()
    yield gateway
    gateway.close()


def code_of(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/problem+json", response.text
    problem = response.json()
    assert response.status_code == problem["status"] < 500 or problem["code"] in _OF_FIVE_HUNDRED, problem
    return str(problem["code"])


_OF_FIVE_HUNDRED = ("UNSUPPORTED", "GAP", "STOPPING", "OVERLOADED", "BROKER_AWAY", "TOPIC_FULL")


def values_of(reply: Json) -> list[str]:
    return [message["value"] for message in reply["messages"]]


class Visit:
    """A request whose response is read as it arrives, by a client that may disconnect."""

    def __init__(self, gateway: Gateway, path: str, query: str = "", headers: dict[str, str] | None = None) -> None:
        self._scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        }
        self._gateway = gateway
        self._left = asyncio.Event()
        self._asked = False
        self.status = 0
        self.text = ""

    async def __aenter__(self) -> Visit:
        self.serving = asyncio.ensure_future(self._gateway.app(self._scope, self._receive, self._send))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        self._left.set()
        async with asyncio.timeout(DEADLINE_S):
            await self.serving

    async def _receive(self) -> Json:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b""}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"").decode()

    async def until(self, is_there: Callable[[str], bool]) -> str:
        await eventually(lambda: is_there(self.text))
        return self.text

    @property
    def ids(self) -> list[str]:
        """Return the ids of the stream and its events."""
        return [line[4:] for line in self.text.splitlines() if line.startswith("id: ")]

    @property
    def offsets(self) -> list[int]:
        return [int(each.split("-")[2]) for each in self.ids if each.count("-") == 2]
