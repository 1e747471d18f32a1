"""The interface of each broker in benchmarks/others.py. A new object is a running broker with a topic and a durable
reader."""

from __future__ import annotations

from typing import Protocol

TOPIC = "bench"
#: Messages per batch, for every broker.
BATCH = 1_000


class Broker(Protocol):
    def put_singly(self, value: bytes, count: int) -> list[float]:
        """Put messages one after the other. Returns the seconds of each."""

    def put_quickly(self, value: bytes, count: int) -> None:
        """Put messages as fast as possible, until all are acknowledged."""

    def consume(self, count: int) -> None:
        """Consume messages until the broker has all acks."""

    def stop(self) -> None:
        """Stop the broker."""
