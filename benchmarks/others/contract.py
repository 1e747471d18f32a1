"""What each broker offers to the benchmark: a server that this process starts, and connections that client processes
open. A put is acknowledged when its method returns, and an ack is confirmed."""

from __future__ import annotations

import time
from typing import Protocol

from oncemq.tools.bench.transports import Transport

#: Messages per batch, where a client has to choose one.
BATCH = 1_000
#: How long a server may take to start.
START_S = 15.0


class Server(Protocol):
    #: Its CPU time counts with its children.
    pid: int
    #: The product and its version.
    name: str
    #: Where clients connect.
    addresses: dict[Transport, str]

    def stop(self) -> None: ...


class Consumed:
    """How many messages were got and acked, and when the last of these acks was confirmed."""

    def __init__(self) -> None:
        self.count = 0
        self.end_s = time.perf_counter()

    def add(self, count: int) -> None:
        self.count += count
        self.end_s = time.perf_counter()


class Connection(Protocol):
    """For one thread at a time."""

    def create(self, queue: str, *, is_shared: bool) -> None:
        """Create an empty queue, for one consumer or for several that share its messages."""

    def delete(self, queue: str) -> None:
        """Delete a queue with its messages."""

    def put(self, queue: str, value: bytes) -> None:
        """Put one message."""

    def put_until(self, queue: str, value: bytes, until_s: float) -> int:
        """Put messages in the fastest way until this time of `time.perf_counter`. Return how many."""

    def get(self, queue: str) -> None:
        """Get one message, and ack it."""

    def get_until(self, queue: str, until_s: float, *, is_shared: bool) -> Consumed:
        """Get and ack messages in the fastest way, until this time or until there are none."""

    def close(self) -> None: ...
