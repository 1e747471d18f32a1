"""What is compared: brokers with their durability and transports, and the cases."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.others.contract import Connection, Server
from oncemq.tools.bench.transports import Transport

SINGLE = "single put"
ROUND_TRIP = "round trip"
PUT = "batched put"
GET = "batched get"

#: Case → numbers of clients.
CASES: dict[str, tuple[int, ...]] = {SINGLE: (1, 8, 64), ROUND_TRIP: (1, 8), PUT: (1, 8), GET: (1, 8)}
#: What each case means, for reports.
MEANINGS = {
    SINGLE: "one message, acknowledged before the next one",
    ROUND_TRIP: "one message put, got and acked, with a queue for each client",
    PUT: "messages as fast as the client can, all acknowledged",
    GET: "messages in batches of 1,000 as fast as the client can, including acks; 8 clients share the queue",
}


class Candidate(msgspec.Struct, frozen=True):
    broker: str
    #: When it acknowledges a message.
    durability: str
    #: A message is on disk when it is acknowledged.
    is_durable: bool
    transport: Transport
    #: The packages of its client.
    packages: tuple[str, ...]
    #: The module with `Server` and `Connection`.
    module: str

    @property
    def server_key(self) -> tuple[str, bool]:
        """Candidates that differ only in their transport have the same server."""
        return self.broker, self.is_durable

    @property
    def label(self) -> str:
        return f"{self.broker}, {self.durability}, {self.transport.value}"

    @property
    def client(self) -> str:
        return " + ".join(f"{package} {version(package)}" for package in self.packages)


def all_candidates() -> list[Candidate]:
    from benchmarks.others.oncemq_broker import TRANSPORTS

    both = (Transport.TCP, Transport.UNIX)
    redis, nats = ("redis", "hiredis"), ("nats-py",)
    return [
        *_each("OnceMQ", "fdatasync", True, TRANSPORTS, ("oncemq",), "oncemq_broker"),
        *_each("PostgreSQL", "synchronous_commit on", True, both, ("psycopg", "psycopg-binary"), "postgresql"),
        *_each("Redis Streams", "appendfsync always", True, both, redis, "redis_streams"),
        *_each("NATS JetStream", "sync_interval always", True, both[:1], nats, "jetstream"),
        *_each("Redis Streams", "appendfsync everysec", False, both, redis, "redis_streams"),
        *_each("NATS JetStream", "default, sync every 2 min", False, both[:1], nats, "jetstream"),
    ]


def _each(
    broker: str,
    durability: str,
    is_durable: bool,
    transports: tuple[Transport, ...],
    packages: tuple[str, ...],
    module: str,
) -> list[Candidate]:
    return [Candidate(broker, durability, is_durable, transport, packages, module) for transport in transports]


def start_server(candidate: Candidate, folder: Path, sockets: Path) -> Server:
    """Start the server of a candidate in a new folder. Its Unix sockets are in a folder with a short path."""
    server: Server = _module(candidate.module).Server(folder, sockets, is_durable=candidate.is_durable)
    return server


def connect(module: str, address: str) -> Connection:
    connection: Connection = _module(module).Connection(address)
    return connection


def _module(name: str) -> Any:
    """Import a broker's module only where it is used: its packages may be missing if it is not measured."""
    return importlib.import_module(f"benchmarks.others.{name}")


def choose(words: Sequence[str]) -> tuple[list[Candidate], list[str]]:
    """Return the candidates and the cases that contain one of the words; all, where no word selects any. Raise
    ValueError for a word that is in none.

    >>> [candidate.transport.value for candidate in choose(["postgres"])[0]], choose(["batched"])[1]
    (['TCP', 'Unix socket'], ['batched put', 'batched get'])
    """
    candidates = all_candidates()
    chosen = [each for each in candidates if any(_contains(each.label, word) for word in words)]
    cases = [case for case in CASES if any(_contains(case, word) for word in words)]
    for word in words:
        if not any(_contains(text, word) for text in (*CASES, *(each.label for each in candidates))):
            known = "\n  ".join([*CASES, *(each.label for each in candidates)])
            raise ValueError(f"nothing is named {word!r}; there are:\n  {known}")
    return chosen or candidates, cases or list(CASES)


def _contains(text: str, word: str) -> bool:
    return word.lower() in text.lower()
