"""Encrypted ZeroMQ sockets of a gateway (CURVE): the broker says who a new connection is (net/zap.py).

They have a context of their own, because a context has one place where libzmq asks. A login takes a request to the
broker; others need not wait for it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import zmq

from oncemq.gateways.link import Link
from oncemq.gateways.tasks import cancel, report_failure, start
from oncemq.gateways.zmq_reader import ZmqReader
from oncemq.net import zap
from oncemq.net.curve import CurveServerKeys
from oncemq.protocol import errors

log = logging.getLogger("oncemq.gateways")

#: Logins in progress. Further clients are told to try again.
_LOGINS_MAX = 1_000


class SecureSockets:
    def __init__(
        self, keys: CurveServerKeys, link: Link, listener: str, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        """`listener` is the name of the gateway in the broker's audit log."""
        self.context: Any = zmq.Context()
        self._keys = keys
        self._link = link
        self._listener = listener
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        #: Domain → what must be done before a connection is admitted there.
        self._before: dict[bytes, Callable[[], Awaitable[None]]] = {}
        self._zap = ZmqReader(zmq.ROUTER, self._receive, on_failure=on_failure, context=self.context)
        self._zap.bind(zap.ADDRESS)

    def protect(self, socket: Any) -> None:
        """Let a socket accept encrypted connections only, also at Unix sockets."""
        zap.protect(socket, self._keys, b"%d" % id(socket))

    def before_admission(self, socket: Any, call: Callable[[], Awaitable[None]]) -> None:
        """Call this before each connection is admitted to a socket."""
        self._before[b"%d" % id(socket)] = call

    def _receive(self, frames: list[bytes], _: str) -> None:
        request = zap.parse(frames)
        if request is None:
            return
        if len(self._tasks) >= _LOGINS_MAX:
            self._reply(zap.refuse(request, zap.AGAIN, ""))
            return
        task = start(self._answer(request), "a login")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: zap.ZapRequest) -> None:
        try:
            reply = await self._link.login(request.kind, request.key, request.address, self._listener)
            before = self._before.get(request.domain)
            if before is not None:
                await before()
            answer = zap.accept(request, reply.caller, next(self._numbers))
        except errors.OnceMQError as error:
            log.debug("a login was refused: %s", error)
            answer = zap.refuse(request, zap.status_of(error), error.text)
        except Exception as error:
            report_failure("a login", error)
            answer = zap.refuse(request, zap.FAILED, "")
        self._reply(answer)

    def _reply(self, frames: list[bytes]) -> None:
        # The connection may have ended meanwhile.
        self._zap.send(frames)

    async def close(self) -> None:
        """Close everything. All sockets of the context must be closed."""
        await cancel(*self._tasks)
        self._zap.close()
        # It waits until what was sent has left.
        threading.Thread(target=self.context.term, name="oncemq-zeromq", daemon=True).start()
