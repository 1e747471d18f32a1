"""The datagram gateway: one socket, a server for plain packets and one for extended packets.

It has no durable state: the plain subscribers are in the broker's registry, puts in its sessions, and acks in its
subscriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from oncemq.gateways.link import Link
from oncemq.gateways.tasks import keep_running
from oncemq.gateways.udp.callers import Callers
from oncemq.gateways.udp.context import UdpContext, clock_ms, log
from oncemq.gateways.udp.endpoint import Endpoint
from oncemq.gateways.udp.extended.authenticator import Authenticator
from oncemq.gateways.udp.extended.macs import has_mac
from oncemq.gateways.udp.extended.packets import is_extended
from oncemq.gateways.udp.extended.server import ExtendedServer
from oncemq.gateways.udp.plain.access import PlainAccess
from oncemq.gateways.udp.plain.feeds import Feeds
from oncemq.gateways.udp.plain.server import PlainServer
from oncemq.gateways.udp.rates import Rates
from oncemq.gateways.udp.settings import UdpSettings
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors

_SWEEP_S = 1.0
_LOG_S = 60.0
_DRAIN_S = 1.0
_PAUSE_S = 0.2
_REFUSED_PAUSE_S = 60.0


class UdpGateway:
    """Implements `gateways.contract.Gateway`."""

    def __init__(self, broker: Sequence[str] | Link, settings: UdpSettings) -> None:
        """`broker`: the addresses of the broker and its standbys, or a link to it, which `stop` does not close."""
        self.addresses: list[str] = []
        self.on_failure: Callable[[], None] = lambda: None
        self._broker = broker
        self._settings = settings
        self._endpoint: Endpoint | None = None
        self._link: Link | None = None
        #: The counters as they were last logged.
        self._logged_counters: dict[str, int] = {}

    async def start(self) -> None:
        """Listen. Raises ListenFailed. If the broker is unreachable, packets are dropped, and peers repeat them."""
        settings = self._settings
        self._endpoint = Endpoint(settings.host, settings.port, settings.packet_bytes_max)
        self._link = (
            self._broker
            if isinstance(self._broker, Link)
            else Link(self._broker, label="udp", credentials=self._settings.credentials)
        )
        self._rates = Rates(settings.source_packets_per_s, settings.packets_per_s, clock_ms())
        self._context = UdpContext(self._link, self._endpoint, settings)
        self._callers = Callers(self._context)
        access = PlainAccess(self._context, self._callers)
        self._feeds = Feeds(self._context, access)
        self._plain = PlainServer(self._context, access, self._feeds)
        self._extended = ExtendedServer(self._context, self._callers)
        self._authenticator = Authenticator(self._context, self._callers, self._extended)
        self._endpoint.start(self._receive, self._unreachable, self._fail)
        for work, name in ((self._load, "loading plain subscribers"), (self._maintain, "datagram maintenance")):
            self._context.run_in_background(keep_running(work, name), name)
        self.addresses = [self._endpoint.address]
        log.info("listening for datagrams at %s", self._endpoint.address)

    async def stop(self) -> None:
        if self._endpoint is None or self._link is None:
            return
        await self._context.finish(_DRAIN_S)
        self._extended.end()
        self._endpoint.close()
        if self._link is not self._broker:
            self._link.close()
        self._log_counters()

    def counters(self) -> dict[str, int]:
        """Return counters since the start, by name (docs/howto/datagrams.md)."""
        return dict(self._context.counters)

    # Receiving.

    def _receive(self, packet: bytes, address: Address) -> None:
        try:
            self._dispatch(packet, address)
        except Exception as error:
            self._context.report_failure("receiving a datagram", error)

    def _dispatch(self, packet: bytes, address: Address) -> None:
        counters = self._context.counters
        counters["packets_in"] += 1
        if not self._rates.admits(clock_ms(), address):
            counters["dropped_rate"] += 1
        elif len(packet) > self._settings.packet_bytes_max:
            counters["oversized"] += 1
            self._dispatch_oversized(packet, address)
        elif is_extended(packet):
            self._dispatch_open(packet, address)
        elif has_mac(packet):
            self._authenticator.receive(packet, address)
        else:
            self._plain.receive(packet, address)

    def _dispatch_oversized(self, packet: bytes, address: Address) -> None:
        if is_extended(packet):
            self._dispatch_open(packet, address, is_cut=True)
        elif not has_mac(packet):
            # The MAC at the end of a packet that is too long is not read.
            self._plain.receive_oversized(address, len(packet))

    def _dispatch_open(self, packet: bytes, address: Address, *, is_cut: bool = False) -> None:
        self._callers.check_users()
        if self._callers.is_open:
            self._extended.receive(packet, address, is_cut=is_cut)
        else:
            self._authenticator.refuse_open(packet, address)

    def _unreachable(self, address: Address) -> None:
        self._context.counters["unreachable"] += 1
        if self._context.peers.strike(clock_ms(), address):
            self._feeds.delete_address(address)

    def _fail(self, error: OSError) -> None:
        self._context.report_failure("reading datagrams", error)
        self.on_failure()

    # In the background.

    async def _load(self) -> None:
        if not self._settings.serves_plain:
            return
        while True:
            try:
                await self._callers.ask_for_users()
                await self._feeds.load()
            except (errors.Unauthenticated, errors.Forbidden):
                # Plain packets are refused. That may change.
                if self._settings.plain_user:
                    await asyncio.sleep(_REFUSED_PAUSE_S)
                else:
                    await self._callers.wait_until_open()
            except errors.OnceMQError as error:
                log.warning("the plain subscribers can't be loaded yet: %s", error)
                await asyncio.sleep(_PAUSE_S)
            else:
                self._plain.is_ready = True
                return

    async def _maintain(self) -> None:
        turns = 0
        while True:
            await asyncio.sleep(_SWEEP_S)
            turns += 1
            self._sweep()
            if turns % int(_LOG_S / _SWEEP_S) == 0 and self._logged_counters != self._context.counters:
                self._log_counters()

    def _sweep(self) -> None:
        try:
            self._extended.sweep()
            for address in self._context.peers.silent(clock_ms()):
                self._feeds.delete_address(address)
        except Exception as error:
            self._context.report_failure("removing silent peers", error)

    def _log_counters(self) -> None:
        self._logged_counters = self.counters()
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self._logged_counters.items()))
        log.info("since the start: %s", counts or "nothing")
