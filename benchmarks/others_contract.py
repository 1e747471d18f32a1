"""What each broker of benchmarks/others.py has to do. Made, it runs, and has a topic with a durable reader."""

from __future__ import annotations

from typing import Protocol

TOPIC = "bench"
#: Messages that are handed over together, with every broker.
BATCH = 1_000


class Broker(Protocol):
    def put_singly(self, value: bytes, count: int) -> list[float]:
        """One after the other; how long each of them took."""

    def put_quickly(self, value: bytes, count: int) -> None:
        """Until all are acknowledged."""

    def consume(self, count: int) -> None:
        """Until the broker has all acks."""

    def stop(self) -> None: ...
