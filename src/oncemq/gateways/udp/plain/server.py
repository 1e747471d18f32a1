"""Answers plain packets. docs/howto/datagrams.md has the replies; those to other errors start with `Error`."""

from __future__ import annotations

from oncemq.gateways.udp.context import FAILED, UdpContext, clock_ms, log
from oncemq.gateways.udp.plain import packets
from oncemq.gateways.udp.plain.access import PlainAccess
from oncemq.gateways.udp.plain.feeds import Feeds
from oncemq.gateways.udp.plain.packets import format_error
from oncemq.gateways.udp.rates import Bucket
from oncemq.gateways.udp.settings import HINTS_PER_S, LIST_BYTES_MAX
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors
from oncemq.protocol.commands import CreateTopic, Topics
from oncemq.protocol.replies import TopicReply, TopicsReply

#: No list that fits into a packet has more names: each one takes at least three bytes.
_LIST_TOPICS = LIST_BYTES_MAX // 3


class PlainServer:
    def __init__(self, context: UdpContext, access: PlainAccess, feeds: Feeds) -> None:
        self._context = context
        self._access = access
        self._feeds = feeds
        self._hints = Bucket(HINTS_PER_S, clock_ms())
        #: The subscribers are loaded: only then it is known who is not subscribed.
        self.is_ready = False

    def receive(self, packet: bytes, address: Address) -> None:
        context, size = self._context, len(packet)
        refusal = self._access.refusal()
        if refusal is not None:
            self._refuse(packet, address, refusal)
            return
        context.peers.note_heard(clock_ms(), address)
        if context.is_busy(address, size):
            context.counters["dropped_busy"] += 1
            return
        try:
            request = packets.parse(packet)
        except errors.OnceMQError as error:
            context.counters["malformed"] += 1
            if packet.startswith(packets.ERROR):
                # The peer answers malformed packets with errors too: two such peers would never stop.
                return
            self._reply(address, size, format_error(error))
            return
        if isinstance(request, packets.Subscribe | packets.Unsubscribe) and not self.is_ready:
            context.counters["dropped_busy"] += 1
            return
        work = self._answer(request, address, size)
        told = format_error(FAILED)
        context.run_for_packet(work, "a plain packet", lambda _: self._reply(address, size, told), address, size)

    def _refuse(self, packet: bytes, address: Address, error: errors.Refused) -> None:
        """Drop a packet that nobody may send. The answer is for people: it is not longer, and not sent often."""
        context, now_ms = self._context, clock_ms()
        context.counters["unauthenticated"] += 1
        is_validated = context.peers.is_validated(now_ms, address)
        text = format_error(error) if is_validated else f"Error {error.code}"
        is_short = is_validated or len(text) <= len(packet)
        if is_short and not packet.startswith(packets.ERROR) and self._hints.take(now_ms):
            context.send_short(text.encode(), address)

    def receive_oversized(self, address: Address, size: int) -> None:
        """Refuse a packet that is too long."""
        if self._access.refusal() is not None:
            self._context.counters["unauthenticated"] += 1
            return
        limit = self._context.settings.packet_bytes_max
        self._reply(address, size, format_error(errors.TooLarge(f"a packet may have at most {limit} bytes")))

    async def _answer(self, request: packets.Request, address: Address, size: int) -> None:
        try:
            text = await self._perform(request, address, size)
        except (errors.BrokerAway, errors.ClientClosed, errors.Stopping, errors.Standby):
            # No reply: the client repeats its packet.
            raise
        except errors.OnceMQError as error:
            self._access.note(error)
            text = format_error(error)
        self._reply(address, size, text)

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
            link = await self._access.link()
            await link.put(request.topic, request.content, create=True)
            self._context.counters["messages_in"] += 1
        return packets.ACKNOWLEDGED

    async def _create(self, topic: str) -> None:
        try:
            made = await (await self._access.link()).call(CreateTopic(topic), TopicReply)
        except errors.TopicExists:
            # It exists with other settings, which is fine.
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
        link = await self._access.link()
        reply = await link.query(Topics(after, _LIST_TOPICS), TopicsReply)
        bytes_max = self._context.peers.reply_bytes_max(clock_ms(), address, size, LIST_BYTES_MAX)
        return packets.format_list([topic.name for topic in reply.topics], not reply.after, bytes_max)

    def _reply(self, address: Address, request_bytes: int, text: str) -> None:
        limit = self._context.settings.packet_bytes_max
        bytes_max = self._context.peers.reply_bytes_max(clock_ms(), address, request_bytes, limit)
        self._context.send(packets.cut(text, bytes_max), address)
