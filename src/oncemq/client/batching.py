"""Batches that are being filled, and the handles of the messages in them.

A handle is two fields and nothing else: a future for each of millions of messages would cost more than the
messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from oncemq.client.pending import Pending
from oncemq.client.receipt import Receipt
from oncemq.engine.commands import Envelope, Put
from oncemq.message import checksum, encode_batch

Value = bytes | str | bytearray | memoryview
Headers = Mapping[str, Value]


def as_bytes(value: Value) -> bytes:
    """Text becomes UTF-8; anything that is neither text nor bytes is a mistake."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"values and keys are bytes or str, not {type(value).__name__}")


def headers_as_bytes(headers: Headers) -> dict[str, bytes]:
    return {name: as_bytes(value) for name, value in headers.items()}


def make_put(
    topic: str,
    create: bool,
    values: list[bytes],
    keys: list[bytes | None] | None = None,
    headers: list[Mapping[str, bytes] | None] | None = None,
) -> tuple[Put, bytes]:
    """The operation for a batch, and its payload."""
    payload = encode_batch(values, keys, headers)
    return Put(topic, Envelope(len(values), len(payload), checksum(payload)), create), payload


class Batch:
    """Messages of one topic on their way. Its boundaries are fixed when it is frozen."""

    __slots__ = ("create", "headers", "keys", "opened_ms", "pending", "producer", "size", "topic", "values")

    def __init__(self, producer: Producer, topic: str, create: bool, opened_ms: float) -> None:
        self.producer = producer
        self.topic = topic
        self.create = create
        self.opened_ms = opened_ms
        self.values: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Mapping[str, bytes] | None] | None = None
        self.size = 0
        #: None while it is open.
        self.pending: Pending | None = None

    def add(self, value: bytes, key: bytes | None, headers: Mapping[str, bytes] | None) -> int:
        """Returns the message's place, counted from 1."""
        before = len(self.values)
        if key is not None and self.keys is None:
            self.keys = [None] * before
        if headers is not None and self.headers is None:
            self.headers = [None] * before
        if self.keys is not None:
            self.keys.append(key)
            self.size += len(key or b"")
        if self.headers is not None:
            self.headers.append(headers)
            self.size += sum(len(name) + len(entry) for name, entry in (headers or {}).items())
        self.values.append(value)
        self.size += len(value)
        return before + 1

    @property
    def is_plain(self) -> bool:
        return self.keys is None and self.headers is None

    def freeze(self) -> tuple[Put, bytes]:
        operation = make_put(self.topic, self.create, self.values, self.keys, self.headers)
        self.values, self.keys, self.headers = [], None, None
        return operation


class Producer(Protocol):
    """Whoever sends a batch; its handles ask it for the answer."""

    def _result_of(self, batch: Batch, place: int, timeout_s: float | None) -> Receipt: ...


class Handle(msgspec.Struct, gc=False):
    """What `put_nowait` returns: one message's answer, once it is there.

    >>> handle = client.put_nowait("orders", b"one pizza")
    >>> handle.result().offset
    0
    """

    batch: Batch
    #: In the batch, counted from 1.
    place: int

    def done(self) -> bool:
        """The broker has answered, or it is known that it won't."""
        pending = self.batch.pending
        return pending is not None and pending.done

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the answer. Raises what the message was refused with, or TimeoutError."""
        return self.batch.producer._result_of(self.batch, self.place, timeout_s)
