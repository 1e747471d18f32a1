"""The datagram gateway: one socket, plain packets at one desk, extended ones at the other.

It remembers nothing that must survive it: who is subscribed is in the broker's registry, what was put in its sessions,
what was acked in its subscriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from oncemq.gateways.link import Link
from oncemq.gateways.udp.context import Station, clock_ms, log
from oncemq.gateways.udp.endpoint import Endpoint
from oncemq.gateways.udp.extended.packets import is_extended
from oncemq.gateways.udp.extended.server import ExtendedDesk
from oncemq.gateways.udp.plain.feeds import Feeds
from oncemq.gateways.udp.plain.server import PlainDesk
from oncemq.gateways.udp.rates import Rates
from oncemq.gateways.udp.settings import UdpSettings
from oncemq.gateways.udp.tokens import Address
from oncemq.protocol import errors

_SWEEP_S = 1.0
_LOG_S = 60.0
_DRAIN_S = 1.0
_PAUSE_S = 0.2


class UdpGateway:
    """Fulfils `gateways.contract.Gateway`."""

    def __init__(self, broker: Sequence[str] | Link, settings: UdpSettings) -> None:
        """`broker`: its addresses, and those of its standbys; or a link to it, which stays open."""
        self.addresses: list[str] = []
        self._broker = broker
        self._settings = settings
        self._endpoint: Endpoint | None = None
        self._link: Link | None = None
        #: When they were last logged.
        self._counters: dict[str, int] = {}

    async def start(self) -> None:
        """Listen. Raises ListenFailed. The broker may be away: packets are dropped then, and come again."""
        settings = self._settings
        self._endpoint = Endpoint(settings.host, settings.port, settings.packet_bytes_max)
        self._link = self._broker if isinstance(self._broker, Link) else Link(self._broker, label="udp")
        self._rates = Rates(settings.source_packets_per_s, settings.packets_per_s, clock_ms())
        self._station = Station(self._link, self._endpoint, settings)
        self._feeds = Feeds(self._station)
        self._plain = PlainDesk(self._station, self._feeds)
        self._extended = ExtendedDesk(self._station)
        self._endpoint.start(self._receive, self._unreachable)
        self._station.run_lasting(self._load())
        self._station.run_lasting(self._look_after())
        self.addresses = [self._endpoint.address]
        log.info("waiting for contact at %s", self._endpoint.address)

    async def stop(self) -> None:
        if self._endpoint is None or self._link is None:
            return
        await self._station.finish(_DRAIN_S)
        self._extended.end()
        self._endpoint.close()
        if self._link is not self._broker:
            self._link.close()
        self._log_counters()

    def counters(self) -> dict[str, int]:
        """Since the start, by name (docs/howto/datagrams.md)."""
        return dict(self._station.counters)

    # In.

    def _receive(self, packet: bytes, address: Address) -> None:
        try:
            self._dispatch(packet, address)
        except Exception:
            self._station.note_bug()

    def _dispatch(self, packet: bytes, address: Address) -> None:
        counters = self._station.counters
        counters["packets_in"] += 1
        if not self._rates.admits(clock_ms(), address):
            counters["dropped_rate"] += 1
        elif len(packet) > self._settings.packet_bytes_max:
            counters["oversized"] += 1
            if is_extended(packet):
                self._extended.receive(packet, address, is_cut=True)
            else:
                self._plain.receive_oversized(address, len(packet))
        elif is_extended(packet):
            self._extended.receive(packet, address)
        else:
            self._plain.receive(packet, address)

    def _unreachable(self, address: Address) -> None:
        self._station.counters["unreachable"] += 1
        if self._station.guests.strike(clock_ms(), address):
            self._feeds.forget(address)

    # By itself.

    async def _load(self) -> None:
        while True:
            try:
                await self._feeds.load()
            except errors.OnceMQError as error:
                log.warning("who is subscribed by plain packets is not known yet: %s", error)
                await asyncio.sleep(_PAUSE_S)
            else:
                self._plain.is_ready = True
                return

    async def _look_after(self) -> None:
        turns = 0
        while True:
            await asyncio.sleep(_SWEEP_S)
            turns += 1
            self._sweep()
            if turns % int(_LOG_S / _SWEEP_S) == 0 and self._counters != self._station.counters:
                self._log_counters()

    def _sweep(self) -> None:
        try:
            self._extended.sweep()
            for address in self._station.guests.silent(clock_ms()):
                self._feeds.forget(address)
        except Exception:
            self._station.note_bug()

    def _log_counters(self) -> None:
        self._counters = self.counters()
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self._counters.items()))
        log.info("since the start: %s", counts or "nothing")
