"""Answers plain packets. What it says is S4's, to the letter; errors that S4 did not know start with `Error`."""

from __future__ import annotations

from oncemq.gateways.link import expect
from oncemq.gateways.udp.context import Station, clock_ms, log
from oncemq.gateways.udp.plain import packets
from oncemq.gateways.udp.plain.feeds import Feeds
from oncemq.gateways.udp.settings import LIST_BYTES_MAX
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors
from oncemq.protocol.commands import CreateTopic, Topics
from oncemq.protocol.replies import TopicReply, TopicsReply

#: No list that fits is longer: a name takes three bytes of it at the least.
_LIST_TOPICS = LIST_BYTES_MAX // 3


class PlainDesk:
    def __init__(self, station: Station, feeds: Feeds) -> None:
        self._station = station
        self._feeds = feeds
        #: Before it knows who is subscribed, it can't say who is not.
        self.is_ready = False

    def receive(self, packet: bytes, address: Address) -> None:
        station, size = self._station, len(packet)
        station.guests.heard(clock_ms(), address)
        try:
            request = packets.parse(packet)
        except errors.OnceMQError as error:
            station.counters["malformed"] += 1
            if packet.startswith(packets.ERROR):
                # Of another one who answers what he does not understand: neither would ever end.
                return
            self._say(address, size, packets.format_error(error))
            return
        if isinstance(request, packets.Subscribe | packets.Unsubscribe) and not self.is_ready:
            station.counters["dropped_busy"] += 1
            return
        station.run_errand(self._answer(request, address, size))

    def receive_oversized(self, address: Address, size: int) -> None:
        most = self._station.settings.packet_bytes_max
        self._say(address, size, packets.format_error(errors.TooLarge(f"a packet has at most {most} bytes")))

    async def _answer(self, request: packets.Request, address: Address, size: int) -> None:
        try:
            said = await self._perform(request, address, size)
        except (errors.BrokerAway, errors.ClientClosed, errors.Stopping, errors.Standby):
            # Stop and wait: silence makes the client send it again.
            raise
        except errors.OnceMQError as error:
            said = packets.format_error(error)
        self._say(address, size, said)

    async def _perform(self, request: packets.Request, address: Address, size: int) -> str:
        if isinstance(request, packets.Publish):
            return await self._publish(request)
        if isinstance(request, packets.Subscribe):
            return await self._subscribe(request.topic, address)
        if isinstance(request, packets.Unsubscribe):
            return await self._unsubscribe(request.topic, address)
        return await self._list(request.after, address, size)

    async def _publish(self, request: packets.Publish) -> str:
        if request.content is None:
            await self._create(request.topic)
        else:
            await self._station.link.put(request.topic, request.content, create=True)
            self._station.counters["messages_in"] += 1
        return packets.ACKNOWLEDGED

    async def _create(self, topic: str) -> None:
        try:
            made = expect(await self._station.link.operate(CreateTopic(topic)), TopicReply)
        except errors.TopicExists:
            # With settings of its own: it is there, and that was the wish.
            return
        if made.created:
            log.info("created new topic '%s'", topic)

    async def _subscribe(self, topic: str, address: Address) -> str:
        try:
            is_new = await self._feeds.subscribe(address, topic)
        except (errors.TopicUnknown, errors.TopicGone):
            return packets.NO_TOPIC
        return packets.subscribed(topic) if is_new else packets.ALREADY

    async def _unsubscribe(self, topic: str, address: Address) -> str:
        try:
            await self._feeds.unsubscribe(address, topic)
        except (errors.TopicUnknown, errors.TopicGone):
            return packets.NO_TOPIC
        except errors.NotSubscribed:
            return packets.NOT_SUBSCRIBED
        return packets.UNSUBSCRIBED

    async def _list(self, after: str, address: Address, size: int) -> str:
        reply = expect((await self._station.link.ask(Topics(after, _LIST_TOPICS)))[0], TopicsReply)
        bytes_max = self._station.guests.reply_bytes_max(clock_ms(), address, size, LIST_BYTES_MAX)
        return packets.format_list([topic.name for topic in reply.topics], not reply.after, bytes_max)

    def _say(self, address: Address, question_bytes: int, text: str) -> None:
        most = self._station.settings.packet_bytes_max
        bytes_max = self._station.guests.reply_bytes_max(clock_ms(), address, question_bytes, most)
        self._station.send(packets.cut(text, bytes_max), address)
