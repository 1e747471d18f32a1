"""An origin that numbers its messages: it has one session at the broker, and its numbers reach the broker in order.

An origin may send many numbers without waiting for answers. They travel in several requests, and a later one may arrive
first: then its number waits for the lower ones in progress, and is sent again.
"""

from __future__ import annotations

import asyncio
import secrets

from oncemq.gateways.link import Link
from oncemq.gateways.tasks import start_awaited
from oncemq.protocol import errors
from oncemq.protocol.commands import Hello, Numbered, Put
from oncemq.protocol.replies import HelloReply, Reply

#: How many of the last outcomes the broker remembers, and so how many numbers may be in progress at a time.
_WINDOW = 64
#: Maximum number of hellos for one message: another gateway may serve the same origin, or its session was deleted.
_HELLOS_MAX = 2


class Origin:
    def __init__(self, link: Link, session: str) -> None:
        self._link = link
        self._session = session
        self._window = asyncio.Semaphore(_WINDOW)
        #: The numbers in progress. A future is done when its number is answered.
        self._in_progress: dict[asyncio.Future[None], int] = {}
        #: The last hello, which returns the epoch.
        self._hello: asyncio.Task[int] | None = None
        self._users = 0

    @property
    def is_idle(self) -> bool:
        return not self._users

    async def put(self, number: int, operation: Put, payload: bytes) -> Reply:
        """Put a message under a number. Raises as the link does."""
        self._users += 1
        try:
            async with self._window:
                return await self._put_in_order(number, operation, payload)
        finally:
            self._users -= 1

    async def _put_in_order(self, number: int, operation: Put, payload: bytes) -> Reply:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_progress[done] = number
        try:
            while True:
                lower = [each for each, its_number in self._in_progress.items() if its_number < number]
                try:
                    return await self._put_in_session(number, operation, payload)
                except errors.Gap:
                    if not lower:
                        raise
                    await asyncio.wait(lower)
        finally:
            del self._in_progress[done]
            done.set_result(None)

    async def _put_in_session(self, number: int, operation: Put, payload: bytes) -> Reply:
        hellos_left = _HELLOS_MAX - 1
        while True:
            hello = self._current_hello()
            epoch = await asyncio.shield(hello)
            command = Numbered(self._session, epoch, number, max(1, number - _WINDOW + 1), operation)
            try:
                return (await self._link.ask(command, payload))[0]
            except (errors.Fenced, errors.SessionUnknown):
                # If there was another hello meanwhile, for another number, this number was fenced by it: try again.
                if self._hello is hello:
                    if not hellos_left:
                        raise
                    hellos_left -= 1
                    self._hello = None

    def _current_hello(self) -> asyncio.Task[int]:
        """All numbers share one hello: each new one fences what was sent under the former one."""
        hello = self._hello
        if hello is None or (hello.done() and (hello.cancelled() or hello.exception() is not None)):
            hello = self._hello = start_awaited(self._say_hello())
        return hello

    async def _say_hello(self) -> int:
        command = Hello(self._session, 0, secrets.randbits(63), _WINDOW)
        return (await self._link.query(command, HelloReply)).epoch
