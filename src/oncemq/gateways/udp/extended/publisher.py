"""One publisher: its puts go to the broker under the numbers of a session, each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oncemq.client.gateway_api import make_put
from oncemq.gateways.link import Link
from oncemq.gateways.udp.context import FAILED, UdpContext, clock_ms
from oncemq.gateways.udp.extended import packets
from oncemq.gateways.udp.extended.channel import Channel
from oncemq.gateways.udp.extended.put_order import PutOrder
from oncemq.gateways.udp.settings import WINDOW
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors
from oncemq.protocol.commands import Numbered, Operation, Void
from oncemq.protocol.names import refuse_topic_name
from oncemq.protocol.replies import HelloReply, PutReply, Refusal, Reply, Verdict

#: The publisher is not the owner of its session any more, or its access token was removed.
_LOST = (errors.Fenced, errors.SessionUnknown, errors.Unauthenticated)


class Publisher:
    def __init__(
        self,
        context: UdpContext,
        link: Link,
        channel: Channel,
        identity: tuple[str, ...],
        hello: packets.Hello,
        session: HelloReply,
        address: Address,
        on_end: Callable[[Publisher], None],
    ) -> None:
        self.identity = identity
        _, self.session = identity
        self.channel = channel
        self.topic_id = 0
        self.nonce = hello.nonce
        self.epoch = session.epoch
        self.address = address
        self.heard_ms = clock_ms()
        self._context = context
        self._link = link
        self._on_end = on_end
        answers = [_answer_of(number, verdict) for number, verdict in session.verdicts]
        self._order = PutOrder(WINDOW, session.last_number, answers, context.waiting_bytes)

    @property
    def position(self) -> int:
        return self._order.next_number - 1

    def move(self, address: Address) -> None:
        self.address = address
        self.heard_ms = clock_ms()

    def end(self) -> None:
        """Puts in flight get their outcome, and the next hello returns it."""
        self._order.drop_waiting()

    def receive(self, put: packets.Put) -> None:
        """Store a put, or answer it again."""
        self.heard_ms = clock_ms()
        known = self._order.add(put)
        if known is not None:
            self._context.counters["repeated"] += 1
            self._send(packets.answer(self.nonce, known))
        elif self._order.has_run:
            self._context.run_for_packet(
                self._store(), "storing datagrams", lambda _: self._refuse(FAILED), self.address
            )

    def _send(self, packet: bytes) -> None:
        self._context.send(self.channel.seal(packet), self.address)

    async def _store(self) -> None:
        while run := self._order.begin_run():
            try:
                # In one turn of the event loop, so that they are sent together and in order.
                results = await asyncio.gather(*map(self._ask, run), return_exceptions=True)
                for put, result in zip(run, results, strict=True):
                    if not await self._settle(put, result):
                        return
            finally:
                self._order.end_run(run)

    async def _ask(self, put: packets.Put) -> Reply:
        if put.is_cut:
            raise errors.TooLarge(f"a packet may have at most {self._context.settings.packet_bytes_max} bytes")
        refusal = refuse_topic_name(put.topic)
        if refusal is not None:
            raise errors.NameInvalid(refusal.text)
        operation, payload = make_put(put.topic, put.creates, [put.content])
        return (await self._link.ask(self._numbered(put.number, operation), payload))[0]

    def _numbered(self, number: int, operation: Operation) -> Numbered:
        # A publisher sends a number only when all numbers more than a window below it are answered.
        return Numbered(self.session, self.epoch, number, max(1, number - WINDOW + 1), operation)

    async def _settle(self, put: packets.Put, result: Reply | BaseException) -> bool:
        """Answer a put. False: the puts after it can't be answered now."""
        if isinstance(result, errors.Gap):
            return False
        if isinstance(result, _LOST):
            self._refuse(result)
            return False
        if isinstance(result, errors.Refused):
            if not await self._use_number(put.number):
                return False
            self._answer(packets.Refused(put.number, result.code, result.text))
            return True
        if isinstance(result, errors.OnceMQError):
            self._send(packets.not_now(self.nonce, put.number, result.code, result.text))
            return False
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, PutReply)
        self._context.counters["messages_in"] += 1
        self._answer(packets.Done(put.number, result.first_offset))
        return True

    async def _use_number(self, number: int) -> bool:
        """Give a number an outcome: a put that was refused before it reached the broker has none yet."""
        try:
            await self._link.ask(self._numbered(number, Void()))
        except errors.Refused:
            return True
        except errors.OnceMQError:
            return False
        return True

    def _refuse(self, error: errors.OnceMQError) -> None:
        """Tell the publisher that its session has ended."""
        self._send(packets.answer(self.nonce, packets.Refused(0, error.code, error.text)))
        self._on_end(self)

    def _answer(self, answer: packets.Answer) -> None:
        self._order.note_answer(answer)
        self._send(packets.answer(self.nonce, answer))


def _answer_of(number: int, verdict: Verdict) -> packets.Answer:
    if isinstance(verdict, PutReply):
        return packets.Done(number, verdict.first_offset)
    if isinstance(verdict, Refusal):
        return packets.Refused(number, verdict.code, verdict.text)
    return packets.Refused(number, errors.Refused.code, "it was refused before it reached the broker")
