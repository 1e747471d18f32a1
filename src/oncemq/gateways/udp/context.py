"""What every part of the gateway shares: the link, the socket, the guests, the counters, and errands to the broker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine

from oncemq.gateways.link import Link
from oncemq.gateways.udp.endpoint import Endpoint
from oncemq.gateways.udp.peers import Guests
from oncemq.gateways.udp.settings import ERRANDS_MAX, UdpSettings
from oncemq.gateways.udp.tokens import Address, Tokens
from oncemq.protocol import errors

log = logging.getLogger("oncemq.gateways.udp")


def clock_ms() -> float:
    return time.monotonic() * 1000


class Station:
    def __init__(self, link: Link, endpoint: Endpoint, settings: UdpSettings) -> None:
        self.link = link
        self.settings = settings
        self.tokens = Tokens()
        self.guests = Guests(settings, clock_ms())
        self.counters: Counter[str] = Counter()
        self._endpoint = endpoint
        self._errands: set[asyncio.Task[None]] = set()
        self._lasting: set[asyncio.Task[None]] = set()

    # Out.

    def send(self, packet: bytes, address: Address) -> bool:
        """To whoever has proved himself, or little of it. False: it was dropped."""
        if not self.guests.may_send(clock_ms(), address, len(packet)):
            self.counters["dropped_unproved"] += 1
            return False
        return self.send_short(packet, address)

    def send_short(self, packet: bytes, address: Address) -> bool:
        """What is no longer than the question that it answers, to anybody: lies about an address gain nothing by it."""
        if not self._endpoint.send(packet, address):
            self.counters["dropped_unsent"] += 1
            return False
        self.counters["packets_out"] += 1
        return True

    # Work that waits for the broker.

    def run_errand(self, errand: Coroutine[None, None, None]) -> bool:
        """For one packet. Whoever sent it sends it again if nothing comes of it. False: there are too many."""
        if len(self._errands) >= ERRANDS_MAX:
            errand.close()
            self.counters["dropped_busy"] += 1
            return False
        self._begin(self._errands, errand)
        return True

    def run_lasting(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Until it ends, or the gateway does."""
        return self._begin(self._lasting, work)

    def _begin(self, tasks: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._attempt(work))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # If it was cancelled before it began.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _attempt(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except errors.OnceMQError as error:
            self.counters["errands_failed"] += 1
            log.debug("a packet came to nothing: %s", error)
        except Exception:
            self.note_bug()

    def note_bug(self) -> None:
        """In place of the gateway's end: nobody's packet may bring that about."""
        self.counters["bugs"] += 1
        log.exception("a packet met a fault of the gateway")

    async def finish(self, patience_s: float) -> None:
        """What is in hand is answered, for a moment."""
        if self._errands:
            await asyncio.wait(self._errands, timeout=patience_s)
        for task in (*self._errands, *self._lasting):
            task.cancel()
        await asyncio.gather(*self._errands, *self._lasting, return_exceptions=True)
