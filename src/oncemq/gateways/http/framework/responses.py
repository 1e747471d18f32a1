"""Sends responses, in parts that the client must read before it gets the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from oncemq.gateways.http.framework.endpoint import Answer, Streamed
from oncemq.gateways.http.framework.memory import Disconnected, RequestMemory

#: A response is sent in parts of this size, each after the client has read most of the one before.
_PART_BYTES = 128 * 1024

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def send_while_connected(send: Send, memory: RequestMemory) -> Send:
    """Return a `send` that raises Disconnected when the connection is closed. uvloop closes it as soon as a write
    fails, and tells uvicorn later; until then, uvicorn's `send` raises RuntimeError."""

    async def send_if_connected(message: MutableMapping[str, Any]) -> None:
        try:
            await send(message)
        except RuntimeError:
            if memory.is_client_gone():
                raise Disconnected from None
            raise

    return send_if_connected


async def send_answer(answer: Answer, send: Send, memory: RequestMemory) -> None:
    """Send a response as a whole."""
    headers = [
        (b"content-type", answer.media.encode()),
        (b"content-length", b"%d" % len(answer.body)),
        *answer.headers,
    ]
    if not answer.body and answer.status in (204, 304):
        headers = [*answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    body = answer.body
    if len(body) > _PART_BYTES:
        body = await _send_all_but_last(memoryview(body), send, memory)
    await send({"type": "http.response.body", "body": body})


async def _send_all_but_last(body: memoryview, send: Send, memory: RequestMemory) -> bytes:
    """Return the last part."""
    start = 0
    while len(body) - start > _PART_BYTES:
        part = bytes(body[start : start + _PART_BYTES])
        await send({"type": "http.response.body", "body": part, "more_body": True})
        memory.note_sent(len(part))
        start += len(part)
    return bytes(body[start:])


async def send_parts(streamed: Streamed, send: Send, memory: RequestMemory) -> None:
    """Send the parts of a stream, and its end. Raises Disconnected."""
    async for part in streamed.parts:
        memory.start_sending()
        last = part if len(part) <= _PART_BYTES else await _send_all_but_last(memoryview(part), send, memory)
        await send({"type": "http.response.body", "body": last, "more_body": True})
        if memory.is_client_gone():
            # The stream must not ack what was sent in vain.
            raise Disconnected
        memory.note_sent(len(last))
    await send({"type": "http.response.body", "body": b""})
