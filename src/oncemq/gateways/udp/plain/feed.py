"""One topic's messages to its plain subscribers: at most once, and only those from the point of subscription on.

All of them share one subscription at the broker. Its ack is durable before anything is sent, so that a gateway that
dies sends nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oncemq.gateways.link import expect
from oncemq.gateways.udp.context import Station, clock_ms, log
from oncemq.gateways.udp.message_iter import check, draw
from oncemq.gateways.udp.plain import packets
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors
from oncemq.protocol.commands import START_NEW, Ack, Get, Open, Read, Subscribe
from oncemq.protocol.replies import AckReply, GetReply, OpenReply, SubscribeReply

_GET_BYTES = 256 * 1024
#: So long a new subscriber waits for it.
_OPEN_S = 5.0
#: After an obstacle.
_PAUSE_S = 0.2
#: So many messages in one turn of the event loop.
_MESSAGES_PER_TURN = 32


class Feed:
    def __init__(
        self, station: Station, topic: str, on_gone: Callable[[Feed], None], on_tired: Callable[[Address], None]
    ) -> None:
        """`on_gone`: the topic was deleted. `on_tired`: an address has had too many messages without a word."""
        self.topic = topic
        #: To which its addresses have subscribed: one that is made anew is another one.
        self.topic_id = 0
        #: Address → the first offset that it gets.
        self.addresses: dict[Address, int] = {}
        #: Subscribing and unsubscribing, one at a time.
        self.lock = asyncio.Lock()
        #: Who holds the lock, or waits for it.
        self.users = 0
        self._station = station
        self._on_gone = on_gone
        self._on_tired = on_tired
        self._is_open = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._station.run_lasting(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def wait_until_open(self) -> None:
        """From then on no message is missed. Raises BrokerAway."""
        assert self._task is not None
        opening = asyncio.ensure_future(self._is_open.wait())
        try:
            # One that has ended does not open any more.
            await asyncio.wait((opening, self._task), timeout=_OPEN_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opening.cancel()
        if not self._is_open.is_set():
            raise errors.BrokerAway(f"the subscription to '{self.topic}' is not open yet")

    async def _run(self) -> None:
        try:
            await self._keep_serving()
        except (errors.TopicGone, errors.TopicUnknown):
            self._on_gone(self)
        except errors.Fenced:
            log.error("another gateway of the name '%s' took over '%s'", self._station.settings.name, self.topic)
        finally:
            self._is_open.clear()

    async def _keep_serving(self) -> None:
        """Raises TopicGone, TopicUnknown, Fenced."""
        while True:
            try:
                await self._serve(await self._open())
            except (errors.TopicGone, errors.TopicUnknown, errors.Fenced):
                raise
            except errors.OnceMQError as error:
                # Away, sought, unsubscribed by somebody else: the subscribers are still there, so it begins again.
                log.debug("feed of '%s': %s", self.topic, error)
                await asyncio.sleep(_PAUSE_S)

    async def _open(self) -> OpenReply:
        link, name = self._station.link, self._station.settings.feed_name
        self._check_topic((await look_up(self._station, self.topic)).topic_id)
        expect(await link.operate(Subscribe(self.topic, name)), SubscribeReply)
        opened = expect(await link.operate(Open(self.topic, name)), OpenReply)
        self._check_topic(opened.topic_id)
        return opened

    def _check_topic(self, topic_id: int) -> None:
        if topic_id != self.topic_id:
            raise errors.TopicGone(f"'{self.topic}' is another topic by now")

    async def _serve(self, opened: OpenReply) -> None:
        link, settings = self._station.link, self._station.settings
        position = opened.acked
        self._is_open.set()
        while True:
            get = Get(opened.topic_id, settings.feed_name, opened.epoch, position, _GET_BYTES, settings.wait_ms)
            answer, payloads = await link.ask(get)
            reply = expect(answer, GetReply)
            batches = check(reply, payloads)
            if reply.next_position > position:
                ack = Ack(opened.topic_id, settings.feed_name, opened.epoch, reply.next_position)
                expect((await link.ask(ack))[0], AckReply)
                position = reply.next_position
            try:
                for count, (offset, value) in enumerate(draw(batches)):
                    self._publish(offset, value)
                    if count % _MESSAGES_PER_TURN == _MESSAGES_PER_TURN - 1:
                        await asyncio.sleep(0)
            except errors.Malformed as error:
                self._station.counters["batches_unreadable"] += 1
                log.warning("a batch of '%s' can't be read, and is passed over: %s", self.topic, error)

    def _publish(self, offset: int, value: bytes) -> None:
        packet = packets.format_message(self.topic, value)
        station, now_ms = self._station, clock_ms()
        if len(packet) > station.settings.packet_bytes_max:
            station.counters["messages_too_large"] += 1
            return
        for address, first in self.addresses.items():
            if offset < first:
                continue
            if not station.guests.take_credit(now_ms, address):
                self._on_tired(address)
            elif station.send(packet, address):
                station.counters["messages_out"] += 1
        log.debug("message published to subscribers of '%s'", self.topic)


async def look_up(station: Station, topic: str) -> GetReply:
    """Its id, and where its next message will be. Raises TopicUnknown."""
    reply, _ = await station.link.ask(Read(topic, START_NEW, 1))
    return expect(reply, GetReply)
