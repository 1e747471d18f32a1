"""A network that loses, doubles and delays whole packets: a proxy between clients and broker, on loopback.

    client ──DEALER──▶ ROUTER  [ chance ]  DEALER ──▶ broker        one DEALER for each connection of a client

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
from oncemq.tools.chaos.sabotage import Honest

#: What happened to packets, as it is counted.
PASSED, LOST, DOUBLED, DELAYED = "passed", "lost", "doubled", "delayed"
_QUEUE_MAX = 100_000
#: A client's connection with nothing to say for so long is let go; a client that speaks again gets a new one.
_IDLE_S = 10.0
_POLL_MS = 100


class Proxy:
    def __init__(self, url: str, broker_url: str, seed: int, counters: Counters, middle: Honest) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._front = self._socket(zmq.ROUTER)
        self._front.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._front.bind(url)
        self._broker_url = broker_url
        self._random = Random(f"packets/{seed}")
        self._counters = counters
        self._middle = middle
        self._poller = zmq.Poller()
        self._poller.register(self._front, zmq.POLLIN)
        #: By the client's connection.
        self._backs: dict[bytes, Any] = {}
        self._clients: dict[Any, bytes] = {}
        self._spoke_s: dict[bytes, float] = {}
        #: (when, a number that keeps packets apart, towards the broker, client, frames)
        self._delayed: list[tuple[float, int, bool, bytes, Sequence[bytes]]] = []
        self._numbers = count()

    def run(self) -> int:
        """For ever."""
        while True:
            for socket, _ in self._poller.poll(self._wait_ms()):
                self._take(socket)
            self._send_due()
            self._let_go_of_the_silent()

    def _wait_ms(self) -> int:
        if not self._delayed:
            return _POLL_MS
        return max(0, min(_POLL_MS, math.ceil((self._delayed[0][0] - time.monotonic()) * 1000)))

    def _take(self, socket: Any) -> None:
        with suppress(zmq.Again):
            while True:
                frames = socket.recv_multipart(zmq.NOBLOCK)
                if socket is self._front:
                    client, *request = frames
                    self._pass(True, client, self._middle.request(client, request))
                else:
                    client = self._clients[socket]
                    self._pass(False, client, self._middle.reply(client, frames))

    def _pass(self, to_broker: bool, client: bytes, frames: Sequence[bytes]) -> None:
        """By chance."""
        weather = self._counters.weather()
        if self._random.random() < weather.lost:
            self._counters.add(NETWORK, LOST)
            return
        if self._random.random() < weather.doubled:
            self._counters.add(NETWORK, DOUBLED)
            self._later(self._random.uniform(0, weather.delay_ms_max), to_broker, client, frames)
        if self._random.random() < weather.delayed:
            self._counters.add(NETWORK, DELAYED)
            self._later(self._random.uniform(0, weather.delay_ms_max), to_broker, client, frames)
            return
        self._counters.add(NETWORK, PASSED)
        self._send(to_broker, client, frames)

    def _later(self, delay_ms: float, to_broker: bool, client: bytes, frames: Sequence[bytes]) -> None:
        due_s = time.monotonic() + delay_ms / 1000
        heapq.heappush(self._delayed, (due_s, next(self._numbers), to_broker, client, frames))

    def _send_due(self) -> None:
        while self._delayed and self._delayed[0][0] <= time.monotonic():
            _, _, to_broker, client, frames = heapq.heappop(self._delayed)
            self._send(to_broker, client, frames)

    def _send(self, to_broker: bool, client: bytes, frames: Sequence[bytes]) -> None:
        # Whoever is gone, or drowns in packets, loses them: its client sends again.
        with suppress(zmq.Again, zmq.ZMQError):
            if to_broker:
                self._back(client).send_multipart(frames, zmq.NOBLOCK)
            else:
                self._front.send_multipart([client, *frames], zmq.NOBLOCK)

    def _back(self, client: bytes) -> Any:
        self._spoke_s[client] = time.monotonic()
        if client not in self._backs:
            back = self._socket(zmq.DEALER)
            back.setsockopt(zmq.RECONNECT_IVL, 20)
            back.connect(self._broker_url)
            self._poller.register(back, zmq.POLLIN)
            self._backs[client], self._clients[back] = back, client
        return self._backs[client]

    def _let_go_of_the_silent(self) -> None:
        before_s = time.monotonic() - _IDLE_S
        for client in [client for client, at_s in self._spoke_s.items() if at_s < before_s]:
            del self._spoke_s[client]
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
