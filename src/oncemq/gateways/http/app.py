"""The gateway as an ASGI application: who may call, which endpoint is meant, what is answered.

No framework on the way: a request costs little more than what uvicorn makes of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from oncemq import errors
from oncemq.gateways.http import v1_health, v1_topics
from oncemq.gateways.http.endpoint import Answer, Call, Endpoint, Streamed
from oncemq.gateways.http.guarding import Guard
from oncemq.gateways.http.problems import answer_of
from oncemq.gateways.http.reading import Disconnected, Reader, read_body
from oncemq.gateways.http.router import Router
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.gateways.http.state import State
from oncemq.gateways.link import Link

log = logging.getLogger("oncemq.http")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

ENDPOINTS: list[Endpoint] = [*v1_topics.ENDPOINTS, *v1_health.ENDPOINTS]


class App:
    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._router = Router(ENDPOINTS)
        self._readers = {id(endpoint): Reader(endpoint) for endpoint in ENDPOINTS}
        self._guard = Guard(settings)
        self._link: Link | None = None
        self._state = State()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._link = Link(self._settings.brokers, label="http")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._link.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope, receive)
        except Disconnected:
            return
        except errors.OnceMQError as error:
            answer = answer_of(error)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            answer = answer_of(errors.BrokerBug("the gateway failed; its log says how"))
        if isinstance(answer, Streamed):
            await _send_stream(answer, receive, send)
        else:
            await _send_answer(answer, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer | Streamed:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        self._guard.check(headers)
        endpoint, path = self._router.find(scope["method"], scope["raw_path"])
        reader = self._readers[id(endpoint)]
        body = await read_body(receive, self._settings.body_bytes_max, headers.get(b"content-length"))
        assert self._link is not None
        call: Call[Any, Any] = Call(self._link, self._settings, None, None, headers, self._state)
        call.parameters = reader.parameters(path, scope["query_string"], headers, body, call.media)
        call.body = reader.body(body, call.media)
        return await endpoint.handler(call)


async def _send_answer(answer: Answer, send: Send) -> None:
    headers = [
        (b"content-type", answer.media.encode()),
        (b"content-length", b"%d" % len(answer.body)),
        *answer.headers,
    ]
    if not answer.body and answer.status in (204, 304):
        headers = [*answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _send_stream(streamed: Streamed, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", streamed.media.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    sending = asyncio.ensure_future(_send_parts(streamed, send))
    leaving = asyncio.ensure_future(_wait_for_end(receive))
    try:
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not sending.done():
            sending.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)


async def _send_parts(streamed: Streamed, send: Send) -> None:
    async for part in streamed.parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _wait_for_end(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
