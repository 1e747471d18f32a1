"""A network between clients and a gateway that loses, duplicates and reorders datagrams, determined by a seed."""

from __future__ import annotations

import heapq
import random
import select
import socket
import threading
import time

Address = tuple[str, int]


class LossyProxy:
    def __init__(self, gateway: Address, seed: int, *, loss: float, doubling: float, delay_s: float) -> None:
        self._gateway = gateway
        self._chance = random.Random(seed)
        self._loss, self._doubling, self._delay_s = loss, doubling, delay_s
        self._front = self._open()
        self.address: Address = self._front.getsockname()
        #: Client → the socket that represents it towards the gateway.
        self._backs: dict[Address, socket.socket] = {}
        self._clients: dict[socket.socket, Address] = {}
        self._late: list[tuple[float, int, bytes, socket.socket, Address]] = []
        self._count = 0
        self.lost = self.duplicated = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @staticmethod
    def _open() -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.bind(("127.0.0.1", 0))
        opened.setblocking(False)
        return opened

    def _run(self) -> None:
        while not self._is_over.is_set():
            readable, _, _ = select.select([self._front, *self._clients], [], [], 0.002)
            for ready in readable:
                self._take(ready)
            self._deliver()

    def _take(self, ready: socket.socket) -> None:
        try:
            while True:
                data, address = ready.recvfrom(65_536)
                if ready is self._front:
                    self._pass_on(data, self._back(address), self._gateway)
                else:
                    self._pass_on(data, self._front, self._clients[ready])
        except OSError:
            return

    def _back(self, client: Address) -> socket.socket:
        back = self._backs.get(client)
        if back is None:
            back = self._backs[client] = self._open()
            self._clients[back] = client
        return back

    def _pass_on(self, data: bytes, through: socket.socket, to: Address) -> None:
        copies = 1
        if self._chance.random() < self._doubling:
            copies, self.duplicated = 2, self.duplicated + 1
        for _ in range(copies):
            if self._chance.random() < self._loss:
                self.lost += 1
                continue
            self._count += 1
            due_s = time.monotonic() + self._chance.random() * self._delay_s
            heapq.heappush(self._late, (due_s, self._count, data, through, to))

    def _deliver(self) -> None:
        while self._late and self._late[0][0] <= time.monotonic():
            _, _, data, through, to = heapq.heappop(self._late)
            try:
                through.sendto(data, to)
            except OSError:
                self.lost += 1

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        for opened in (self._front, *self._clients):
            opened.close()
