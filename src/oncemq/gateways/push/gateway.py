"""The push gateway: three sockets, and what stands behind each.

    publish   SUB      intake.py     messages of plain PUB publishers, stored as they arrive
    feed      XPUB     feed.py       what is stored, to plain SUB subscribers
    acks      ROUTER   ack_server.py       hello, goodbye, ack_received (subscribers.py) and publish (reliable.py)

It remembers nothing that the broker does not: it may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

import zmq

from oncemq.client.runtime.transport import split_urls
from oncemq.gateways.link import Link
from oncemq.gateways.push.ack_server import Desk
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed.feed import Feed
from oncemq.gateways.push.publishers.intake import Intake
from oncemq.gateways.push.publishers.reliable import Publishing
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.sockets import PushSocket
from oncemq.gateways.push.subscribers.subscribers import Reliable
from oncemq.protocol import errors

log = logging.getLogger("oncemq.push")

#: At the end: for taking in what has arrived, and for storing and answering what is in hand.
_TAKE_S = 1.0
_DRAIN_S = 2.0
_LOOK_S = 0.02
_PAUSE_S = 0.5
#: Messages of publishers that wait inside ZeroMQ: beyond them a PUB socket drops its own.
_INTAKE_MESSAGES_MAX = 100_000


class PushGateway:
    """Fulfils gateways.contract.Gateway."""

    def __init__(self, brokers: str | Sequence[str], settings: PushSettings | None = None) -> None:
        self.addresses: list[str] = []
        self.counters = Counters()
        self._urls = split_urls(brokers)
        self._settings = settings or PushSettings()
        #: What ends whatever has begun, in the order of its beginning.
        self._started = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Listen. Raises ListenFailed. The broker may be away."""
        async with contextlib.AsyncExitStack() as started:
            self._begin(started)
            self._started = started.pop_all()

    def _begin(self, started: contextlib.AsyncExitStack) -> None:
        settings, counters = self._settings, self.counters
        link = Link(self._urls, label=settings.name)
        started.callback(link.close)
        intake = Intake(self._urls, counters, buffer_bytes_max=settings.buffer_bytes_max)
        started.callback(intake.close)
        feed = Feed(settings, link, counters)
        started.push_async_callback(feed.stop)
        reliable = Reliable(settings, link, feed, counters)
        started.push_async_callback(reliable.stop)
        for work in (lambda: self._resume(feed, reliable), feed.run, reliable.run):
            started.push_async_callback(_end, asyncio.ensure_future(_keep_running(work)))
        desk = Desk(settings, reliable, Publishing(link, settings.name), counters)
        started.push_async_callback(desk.stop, _DRAIN_S)
        publish = self._listen_to_publishers(intake)
        started.push_async_callback(_drain, publish, intake)
        self.addresses = [publish.address, *feed.socket.addresses, desk.address]

    def _listen_to_publishers(self, intake: Intake) -> PushSocket:
        publish = PushSocket(zmq.SUB, intake.take, intake.flush)
        publish.set(zmq.RCVHWM, _INTAKE_MESSAGES_MAX)
        publish.set(zmq.MAXMSGSIZE, self._settings.message_bytes_max)
        publish.socket.setsockopt(zmq.SUBSCRIBE, b"")
        publish.bind(self._settings.publish)
        return publish

    async def _resume(self, feed: Feed, reliable: Reliable) -> None:
        """Go on with what a former life has left."""
        while True:
            try:
                await feed.resume()
                await reliable.resume()
            except errors.OnceMQError as error:
                self.counters.trouble("starts_waiting", f"the gateway can't begin yet: {error.text}")
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def stop(self) -> None:
        """Store and answer what is in hand, for a moment, then close everything."""
        await self._started.aclose()
        log.info("ended: %s", self.counters.counts)


async def _keep_running(work: Callable[[], Awaitable[None]]) -> None:
    """To its end, whatever mistake of ours comes up."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("this is a bug; the gateway goes on")
            await asyncio.sleep(_PAUSE_S)
        else:
            return


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _drain(publish: PushSocket, intake: Intake) -> None:
    """What has arrived is taken and stored. Publishers who don't stop sending must not hold this up for ever."""
    loop = asyncio.get_running_loop()
    publish.unbind()
    until_s = loop.time() + _TAKE_S
    while publish.has_arrived and loop.time() < until_s:
        publish.look()
        await asyncio.sleep(0)
    if publish.has_arrived:
        log.warning("publishers go on sending while the gateway ends: what comes from now on is lost")
    publish.close()
    until_s = loop.time() + _DRAIN_S
    while not intake.is_empty and loop.time() < until_s:
        await asyncio.sleep(_LOOK_S)
