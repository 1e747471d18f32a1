"""The push gateway: three sockets, and their handlers.

    publish   SUB      publishers/intake.py   messages of plain PUB publishers, stored as they arrive
    feed      XPUB     feed/feed.py           stored messages, for plain SUB subscribers
    acks      ROUTER   ack_server.py          hello, goodbye, ack_received (subscribers/subscribers.py) and publish
                                              (publishers/reliable.py)

It keeps nothing that the broker does not have: it may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

import zmq

from oncemq.client.gateway_api import split_urls
from oncemq.gateways.caller_links import CallerLinks
from oncemq.gateways.link import Link
from oncemq.gateways.push.ack_server import AckServer
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed.feed import Feed
from oncemq.gateways.push.publishers.intake import Intake
from oncemq.gateways.push.publishers.reliable import ReliablePublishers
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.subscribers import ReliableSubscribers
from oncemq.gateways.secure_sockets import SecureSockets
from oncemq.gateways.tasks import cancel, keep_running, start
from oncemq.gateways.zmq_reader import ZmqReader
from oncemq.protocol import errors

log = logging.getLogger("oncemq.push")

#: When the gateway stops: time for reading what has arrived, and for storing and answering it.
_READ_S = 1.0
_DRAIN_S = 2.0
_POLL_S = 0.02
_PAUSE_S = 0.5
#: Messages of publishers that wait inside ZeroMQ. Beyond this number a PUB socket drops its messages.
_INTAKE_MESSAGES_MAX = 100_000


class PushGateway:
    """Implements `gateways.contract.Gateway`."""

    def __init__(self, brokers: str | Sequence[str], settings: PushSettings | None = None) -> None:
        self.addresses: list[str] = []
        self.on_failure: Callable[[], None] = lambda: None
        self.counters = Counters()
        self._urls = split_urls(brokers)
        self._settings = settings or PushSettings()
        #: Stops the started parts, in the reverse order of their start.
        self._started = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Listen. Raises ListenFailed. The broker may be unreachable."""
        async with contextlib.AsyncExitStack() as started:
            self._begin(started)
            self._started = started.pop_all()

    def _begin(self, started: contextlib.AsyncExitStack) -> None:
        settings, counters = self._settings, self.counters
        link = Link(self._urls, label=settings.name, credentials=settings.credentials)
        started.callback(link.close)
        secure = None
        if settings.curve is not None:
            secure = SecureSockets(settings.curve, link, "push", self.on_failure)
            started.push_async_callback(secure.close)
        intake = Intake(
            self._urls, counters, buffer_bytes_max=settings.buffer_bytes_max, credentials=settings.credentials
        )
        started.callback(intake.close)
        feed = self._feed = Feed(settings, link, counters, self.on_failure, secure=secure)
        started.push_async_callback(feed.stop)
        subscribers = ReliableSubscribers(settings, link, feed, counters)
        started.push_async_callback(subscribers.stop)
        for work in (lambda: self._resume(feed, subscribers), feed.run, subscribers.run):
            started.push_async_callback(cancel, start(keep_running(work, "push maintenance"), "push maintenance"))
        publishers = ReliablePublishers(CallerLinks(link), settings.name)
        server = AckServer(settings, subscribers, publishers, counters, self.on_failure, secure)
        started.push_async_callback(server.stop, _DRAIN_S)
        publish = self._listen_to_publishers(intake, secure)
        started.push_async_callback(_drain, publish, intake)
        self.addresses = [publish.address, *feed.socket.addresses, server.address]

    def _listen_to_publishers(self, intake: Intake, secure: SecureSockets | None) -> ZmqReader:
        publish = ZmqReader(zmq.SUB, intake.add, intake.flush, self.on_failure, secure=secure)
        publish.set(zmq.RCVHWM, _INTAKE_MESSAGES_MAX)
        publish.set(zmq.MAXMSGSIZE, self._settings.message_bytes_max)
        publish.socket.setsockopt(zmq.SUBSCRIBE, b"")
        publish.guard("the publish listener", self._settings.limits, self.counters)
        publish.bind(self._settings.publish)
        return publish

    async def _resume(self, feed: Feed, subscribers: ReliableSubscribers) -> None:
        """Continue with the topics and subscribers from before a restart."""
        while True:
            try:
                await feed.resume()
                await subscribers.resume()
            except errors.OnceMQError as error:
                self.counters.report("resume_waiting", f"the gateway can't resume yet: {error.text}")
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def stop(self) -> None:
        """Store and answer what has arrived, for a short time, then close everything."""
        await self._started.aclose()
        log.info("stopped: %s", self.counters.counts)


async def _drain(publish: ZmqReader, intake: Intake) -> None:
    """Read and store what has arrived. Publishers that don't stop sending must not delay this without limit."""
    loop = asyncio.get_running_loop()
    publish.unbind()
    until_s = loop.time() + _READ_S
    while publish.has_messages and loop.time() < until_s:
        publish.read_soon()
        await asyncio.sleep(0)
    if publish.has_messages:
        log.warning("publishers are still sending while the gateway stops: further messages are lost")
    publish.close()
    until_s = loop.time() + _DRAIN_S
    while not intake.is_empty and loop.time() < until_s:
        await asyncio.sleep(_POLL_S)
