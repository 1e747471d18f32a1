"""OnceMQ for benchmarks/others.py."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.others_contract import BATCH, TOPIC
from oncemq.testing.broker_process import BrokerProcess


class OnceMQ:
    def __init__(self, folder: Path) -> None:
        self._broker = BrokerProcess(folder / "data", "--log-level=warning")
        self._broker.start()
        self._client = self._broker.connect()
        self._client.subscribe(TOPIC, "reader")

    def put_singly(self, value: bytes, count: int) -> list[float]:
        times_s = []
        for _ in range(count):
            began_s = time.perf_counter()
            self._client.put(TOPIC, value)
            times_s.append(time.perf_counter() - began_s)
        return times_s

    def put_quickly(self, value: bytes, count: int) -> None:
        self._client.put_many(TOPIC, [value] * count)

    def consume(self, count: int) -> None:
        subscription = self._client.subscription(TOPIC, "reader")
        left = count
        while left:
            left -= len(subscription.get_many(BATCH, timeout_s=30))
        subscription.close()

    def stop(self) -> None:
        self._client.close()
        self._broker.stop()
