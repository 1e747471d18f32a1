"""The ack socket: answers the requests of REQ peers, and of DEALER peers with or without an empty frame.

request     [JSON]      publish: [JSON] [content]
answer      [JSON]
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

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
from oncemq.gateways.push.publishers.reliable import ReliablePublishers
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.subscribers import ReliableSubscribers
from oncemq.gateways.secure_sockets import SecureSockets
from oncemq.gateways.tasks import drain, report_failure, start
from oncemq.gateways.zmq_reader import ZmqReader
from oncemq.protocol import errors

log = logging.getLogger("oncemq.push")

#: Maximum number of requests in progress.
_REQUESTS_MAX = 10_000
#: Requests of one peer that wait inside ZeroMQ, in addition to what the network holds. They may be large.
_WAITING_MAX = 100


class AckServer:
    def __init__(
        self,
        settings: PushSettings,
        subscribers: ReliableSubscribers,
        publishers: ReliablePublishers,
        counters: Counters,
        on_failure: Callable[[], None] = lambda: None,
        secure: SecureSockets | None = None,
    ) -> None:
        """Listen. Raises ListenFailed."""
        self._subscribers = subscribers
        self._publishers = publishers
        self._counters = counters
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._bytes_max = settings.buffer_bytes_max
        self._socket = ZmqReader(zmq.ROUTER, self._receive, on_failure=on_failure, secure=secure)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.MAXMSGSIZE, settings.message_bytes_max)
        self._socket.set(zmq.SNDHWM, 10_000)
        self._socket.set(zmq.RCVHWM, _WAITING_MAX)
        self._socket.guard("the ack listener", settings.limits, counters)
        self._socket.bind(settings.acks)

    @property
    def address(self) -> str:
        return self._socket.address

    def _receive(self, frames: list[bytes], caller: str) -> None:
        begin = 2 if frames[1:2] == [b""] else 1
        envelope, body = frames[:begin], frames[begin:]
        size = sum(map(len, frames))
        if not self._has_capacity(size):
            self._counters.add("requests_refused")
            self._send(envelope, error_of(errors.Overloaded("too many requests are in progress")), caller)
            return
        self._bytes += size
        task = start(self._answer(envelope, body, caller), "a push request")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finish(done, size))

    def _has_capacity(self, size: int) -> bool:
        """A single request is always accepted."""
        return len(self._tasks) < _REQUESTS_MAX and (not self._tasks or self._bytes + size <= self._bytes_max)

    def _finish(self, task: asyncio.Task[None], size: int) -> None:
        self._tasks.discard(task)
        self._bytes -= size

    async def _answer(self, envelope: list[bytes], body: list[bytes], caller: str) -> None:
        try:
            answer = await self._perform(body, caller)
        except errors.Malformed as error:
            self._counters.report("requests_malformed", f"a request is malformed: {error.text}")
            answer = error_of(error)
        except errors.OnceMQError as error:
            self._counters.add("requests_refused")
            answer = error_of(error)
        except Exception as error:
            report_failure("a push request", error)
            answer = error_of(errors.BrokerBug("the gateway failed; its log has the details"))
        self._send(envelope, answer, caller)

    async def _perform(self, body: list[bytes], caller: str) -> Answer:
        if not body:
            raise errors.Malformed("the request is empty")
        request = decode_request(body[0])
        if len(body) != (2 if isinstance(request, Publish) else 1):
            raise errors.Malformed("publish has two frames, the second being the content; other requests have one")
        if isinstance(request, AckReceived):
            return await self._subscribers.ack(request, caller)
        if isinstance(request, Publish):
            return await self._publishers.publish(request, body[1], caller)
        if isinstance(request, Hello):
            return await self._subscribers.hello(request, caller)
        assert isinstance(request, Goodbye)
        return await self._subscribers.goodbye(request, caller)

    def _send(self, envelope: list[bytes], answer: Answer, caller: str) -> None:
        # A peer that has gone, or does not read, asks again.
        try:
            self._socket.send([*envelope, encode(answer)], caller)
        except zmq.Again:
            self._socket.note_dropped(envelope[0])
        except zmq.ZMQError:
            pass

    async def stop(self, drain_s: float) -> None:
        """Requests in progress have `drain_s` to be answered."""
        await drain(self._tasks, drain_s)
        self._socket.close()
