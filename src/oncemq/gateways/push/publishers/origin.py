"""An origin that numbers its messages: one session at the broker, greeted once, and its numbers in order.

An origin may send many numbers without waiting for answers. They reach the broker by several requests, of which a later
one may come first: then a number waits for the lower ones that are in hand, and is sent again.
"""

from __future__ import annotations

import asyncio
import secrets

from oncemq.gateways.link import Link, expect
from oncemq.protocol import errors
from oncemq.protocol.commands import Hello, Numbered, Put
from oncemq.protocol.replies import HelloReply, Reply

#: Answers that are remembered, the last ones; and so numbers that are in hand at a time.
_WINDOW = 64
#: Greetings for one message: another gateway may serve the same origin, or an operator has removed its session.
_GREETINGS_MAX = 2


class Origin:
    def __init__(self, link: Link, session: str) -> None:
        self._link = link
        self._session = session
        self._turns = asyncio.Semaphore(_WINDOW)
        #: Of the numbers that are in hand; each is done when its number is answered.
        self._in_hand: dict[asyncio.Future[None], int] = {}
        #: The last greeting, which brings the epoch.
        self._greeting: asyncio.Task[int] | None = None
        self._users = 0

    @property
    def is_idle(self) -> bool:
        return not self._users

    async def put(self, number: int, operation: Put, payload: bytes) -> Reply:
        """Raises as the link does."""
        self._users += 1
        try:
            async with self._turns:
                return await self._put_in_turn(number, operation, payload)
        finally:
            self._users -= 1

    async def _put_in_turn(self, number: int, operation: Put, payload: bytes) -> Reply:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_hand[done] = number
        try:
            while True:
                lower = [each for each, its_number in self._in_hand.items() if its_number < number]
                try:
                    return await self._put_greeted(number, operation, payload)
                except errors.Gap:
                    if not lower:
                        raise
                    await asyncio.wait(lower)
        finally:
            del self._in_hand[done]
            done.set_result(None)

    async def _put_greeted(self, number: int, operation: Put, payload: bytes) -> Reply:
        greetings_left = _GREETINGS_MAX - 1
        while True:
            greeting = self._greeted()
            epoch = await asyncio.shield(greeting)
            command = Numbered(self._session, epoch, number, max(1, number - _WINDOW + 1), operation)
            try:
                return (await self._link.ask(command, payload))[0]
            except (errors.Fenced, errors.SessionUnknown):
                # If it was greeted again meanwhile, for another number, that is all that this means.
                if self._greeting is greeting:
                    if not greetings_left:
                        raise
                    greetings_left -= 1
                    self._greeting = None

    def _greeted(self) -> asyncio.Task[int]:
        """One for all: each greeting fences what was sent under the former one."""
        greeting = self._greeting
        if greeting is None or (greeting.done() and (greeting.cancelled() or greeting.exception() is not None)):
            greeting = self._greeting = asyncio.ensure_future(self._greet())
        return greeting

    async def _greet(self) -> int:
        hello = Hello(self._session, 0, secrets.randbits(63), _WINDOW)
        return expect((await self._link.ask(hello))[0], HelloReply).epoch
