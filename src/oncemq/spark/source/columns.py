"""Stored batches as Arrow columns, without a loop over the messages: the layout of a payload is Arrow's own.

What a batch does not hold in this form is made by arithmetic on whole columns: topic, offset, time stamp and
idempotency key. Headers are msgpack maps; equal ones, which is most of them, are decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from oncemq.protocol import errors
from oncemq.protocol.batch import Layout, layout_of
from oncemq.protocol.replies import BatchHead
from oncemq.spark.source.idempotency_keys import idempotency_keys

#: As Spark wants them, time zone and all.
TYPES: dict[str, Any] = {
    "topic": pa.string(),
    "offset": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.map_(pa.string(), pa.binary()),
    "timestamp": pa.timestamp("us", "UTC"),
    "idempotency_key": pa.string(),
}

_decode_headers = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class Stored(NamedTuple):
    """A run of messages of one topic: some batches, one after the other, each cut as its head says."""

    topic: str
    topic_id: int
    batches: Sequence[tuple[BatchHead, bytes]]


def record_batch(stored: Stored, names: Sequence[str]) -> Any:
    """The columns of these names, as one record batch. Raises Malformed for a payload that does not fit itself."""
    pieces = [_Piece(head, payload) for head, payload in stored.batches]
    made = _Made(stored, pieces)
    schema = pa.schema([(name, TYPES[name]) for name in names])
    return pa.record_batch([getattr(made, name)() for name in names], schema=schema)


class _Piece:
    """One stored batch: its sections as Arrow arrays that share the payload's memory."""

    def __init__(self, head: BatchHead, payload: bytes) -> None:
        self.head = head
        self.layout: Layout = layout_of(payload)
        if not 0 <= head.skip <= head.skip + head.count <= self.layout.count:
            raise errors.Malformed(f"messages {head.skip} to {head.skip + head.count} of {self.layout.count}")
        self.buffer = pa.py_buffer(payload)

    def values(self) -> Any:
        layout = self.layout
        return self._binary(layout.value_offsets_at, layout.values_at, layout.values_bytes)

    def keys(self) -> Any:
        layout = self.layout
        if not layout.key_offsets_at:
            return pa.nulls(self.head.count, pa.binary())
        bitmap = self.buffer.slice(layout.bitmap_at, (layout.count + 7) // 8)
        return self._binary(layout.key_offsets_at, layout.keys_at, layout.keys_bytes, bitmap)

    def headers(self) -> Any:
        layout = self.layout
        if not layout.header_offsets_at:
            return pa.nulls(self.head.count, TYPES["headers"])
        return headers_of(self._binary(layout.header_offsets_at, layout.headers_at, layout.headers_bytes))

    def times_us(self) -> Any:
        head, layout = self.head, self.layout
        if not layout.times_at:
            return np.full(head.count, head.time_ms * 1000, dtype=np.int64)
        raw = self.buffer.slice(layout.times_at, 8 * layout.count)
        return np.frombuffer(raw, dtype="<i8")[head.skip : head.skip + head.count] * 1000

    def _binary(self, offsets_at: int, at: int, size: int, bitmap: Any = None) -> Any:
        count = self.layout.count
        offsets = self.buffer.slice(offsets_at, 4 * (count + 1))
        numbers = np.frombuffer(offsets, dtype="<i4")
        # Arrow trusts what it is given; a producer may have written anything.
        if numbers[0] != 0 or numbers[-1] != size or (np.diff(numbers) < 0).any():
            raise errors.Malformed("a batch's offsets don't fit its bytes")
        whole = pa.Array.from_buffers(pa.binary(), count, [bitmap, offsets, self.buffer.slice(at, size)])
        return whole.slice(self.head.skip, self.head.count)


class _Made:
    """Each column by its name."""

    def __init__(self, stored: Stored, pieces: Sequence[_Piece]) -> None:
        self._stored = stored
        self._pieces = pieces
        self._count = sum(piece.head.count for piece in pieces)

    def topic(self) -> Any:
        name = self._stored.topic.encode()
        offsets = np.arange(self._count + 1, dtype=np.int32) * np.int32(len(name))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(name * self._count)]
        return pa.Array.from_buffers(pa.string(), self._count, buffers)

    def offset(self) -> Any:
        return pa.array(self._offsets())

    def key(self) -> Any:
        return _joined([piece.keys() for piece in self._pieces])

    def value(self) -> Any:
        return _joined([piece.values() for piece in self._pieces])

    def headers(self) -> Any:
        return _joined([piece.headers() for piece in self._pieces])

    def timestamp(self) -> Any:
        times_us = np.concatenate([piece.times_us() for piece in self._pieces])
        return pa.array(times_us).cast(TYPES["timestamp"])

    def idempotency_key(self) -> Any:
        return idempotency_keys(self._stored.topic_id, self._runs())

    def _offsets(self) -> Any:
        return np.concatenate([np.arange(first, first + count, dtype=np.int64) for first, count in self._runs()])

    def _runs(self) -> list[tuple[int, int]]:
        """Offsets without a gap, each (first, count)."""
        runs: list[tuple[int, int]] = []
        for piece in self._pieces:
            first, count = piece.head.first_offset, piece.head.count
            if runs and sum(runs[-1]) == first:
                first, count = runs[-1][0], runs.pop()[1] + count
            runs.append((first, count))
        return runs


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def headers_of(packed: Any) -> Any:
    """Msgpack maps as a map column; nothing where there are no headers."""
    encoded = packed.dictionary_encode()
    different = [_decoded(raw) for raw in encoded.dictionary.to_pylist()]
    return pa.array(different, TYPES["headers"]).take(encoded.indices)


def _decoded(raw: bytes) -> list[tuple[str, bytes]] | None:
    if not raw:
        return None
    try:
        return list(_decode_headers(raw).items())
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.Malformed(f"a message's headers: {error}") from None
