"""One subscriber's messages on their way to it, exactly once: got from the broker, sent, sent again, acked.

The subscription is durable and belongs to a name, not to an address. Whatever is in here can be lost at any time: the
subscriber says hello again, and the broker knows what it has acked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from oncemq.gateways.link import expect
from oncemq.gateways.udp.context import Station, clock_ms, log
from oncemq.gateways.udp.extended import packets
from oncemq.gateways.udp.extended.send_window import SendWindow
from oncemq.gateways.udp.message_iter import check, draw
from oncemq.gateways.udp.settings import WINDOW, WINDOW_BYTES
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors
from oncemq.protocol.commands import Ack, Get
from oncemq.protocol.replies import AckReply, GetReply, OpenReply

_GET_BYTES = 64 * 1024
_PAUSE_S = 0.2


class Delivery:
    def __init__(
        self,
        station: Station,
        hello: packets.Hello,
        opened: OpenReply,
        address: Address,
        on_end: Callable[[Delivery], None],
    ) -> None:
        self.topic = hello.topic
        self.subscriber = hello.name
        self.identity = (hello.topic, hello.name)
        self.nonce = hello.nonce
        self.epoch = opened.epoch
        self.address = address
        self.heard_ms = clock_ms()
        #: Durable: everything below is done.
        self.acked = opened.acked
        self._station = station
        self.topic_id = opened.topic_id
        self._on_end = on_end
        self._upto = max(opened.acked, hello.position)
        #: Of the next packet: one behind the last message that was sent.
        self._first = self._upto
        self._window = SendWindow(WINDOW, WINDOW_BYTES, self.heard_ms, random.Random())
        self._room = asyncio.Event()
        self._ack_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task = station.run_lasting(self._run())
        if self._upto > self.acked:
            self._ack_soon()

    @property
    def position(self) -> int:
        return self.acked

    # From the subscriber.

    def heard(self, ack: packets.Ack) -> None:
        """It is still there, and has these."""
        now_ms = self.heard_ms = clock_ms()
        self._upto = max(self._upto, ack.upto)
        # It may be ahead: another gateway, or an earlier life of this one, has sent it more than is known here.
        self._first = max(self._first, self._upto)
        self._window.heard(now_ms, ack.upto, ack.bitmap)
        self._send_due()
        if self._window.has_room:
            self._room.set()
        if self._upto > self.acked:
            self._ack_soon()
        else:
            self._send(packets.acked(self.nonce, self.acked))

    def move(self, address: Address) -> None:
        """It has another address by now, and has proved it."""
        self.address = address
        self.heard_ms = clock_ms()

    def end(self) -> None:
        for task in (self._task, self._ack_task):
            if task is not None:
                task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # To it.

    def _send(self, packet: bytes) -> None:
        self._station.send(packet, self.address)

    async def _run(self) -> None:
        position = self._upto
        while True:
            try:
                position = await self._advance(position)
            except (errors.BrokerAway, errors.NotNow) as error:
                log.debug("'%s' on '%s' waits: %s", self.subscriber, self.topic, error)
                await asyncio.sleep(_PAUSE_S)
            except errors.OnceMQError as error:
                self._give_up(error)
                return

    def _give_up(self, error: errors.OnceMQError) -> None:
        self._send(packets.answer(self.nonce, packets.Refused(0, error.code, error.text)))
        self._on_end(self)

    async def _advance(self, position: int) -> int:
        """What lies at a position or behind it, all of it sent. Returns where to go on."""
        get = Get(self.topic_id, self.subscriber, self.epoch, position, _GET_BYTES, self._station.settings.wait_ms)
        answer, payloads = await self._station.link.ask(get)
        reply = expect(answer, GetReply)
        for offset, value in draw(check(reply, payloads)):
            while not self._window.has_room:
                self._room.clear()
                await self._room.wait()
            self._send_message(offset, value)
        return reply.next_position

    def _send_message(self, offset: int, value: bytes) -> None:
        if offset < self._upto:
            return
        size = packets.MESSAGE_HEAD_BYTES + len(value)
        if size > self._station.settings.packet_bytes_max:
            self._station.counters["messages_too_large"] += 1
            packet = packets.too_large(self.nonce, self._first, offset, len(value))
        else:
            packet = packets.message(self.nonce, self._first, offset, value)
        self._first = offset + 1
        self._window.sent(clock_ms(), offset, packet)
        self._station.counters["messages_out"] += 1
        self._send(packet)
        self._set_timer()

    def _send_due(self) -> None:
        for packet in self._window.due(clock_ms()):
            self._station.counters["messages_resent"] += 1
            self._send(packet)
        self._set_timer()

    def _set_timer(self) -> None:
        now_ms = clock_ms()
        due_ms = self._window.next_due_ms(now_ms)
        if due_ms == float("inf"):
            return
        loop = asyncio.get_running_loop()
        due_s = loop.time() + max(0.001, (due_ms - now_ms) / 1000)
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._send_due()

    # To the broker.

    def _ack_soon(self) -> None:
        """One ack at a time: what comes meanwhile goes with the next."""
        if self._ack_task is None or self._ack_task.done():
            self._ack_task = self._station.run_lasting(self._ack())

    async def _ack(self) -> None:
        while self._upto > self.acked:
            ack = Ack(self.topic_id, self.subscriber, self.epoch, self._upto)
            try:
                self.acked = expect((await self._station.link.ask(ack))[0], AckReply).acked
            except errors.Refused as error:
                self._give_up(error)
                return
            self._send(packets.acked(self.nonce, self.acked))
