"""Delivers messages to one subscriber exactly once: gets them from the broker, sends them, sends them again, acks them.

The subscription is durable and belongs to a name, not to an address. This object can be lost at any time: the
subscriber says hello again, and the broker knows what it has acked.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress

from oncemq.gateways.batches import iterate_values, verified_batches
from oncemq.gateways.subscription import OpenSubscription
from oncemq.gateways.udp.context import FAILED, UdpContext, clock_ms, log
from oncemq.gateways.udp.extended import packets
from oncemq.gateways.udp.extended.channel import Channel
from oncemq.gateways.udp.extended.send_window import SendWindow
from oncemq.gateways.udp.settings import WINDOW, WINDOW_BYTES
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import GetReply

_GET_BYTES = 64 * 1024
_PAUSE_S = 0.2
#: How long fetched messages wait for space in the window: each one, and all of them together.
_HOLD_S = 0.2
_HOLD_TOTAL_S = 5.0
#: Packets that are due within this time are sent together.
_TIMER_MS_MIN = 1.0
_NEVER = float("inf")


class Delivery:
    def __init__(
        self,
        context: UdpContext,
        channel: Channel,
        identity: tuple[str, ...],
        hello: packets.Hello,
        subscription: OpenSubscription,
        address: Address,
        on_end: Callable[[Delivery], None],
    ) -> None:
        self.topic = hello.topic
        self.subscriber = hello.name
        self.identity = identity
        self.channel = channel
        self.nonce = hello.nonce
        self.epoch = subscription.epoch
        self.topic_id = subscription.topic_id
        self.address = address
        self.heard_ms = clock_ms()
        #: All offsets below are acked durably.
        self.position = subscription.acked
        self._context = context
        self._subscription = subscription
        self._on_end = on_end
        #: All offsets below are acked by the subscriber.
        self._upto = max(subscription.acked, hello.position)
        #: The `first` of the next packet: the offset after the last message that was sent.
        self._first = self._upto
        self._window = SendWindow(WINDOW, WINDOW_BYTES, self.heard_ms, random.Random())
        self._has_space = asyncio.Event()
        #: There are messages to fetch without waiting.
        self._has_backlog = True
        #: The subscriber was too slow for what was fetched last, which was dropped.
        self._is_slow = False
        self._ack_task: asyncio.Task[None] | None = None
        self._timer: asyncio.Handle | None = None
        self._timer_ms = _NEVER
        self._task = self._start(self._run(), "a delivery of datagrams")
        if self._upto > self.position:
            self._ack_soon()

    def _start(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        return self._context.run_in_background(work, name, lambda _: self._refuse(FAILED))

    # From the subscriber.

    def note_ack(self, ack: packets.Ack) -> None:
        """The subscriber has sent an ack."""
        now_ms = self.heard_ms = clock_ms()
        self._upto = max(self._upto, ack.upto)
        # It may be ahead: another gateway, or this one before a restart, has sent it messages.
        self._first = max(self._first, self._upto)
        self._window.note_ack(now_ms, ack.upto, ack.bitmap)
        self._send_due()
        if self._window.has_capacity:
            self._has_space.set()
        if self._upto > self.position:
            self._ack_soon()
        else:
            self._send(packets.acked(self.nonce, self.position))

    def move(self, address: Address) -> None:
        """The subscriber has another address now, which is validated."""
        self.address = address
        self.heard_ms = clock_ms()

    def end(self) -> None:
        for task in (self._task, self._ack_task):
            if task is not None:
                task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # To the subscriber.

    def _send(self, packet: bytes) -> None:
        self._context.send(self.channel.seal(packet), self.address)

    async def _run(self) -> None:
        position = self._upto
        while True:
            try:
                position = await self._advance(position)
            except errors.TRANSIENT as error:
                log.debug("the delivery to '%s' on '%s' waits: %s", self.subscriber, self.topic, error)
                await asyncio.sleep(_PAUSE_S)
            except errors.OnceMQError as error:
                self._refuse(error)
                return

    def _refuse(self, error: errors.OnceMQError) -> None:
        """Tell the subscriber that the delivery has ended."""
        self._send(packets.answer(self.nonce, packets.Refused(0, error.code, error.text)))
        self._on_end(self)

    async def _advance(self, position: int) -> int:
        """Get and send the messages from a position on. Returns the next position. Raises Overloaded."""
        # A slow subscriber has its messages fetched again many at a time: their batch may be large.
        while not (self._window.is_half_free if self._is_slow else self._window.has_capacity):
            self._has_space.clear()
            await self._has_space.wait()
        reply, payloads = await self._get(position)
        with self._context.holding(sum(map(len, payloads))):
            until_s = time.monotonic() + _HOLD_TOTAL_S
            batches = verified_batches(self.topic, reply, payloads)
            # Nobody can ever decode a malformed batch, and others wait behind it.
            for offset, value in iterate_values(self.topic, batches, errors.Malformed, self._context.counters):
                if not await self._is_space_soon(until_s):
                    self._has_backlog = self._is_slow = True
                    return offset
                self._send_message(offset, value)
        self._has_backlog = reply.end_offset > reply.next_position
        self._is_slow = False
        return reply.next_position

    async def _get(self, position: int) -> tuple[GetReply, Sequence[Frame]]:
        if not self._has_backlog:
            return await self._subscription.get(position, _GET_BYTES, self._context.settings.wait_ms)
        # A get returns at least one batch, which may be large.
        async with self._context.fetches:
            return await self._subscription.get(position, _GET_BYTES)

    async def _is_space_soon(self, until_s: float) -> bool:
        """Wait for space in the window for at most `_HOLD_S`, and not beyond `until_s`."""
        if not self._window.has_capacity:
            self._has_space.clear()
            with suppress(TimeoutError):
                # Not `wait_for`: in Python 3.11 it may swallow a cancellation.
                async with asyncio.timeout(min(_HOLD_S, until_s - time.monotonic())):
                    await self._has_space.wait()
        return self._window.has_capacity

    def _send_message(self, offset: int, value: bytes) -> None:
        if offset < self._upto:
            return
        size = packets.MESSAGE_HEAD_BYTES + len(value) + self.channel.overhead_bytes
        if size > self._context.settings.packet_bytes_max:
            self._context.counters["messages_too_large"] += 1
            packet = packets.too_large(self.nonce, self._first, offset, len(value))
        else:
            packet = packets.message(self.nonce, self._first, offset, value)
        self._first = offset + 1
        self._window.note_sent(clock_ms(), offset, packet)
        self._context.counters["messages_out"] += 1
        self._send(packet)
        self._set_timer()

    def _send_due(self) -> None:
        for packet in self._window.due(clock_ms()):
            self._context.counters["messages_resent"] += 1
            self._send(packet)
        self._set_timer()

    def _set_timer(self) -> None:
        now_ms = clock_ms()
        due_ms = max(self._window.next_due_ms(now_ms), now_ms + _TIMER_MS_MIN)
        if due_ms == _NEVER:
            return
        if self._timer is not None:
            # A timer that is due earlier does no harm, and is cheaper than another one.
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later((due_ms - now_ms) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._send_due()
        except Exception as error:
            self._context.report_failure("sending datagrams again", error)
            self._refuse(FAILED)

    # To the broker.

    def _ack_soon(self) -> None:
        """One ack at a time: acks that come meanwhile are part of the next one."""
        if self._ack_task is None or self._ack_task.done():
            self._ack_task = self._start(self._ack(), "an ack of datagrams")

    async def _ack(self) -> None:
        while self._upto > self.position:
            try:
                self.position = await self._subscription.ack(self._upto)
            except errors.Refused as error:
                self._refuse(error)
                return
            self._send(packets.acked(self.nonce, self.position))
