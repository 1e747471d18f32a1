"""A network that loses, duplicates and delays packets: a proxy between clients and broker, on loopback.

    client ──DEALER──▶ ROUTER  [ faults ]  DEALER ──▶ broker        one DEALER for each connection of a client

A packet is a whole request or a whole reply, so what arrives is intact. Delays change the order.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

import zmq

from oncemq.tools.chaos.counters import Counters
from oncemq.tools.chaos.plan import NETWORK
from oncemq.tools.chaos.sabotage import PacketFilter

#: Kinds of counted packets.
PASSED, LOST, DUPLICATED, DELAYED = "passed", "lost", "duplicated", "delayed"
_QUEUE_MAX = 100_000
#: The connection of a client that is silent for this time is closed; a client that continues gets a new one.
_IDLE_S = 10.0
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
        self._context: zmq.Context[Any] = zmq.Context()
        self._front = self._socket(zmq.ROUTER)
        self._front.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._front.bind(url)
        self._broker_url = broker_url
        self._random = Random(f"packets/{seed}")
        self._counters = counters
        self._filter = packet_filter
        self._poller = zmq.Poller()
        self._poller.register(self._front, zmq.POLLIN)
        #: By the client's connection.
        self._backs: dict[bytes, Any] = {}
        self._clients: dict[Any, bytes] = {}
        self._active_s: dict[bytes, float] = {}
        #: (due time, a number that keeps packets apart, whether it goes to the broker, client, frames)
        self._delayed: list[tuple[float, int, bool, bytes, Sequence[bytes]]] = []
        self._numbers = count()

    def run(self) -> int:
        """Run until the process is killed."""
        while True:
            for socket, _ in self._poller.poll(self._wait_ms()):
                self._receive(socket)
            self._send_due()
            self._close_idle()

    def _wait_ms(self) -> int:
        if not self._delayed:
            return _POLL_MS
        return max(0, min(_POLL_MS, math.ceil((self._delayed[0][0] - time.monotonic()) * 1000)))

    def _receive(self, socket: Any) -> None:
        with suppress(zmq.Again):
            while True:
                frames = socket.recv_multipart(zmq.NOBLOCK)
                if socket is self._front:
                    client, *request = frames
                    self._forward(True, client, self._filter.request(client, request))
                else:
                    client = self._clients[socket]
                    self._forward(False, client, self._filter.reply(client, frames))

    def _forward(self, to_broker: bool, client: bytes, frames: Sequence[bytes]) -> None:
        """Send, lose, duplicate or delay a packet at random."""
        faults = self._counters.network_faults()
        if self._random.random() < faults.lost:
            self._counters.add(self._name, LOST)
            return
        if self._random.random() < faults.duplicated:
            self._counters.add(self._name, DUPLICATED)
            self._delay(self._random.uniform(0, faults.delay_ms_max), to_broker, client, frames)
        if self._random.random() < faults.delayed:
            self._counters.add(self._name, DELAYED)
            self._delay(self._random.uniform(0, faults.delay_ms_max), to_broker, client, frames)
            return
        self._counters.add(self._name, PASSED)
        self._send(to_broker, client, frames)

    def _delay(self, delay_ms: float, to_broker: bool, client: bytes, frames: Sequence[bytes]) -> None:
        due_s = time.monotonic() + delay_ms / 1000
        heapq.heappush(self._delayed, (due_s, next(self._numbers), to_broker, client, frames))

    def _send_due(self) -> None:
        while self._delayed and self._delayed[0][0] <= time.monotonic():
            _, _, to_broker, client, frames = heapq.heappop(self._delayed)
            self._send(to_broker, client, frames)

    def _send(self, to_broker: bool, client: bytes, frames: Sequence[bytes]) -> None:
        # Packets to a peer that has gone or is overloaded are lost: clients send again.
        with suppress(zmq.Again, zmq.ZMQError):
            if to_broker:
                self._back(client).send_multipart(frames, zmq.NOBLOCK)
            else:
                self._front.send_multipart([client, *frames], zmq.NOBLOCK)

    def _back(self, client: bytes) -> Any:
        self._active_s[client] = time.monotonic()
        if client not in self._backs:
            back = self._socket(zmq.DEALER)
            back.setsockopt(zmq.RECONNECT_IVL, 20)
            back.connect(self._broker_url)
            self._poller.register(back, zmq.POLLIN)
            self._backs[client], self._clients[back] = back, client
        return self._backs[client]

    def _close_idle(self) -> None:
        before_s = time.monotonic() - _IDLE_S
        for client in [client for client, at_s in self._active_s.items() if at_s < before_s]:
            del self._active_s[client]
            back = self._backs.pop(client)
            del self._clients[back]
            self._poller.unregister(back)
            back.close(0)

    def _socket(self, kind: int) -> Any:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, _QUEUE_MAX)
        socket.setsockopt(zmq.RCVHWM, _QUEUE_MAX)
        return socket
