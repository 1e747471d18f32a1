"""The ack socket: requests of plain REQ peers, each answered; of DEALER peers too, with or without an empty frame.

request     [JSON]      publish: [JSON] [content]
answer      [JSON]
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import zmq

from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.messages import (
    AckReceived,
    Answer,
    Goodbye,
    Hello,
    Publish,
    decode_request,
    encode,
    error_of,
)
from oncemq.gateways.push.publishers.reliable import Publishing
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.sockets import PushSocket
from oncemq.gateways.push.subscribers.subscribers import Reliable
from oncemq.protocol import errors

log = logging.getLogger("oncemq.push")

#: Requests that are being answered, at the most.
_REQUESTS_MAX = 10_000
#: Those of one peer that wait inside ZeroMQ, beside what the network holds; they may be large.
_WAITING_MAX = 100


class Desk:
    def __init__(self, settings: PushSettings, reliable: Reliable, publishing: Publishing, counters: Counters) -> None:
        """Raises ListenFailed."""
        self._reliable = reliable
        self._publishing = publishing
        self._counters = counters
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._bytes_max = settings.buffer_bytes_max
        self._watched = PushSocket(zmq.ROUTER, self._take)
        self._watched.set(zmq.ROUTER_MANDATORY, 1)
        self._watched.set(zmq.MAXMSGSIZE, settings.message_bytes_max)
        self._watched.set(zmq.SNDHWM, 10_000)
        self._watched.set(zmq.RCVHWM, _WAITING_MAX)
        self._watched.bind(settings.acks)

    @property
    def address(self) -> str:
        return self._watched.address

    def _take(self, frames: list[bytes]) -> None:
        begin = 2 if frames[1:2] == [b""] else 1
        envelope, body = frames[:begin], frames[begin:]
        size = sum(map(len, frames))
        if not self._has_room(size):
            self._counters.add("requests_refused")
            self._send(envelope, error_of(errors.Overloaded("too many requests are being answered")))
            return
        self._bytes += size
        task = asyncio.ensure_future(self._answer(envelope, body))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._over(done, size))

    def _has_room(self, size: int) -> bool:
        """One alone always has."""
        return len(self._tasks) < _REQUESTS_MAX and (not self._tasks or self._bytes + size <= self._bytes_max)

    def _over(self, task: asyncio.Task[None], size: int) -> None:
        self._tasks.discard(task)
        self._bytes -= size

    async def _answer(self, envelope: list[bytes], body: list[bytes]) -> None:
        try:
            answer = await self._perform(body)
        except errors.Malformed as error:
            self._counters.trouble("requests_malformed", f"a request could not be read: {error.text}")
            answer = error_of(error)
        except errors.OnceMQError as error:
            self._counters.add("requests_refused")
            answer = error_of(error)
        except Exception:
            log.exception("a request could not be answered")
            answer = error_of(errors.BrokerBug("the gateway could not answer this; its log says why"))
        self._send(envelope, answer)

    async def _perform(self, body: list[bytes]) -> Answer:
        if not body:
            raise errors.Malformed("an empty request")
        said = decode_request(body[0])
        if len(body) != (2 if isinstance(said, Publish) else 1):
            raise errors.Malformed("publish has two frames, its content being the second; all others have one")
        if isinstance(said, AckReceived):
            return await self._reliable.received(said)
        if isinstance(said, Publish):
            return await self._publishing.publish(said, body[1])
        if isinstance(said, Hello):
            return await self._reliable.hello(said)
        assert isinstance(said, Goodbye)
        return await self._reliable.goodbye(said)

    def _send(self, envelope: list[bytes], answer: Answer) -> None:
        # Whoever has gone, or does not read, asks again.
        with contextlib.suppress(zmq.ZMQError):
            self._watched.socket.send_multipart([*envelope, encode(answer)], zmq.NOBLOCK)
        self._watched.look()

    async def stop(self, drain_s: float) -> None:
        """What is being answered has so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=drain_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._watched.close()
