"""Sends one topic's messages to its plain subscribers: at most once, and only messages after they subscribed.

All of them share one subscription at the broker. A message is acked durably before it is sent, so that it is not sent
twice if the gateway crashes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oncemq.client.gateway_api import Loss, loss_of
from oncemq.gateways.batches import iterate_values, verified_batches
from oncemq.gateways.link import Link
from oncemq.gateways.subscription import OpenSubscription, subscribe_and_open
from oncemq.gateways.tasks import cancel, start_awaited
from oncemq.gateways.udp.context import UdpContext, clock_ms, log
from oncemq.gateways.udp.plain import packets
from oncemq.gateways.udp.plain.access import PlainAccess
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors
from oncemq.protocol.commands import START_NEW, Read
from oncemq.protocol.replies import GetReply

_GET_BYTES = 256 * 1024
#: How long a new subscriber waits until the subscription is open.
_OPEN_S = 5.0
#: Pause after an error, and after one that lasts until somebody changes rights.
_PAUSE_S = 0.2
_FORBIDDEN_PAUSE_S = 5.0
#: Messages that are sent in one turn of the event loop.
_MESSAGES_PER_TURN = 32
#: Plain packets can't report these.
_SKIPPED = (errors.Malformed, errors.Unsupported)


class Feed:
    def __init__(
        self,
        context: UdpContext,
        access: PlainAccess,
        topic: str,
        on_gone: Callable[[Feed], None],
        on_tired: Callable[[Address], None],
    ) -> None:
        """`on_gone`: the topic was deleted. `on_tired`: an address got too many messages without sending a packet."""
        self.topic = topic
        #: The topic that its addresses have subscribed to. A topic that is created again has another id.
        self.topic_id = 0
        #: Address → the first offset that it gets.
        self.addresses: dict[Address, int] = {}
        #: Held while an address subscribes or unsubscribes.
        self.lock = asyncio.Lock()
        #: How many hold the lock or wait for it.
        self.users = 0
        self._context = context
        self._access = access
        #: The link of the last opening.
        self._link: Link | None = None
        self._on_gone = on_gone
        self._on_tired = on_tired
        self._is_open = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._context.run_in_background(self._run(), "a feed of plain packets")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def wait_until_open(self) -> None:
        """Wait until no further message can be missed. Raises BrokerAway."""
        assert self._task is not None
        opening = start_awaited(self._is_open.wait())
        try:
            # If the task has ended, the subscription will not be opened.
            await asyncio.wait((opening, self._task), timeout=_OPEN_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(opening)
        if not self._is_open.is_set():
            raise errors.BrokerAway(f"the subscription to '{self.topic}' is not open yet")

    async def _run(self) -> None:
        try:
            await self._keep_serving()
        except (errors.TopicGone, errors.TopicUnknown):
            self._on_gone(self)
        except errors.Fenced:
            log.error("another gateway named '%s' has taken over '%s'", self._context.settings.name, self.topic)
        finally:
            self._is_open.clear()

    async def _keep_serving(self) -> None:
        """Raises TopicGone, TopicUnknown, Fenced."""
        while True:
            try:
                await self._serve(await self._open())
            except errors.OnceMQError as error:
                if loss_of(error) in (Loss.TOPIC_GONE, Loss.FENCED) and not await self._access.is_outdated(self._link):
                    raise
                # The broker is unreachable, or the subscription was moved or deleted. The addresses are still
                # subscribed, so it is opened again.
                log.debug("feed of '%s': %s", self.topic, error)
                self._access.note(error)
                is_forbidden = isinstance(error, errors.Unauthenticated | errors.Forbidden)
                await asyncio.sleep(_FORBIDDEN_PAUSE_S if is_forbidden else _PAUSE_S)
            except Exception as error:
                self._context.report_failure("a feed of plain packets", error)
                await asyncio.sleep(_PAUSE_S)

    async def _open(self) -> OpenSubscription:
        link = self._link = await self._access.link()
        self._check_topic((await find_topic_end(link, self.topic)).topic_id)
        opened, _ = await subscribe_and_open(link, self.topic, self._context.settings.feed_name, START_NEW)
        self._check_topic(opened.topic_id)
        return opened

    def _check_topic(self, topic_id: int) -> None:
        if topic_id != self.topic_id:
            raise errors.TopicGone(f"'{self.topic}' was deleted and created again")

    async def _serve(self, opened: OpenSubscription) -> None:
        position = opened.acked
        self._is_open.set()
        while True:
            reply, payloads = await opened.get(position, _GET_BYTES, self._context.settings.wait_ms)
            batches = verified_batches(self.topic, reply, payloads)
            if reply.next_position > position:
                await opened.ack(reply.next_position)
                position = reply.next_position
            values = iterate_values(self.topic, batches, _SKIPPED, self._context.counters)
            for count, (offset, value) in enumerate(values):
                self._publish(offset, value)
                if count % _MESSAGES_PER_TURN == _MESSAGES_PER_TURN - 1:
                    await asyncio.sleep(0)

    def _publish(self, offset: int, value: bytes) -> None:
        packet = packets.format_message(self.topic, value)
        context, now_ms = self._context, clock_ms()
        if len(packet) > context.settings.packet_bytes_max:
            context.counters["messages_too_large"] += 1
            return
        for address, first in self.addresses.items():
            if offset < first:
                continue
            if not context.peers.take_credit(now_ms, address):
                self._on_tired(address)
            elif context.send(packet, address):
                context.counters["messages_out"] += 1
        log.debug("message published to subscribers of '%s'", self.topic)


async def find_topic_end(link: Link, topic: str) -> GetReply:
    """Return the topic's id and its next offset. Raises TopicUnknown."""
    return await link.query(Read(topic, START_NEW, 1), GetReply)
