"""A gateway in the process of the tests, with a broker in memory: requests go directly to the application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, MutableMapping
from typing import Any, TypeVar

import httpx

from oncemq.gateways.http.endpoints import make_app
from oncemq.gateways.http.framework.app import App
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.gateways.http.state import State

T = TypeVar("T")
Json = dict[str, Any]


class Lifespan:
    """Starts and stops an application."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._told: asyncio.Queue[Json] = asyncio.Queue()
        self._heard: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()

    async def start(self) -> None:
        self._living = asyncio.ensure_future(self._app({"type": "lifespan"}, self._told.get, self._heard.put))
        await self._tell("startup")

    async def stop(self) -> None:
        await self._tell("shutdown")
        await self._living

    async def _tell(self, what: str) -> None:
        await self._told.put({"type": f"lifespan.{what}"})
        assert (await self._heard.get())["type"] == f"lifespan.{what}.complete"


class Gateway:
    """A blocking interface for tests; `run` is for concurrent requests."""

    def __init__(self, broker: str, **settings: Any) -> None:
        self._runner = asyncio.Runner()
        self.broker = broker
        self.app = make_app(GatewaySettings(brokers=(broker,), **settings))
        self._lifespan = Lifespan(self.app)
        self.run(self._lifespan.start())
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://127.0.0.1:8002")

    @property
    def state(self) -> State:
        """What the gateway keeps between requests, for a broker without users."""
        with self.app._callers.use("") as (_, state):
            found: State = state
            return found

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def together(self, *requests: Awaitable[httpx.Response]) -> list[httpx.Response]:
        async def all_of_them() -> list[httpx.Response]:
            return list(await asyncio.gather(*requests))

        return self.run(all_of_them())

    def get(self, path: str, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
        return self.run(self.client.get(path, params=query, headers=headers))

    def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        return self.run(self.client.post(path, json=body, headers=headers))

    def close(self) -> None:
        self.run(self.client.aclose())
        self.run(self._lifespan.stop())
        self._runner.close()
