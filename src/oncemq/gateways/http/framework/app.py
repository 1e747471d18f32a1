"""The gateway as an ASGI application: finds the endpoint, checks who sent the request, runs it and sends its answer.

It uses no web framework: a request costs little more than uvicorn's own work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from oncemq.auth.http_operations import HTTP_NEEDS
from oncemq.gateways.http.framework.admission import Admission
from oncemq.gateways.http.framework.authentication import Access, Authentication, Identity, Sender
from oncemq.gateways.http.framework.callers import Callers, MakeState
from oncemq.gateways.http.framework.endpoint import Answer, Call, Endpoint, Streamed
from oncemq.gateways.http.framework.memory import (
    IS_PIPELINED,
    SMALL_BYTES,
    Disconnected,
    GatewayMemory,
    RequestMemory,
    current_memory,
    reserve_reply,
)
from oncemq.gateways.http.framework.origin_check import OriginCheck
from oncemq.gateways.http.framework.problems import answer_of
from oncemq.gateways.http.framework.request import BodyLate, RequestParser, read_body
from oncemq.gateways.http.framework.responses import Send, send_answer, send_parts, send_while_connected
from oncemq.gateways.http.framework.router import Router
from oncemq.gateways.http.framework.turns import Turns
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.gateways.link import Link
from oncemq.gateways.tasks import cancel, report_failure, start_awaited
from oncemq.protocol import errors

#: How many pipelined requests of all connections are processed at a time. Clients that wait for their responses go
#: ahead of the others.
_PIPELINED_MAX = 2
#: How many wait for that: their bodies, which nobody has read yet, are in memory.
_PIPELINED_WAITING_MAX = 500

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class App:
    def __init__(self, settings: GatewaySettings, endpoints: Sequence[Endpoint], make_state: MakeState) -> None:
        """`make_state` returns what the endpoints keep between requests of one user (`Call.state`)."""
        for endpoint in endpoints:
            if (endpoint.method, endpoint.path) not in HTTP_NEEDS:
                raise LookupError(f"{endpoint.method} {endpoint.path} has no row in auth/http_operations.py")
        self._settings = settings
        self._router = Router(endpoints)
        self._parsers = {id(endpoint): RequestParser(endpoint) for endpoint in endpoints}
        self._origin_check = OriginCheck(settings)
        self._make_state = make_state
        #: Set when the application starts, on its event loop.
        self._link: Link | None = None
        self._authentication: Authentication
        self._callers: Callers
        self._memory = GatewayMemory(settings)
        self.admission = Admission(settings.connections_max)
        self._pipelined = Turns(_PIPELINED_MAX)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End streams, and requests that wait for messages."""
        self._stopping.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._link = Link(
            self._settings.brokers,
            label="http",
            waits_for_space=False,
            reserve=reserve_reply,
            credentials=self._settings.credentials,
        )
        self._authentication = Authentication(self._link)
        self._callers = Callers(self._link, self._make_state)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._link.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        memory = RequestMemory(self._memory, scope)
        current_memory.set(memory)
        try:
            await self._serve_one(scope, receive, send_while_connected(send, memory), memory)
        except Disconnected:
            memory.abort_connection()
        except asyncio.CancelledError:
            # The gateway has stopped; it has closed this connection, which has an unfinished response.
            if not self._stopping.is_set():
                raise
        finally:
            memory.release()

    async def _serve_one(self, scope: Scope, receive: Receive, send: Send, memory: RequestMemory) -> None:
        try:
            answer = await self._answer_in_turn(scope, receive, send, memory)
        except Disconnected:
            raise
        except BodyLate:
            late = answer_of(errors.Malformed("the body arrived too slowly"))
            answer = msgspec.structs.replace(late, headers=(*late.headers, (b"connection", b"close")))
        except errors.OnceMQError as error:
            answer = answer_of(error)
        except Exception as error:
            report_failure("an HTTP request", error)
            answer = answer_of(errors.BrokerBug("the gateway failed; its log has the details"))
        if answer is not None:
            memory.note_reply(len(answer.body))
            await send_answer(answer, send, memory)

    async def _answer_in_turn(self, scope: Scope, receive: Receive, send: Send, memory: RequestMemory) -> Answer | None:
        if not scope.get("extensions", {}).get(IS_PIPELINED):
            return await self._answer(scope, receive, send, memory)
        await memory.drain()
        if self._pipelined.waiting >= _PIPELINED_WAITING_MAX:
            raise errors.Overloaded("there are too many pipelined requests at the moment")
        turn = await self._pipelined.take()
        try:
            return await self._answer(scope, receive, send, memory)
        finally:
            # It ends before the response is sent: a client that does not read it holds up nobody.
            turn.end()

    async def _answer(self, scope: Scope, receive: Receive, send: Send, memory: RequestMemory) -> Answer | None:
        """Return the response; None if it was a stream, which is sent already."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        sender = _sender_of(scope)
        self._origin_check.check(headers, scope["raw_path"], is_encrypted=sender.is_encrypted)
        try:
            endpoint, path = self._router.find(scope["method"], scope["raw_path"])
        except errors.MethodUnknown as error:
            error_format = self._router.error_format(scope["raw_path"])
            if error_format is None:
                raise
            return error_format.answer_of(error)
        try:
            if endpoint.is_changing:
                self._origin_check.check_change(headers)
            # Before the body is received: it may be large.
            identity = await self._identify(endpoint, headers, sender)
            access = Access(self._authentication, identity, sender)
            return await self._answer_to(access, endpoint, path, headers, scope, receive, send, memory)
        except errors.OnceMQError as error:
            if endpoint.error_format is None:
                raise
            return endpoint.error_format.answer_of(error)

    async def _identify(self, endpoint: Endpoint, headers: dict[bytes, bytes], sender: Sender) -> Identity:
        try:
            return await self._authentication.identify(endpoint, headers, sender)
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise
            raise errors.BrokerAway(
                "the gateway is stopping, and the broker has not answered; the request did not happen"
            ) from None

    async def _answer_to(
        self,
        access: Access,
        endpoint: Endpoint,
        path: dict[str, str],
        headers: dict[bytes, bytes],
        scope: Scope,
        receive: Receive,
        send: Send,
        memory: RequestMemory,
    ) -> Answer | None:
        """Answer a request whose sender is known."""
        parser = self._parsers[id(endpoint)]
        try:
            with self._use(access.identity) as (link, state):
                call: Call[Any, Any] = Call(link, self._settings, None, None, headers, state, access)
                body = await read_body(receive, self._body_bytes_max(access.identity), headers, memory)
                call.parameters = parser.parameters(path, scope["query_string"], headers, body, call.media)
                call.body = parser.body(body, call.media)
                answer = await self._run(endpoint, call, receive, send, memory)
        except errors.Unauthenticated:
            self._authentication.forget(access.identity)
            raise
        except errors.Forbidden:
            # A broker without users forbids nothing: it has users now.
            if access.identity.caller == "":
                self._authentication.forget(access.identity)
            raise
        return answer if answer is None or not access.identity.caller else _uncached(answer)

    def _body_bytes_max(self, identity: Identity) -> int:
        limit = self._settings.body_bytes_max
        return limit if identity.caller is not None else min(limit, SMALL_BYTES)

    def _use(self, identity: Identity) -> AbstractContextManager[tuple[Link, Any]]:
        assert self._link is not None
        return nullcontext((self._link, None)) if identity.caller is None else self._callers.use(identity.caller)

    async def _run(
        self, endpoint: Endpoint, call: Call[Any, Any], receive: Receive, send: Send, memory: RequestMemory
    ) -> Answer | None:
        """Run a handler, while there is a place for it. A client that has not sent its whole request yet has no place,
        so it can't keep others out. Raises Overloaded, BrokerAway."""
        waits = endpoint.waits and bool(_wait_ms_of(call))
        places = self.admission.places_for(endpoint, waits=waits)
        places.enter()
        if waits:
            # What it is decoded to is small.
            memory.release_body()
        try:
            working = endpoint.handler(call)
            answer = await (self._while_connected(working, receive) if waits else working)
            if isinstance(answer, Answer):
                return answer
            await self._send_stream(answer, receive, send, memory)
            return None
        except asyncio.CancelledError:
            if not self._stopping.is_set() or endpoint.is_stream:
                raise
            raise errors.BrokerAway(
                "the gateway is stopping, and the broker has not answered; it is not known whether the request happened"
            ) from None
        finally:
            places.leave()

    async def _while_connected(
        self, working: Coroutine[Any, Any, Answer | Streamed], receive: Receive
    ) -> Answer | Streamed:
        """Wait for a slow answer. Raises Disconnected, Stopping."""
        answering = start_awaited(working)
        ending = start_awaited(self._wait_for_end(receive))
        try:
            await asyncio.wait((answering, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(ending)
            if not answering.done():
                await cancel(answering)
        if not answering.cancelled():
            return answering.result()
        if self._stopping.is_set():
            raise errors.Stopping("the gateway is stopping")
        raise Disconnected

    async def _wait_for_end(self, receive: Receive) -> None:
        """Wait until the client has disconnected or the gateway stops."""
        gone = start_awaited(_wait_for_disconnect(receive))
        stopping = start_awaited(self._stopping.wait())
        try:
            await asyncio.wait((gone, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(gone, stopping)

    async def _send_stream(self, streamed: Streamed, receive: Receive, send: Send, memory: RequestMemory) -> None:
        headers = [(b"content-type", streamed.media.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sending = start_awaited(send_parts(streamed, send, memory))
        ending = start_awaited(self._wait_for_end(receive))
        try:
            await asyncio.wait((sending, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(sending, ending)
        error = None if sending.cancelled() else sending.exception()
        if self._stopping.is_set() and sending.cancelled():
            await send({"type": "http.response.body", "body": b""})
        elif isinstance(error, Disconnected):
            raise error
        elif error is not None:
            report_failure("an HTTP stream", error)


def _wait_ms_of(call: Call[Any, Any]) -> int:
    return max(getattr(part, "wait_ms", 0) for part in (call.parameters, call.body))


def _uncached(answer: Answer) -> Answer:
    """Return an answer to one user, which no cache may give to another."""
    if any(name == b"cache-control" for name, _ in answer.headers):
        return answer
    return msgspec.structs.replace(answer, headers=(*answer.headers, (b"cache-control", b"no-store")))


def _sender_of(scope: Scope) -> Sender:
    client = scope.get("client")
    return Sender(client[0] if client else "", scope.get("scheme") == "https")


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
