"""A network that loses, duplicates and delays packets: a proxy between clients and broker, on loopback.

A packet is a whole request or a whole reply, so what arrives is intact. Delays change the order. A stream that loses a
packet is at its end in half of the cases: then the proxy cuts the client's connection too.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Sequence
from itertools import count
from random import Random

from oncemq.tools.chaos.counters import Counters
from oncemq.tools.chaos.plan import NETWORK
from oncemq.tools.chaos.sabotage import PacketFilter
from oncemq.tools.chaos.wires import Packet, open_wire

#: Kinds of counted packets.
PASSED, LOST, DUPLICATED, DELAYED = "passed", "lost", "duplicated", "delayed"
_CUT_SHARE = 0.5
_POLL_MS = 100


class Proxy:
    """Forwards packets between clients and broker."""

    def __init__(
        self,
        url: str,
        broker_url: str,
        seed: int,
        counters: Counters,
        packet_filter: PacketFilter,
        name: str = NETWORK,
    ) -> None:
        """`name`: under which it counts packets."""
        self._name = name
        self._wire = open_wire(url, broker_url)
        self._random = Random(f"packets/{seed}")
        self._counters = counters
        self._filter = packet_filter
        #: (due time, a number that keeps packets apart, whether it goes to the broker, client, frames)
        self._delayed: list[tuple[float, int, bool, bytes, Sequence[bytes]]] = []
        self._numbers = count()

    def run(self) -> int:
        """Run until the process is killed."""
        while True:
            for packet in self._wire.receive(self._wait_ms()):
                self._forward(packet)
            self._send_due()

    def _wait_ms(self) -> int:
        if not self._delayed:
            return _POLL_MS
        return max(0, min(_POLL_MS, math.ceil((self._delayed[0][0] - time.monotonic()) * 1000)))

    def _forward(self, packet: Packet) -> None:
        """Send, lose, duplicate or delay a packet at random."""
        to_broker, client, _ = packet
        pass_on = self._filter.request if to_broker else self._filter.reply
        frames = pass_on(client, packet.frames)
        faults = self._counters.network_faults()
        if self._random.random() < faults.lost:
            self._counters.add(self._name, LOST)
            if self._random.random() < _CUT_SHARE:
                self._wire.cut(client)
            return
        if self._random.random() < faults.duplicated:
            self._counters.add(self._name, DUPLICATED)
            self._delay(self._random.uniform(0, faults.delay_ms_max), to_broker, client, frames)
        if self._random.random() < faults.delayed:
            self._counters.add(self._name, DELAYED)
            self._delay(self._random.uniform(0, faults.delay_ms_max), to_broker, client, frames)
            return
        self._counters.add(self._name, PASSED)
        self._wire.send(to_broker, client, frames)

    def _delay(self, delay_ms: float, to_broker: bool, client: bytes, frames: Sequence[bytes]) -> None:
        due_s = time.monotonic() + delay_ms / 1000
        heapq.heappush(self._delayed, (due_s, next(self._numbers), to_broker, client, frames))

    def _send_due(self) -> None:
        while self._delayed and self._delayed[0][0] <= time.monotonic():
            _, _, to_broker, client, frames = heapq.heappop(self._delayed)
            self._wire.send(to_broker, client, frames)
