"""Converts stored batches to Arrow columns without a loop over the messages: a payload has the layout of Arrow.

The columns that a payload does not contain (topic, offset, time stamp and idempotency key) are computed by arithmetic
on whole columns. Headers are msgpack maps. Equal headers, which are the usual case, are decoded once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from oncemq.arrow.idempotency_keys import idempotency_keys
from oncemq.protocol import errors
from oncemq.protocol.batch import Layout, layout_of, typed_layout
from oncemq.protocol.columnar import row_values
from oncemq.protocol.replies import BatchHead

#: Spark accepts exactly these types, including the time zone.
TYPES: dict[str, Any] = {
    "topic": pa.string(),
    "offset": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.map_(pa.string(), pa.binary()),
    "timestamp": pa.timestamp("us", "UTC"),
    "idempotency_key": pa.string(),
    "schema_version": pa.int32(),
}

_decode_headers = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class FetchedBatches(NamedTuple):
    """Consecutive batches of one topic, undecoded. The head of each says which of its messages are meant."""

    topic: str
    topic_id: int
    batches: Sequence[tuple[BatchHead, bytes]]


def record_batch(fetched: FetchedBatches, names: Sequence[str]) -> Any:
    """Build one record batch with these columns. Raises Malformed for an inconsistent payload."""
    columns = _Columns(fetched)
    return pa.RecordBatch.from_arrays([getattr(columns, name)() for name in names], schema=_schema(tuple(names)))


@functools.cache
def _schema(names: tuple[str, ...]) -> Any:
    return pa.schema([(name, TYPES[name]) for name in names])


class StoredBatch:
    """One stored batch: its sections as Arrow arrays that share the payload's memory."""

    def __init__(self, head: BatchHead, payload: bytes) -> None:
        self.head = head
        self.layout: Layout = layout_of(payload)
        if not 0 <= head.skip <= head.skip + head.count <= self.layout.count:
            raise errors.Malformed(
                f"messages {head.skip} to {head.skip + head.count} of a batch that has only {self.layout.count}"
            )
        self.payload = payload
        self.buffer = pa.py_buffer(payload)

    def values(self) -> Any:
        head, layout = self.head, self.layout
        typed = typed_layout(self.payload, layout)
        if typed is not None:
            return pa.array(row_values(self.payload, typed, head.skip, head.skip + head.count), pa.binary())
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
        return decode_headers(self._binary(layout.header_offsets_at, layout.headers_at, layout.headers_bytes))

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
        # Arrow does not check the offsets, and a producer may have written anything.
        if numbers[0] != 0 or numbers[-1] != size or (np.diff(numbers) < 0).any():
            raise errors.Malformed("the value offsets of a batch do not match its size")
        whole = pa.Array.from_buffers(pa.binary(), count, [bitmap, offsets, self.buffer.slice(at, size)])
        return whole.slice(self.head.skip, self.head.count)


class _Columns:
    """Builds the columns of some batches. Each method has the name of its column."""

    def __init__(self, fetched: FetchedBatches) -> None:
        self._fetched = fetched
        self._batches = [StoredBatch(head, payload) for head, payload in fetched.batches]
        self._count = sum(batch.head.count for batch in self._batches)

    def topic(self) -> Any:
        name = self._fetched.topic.encode()
        offsets = np.arange(self._count + 1, dtype=np.int32) * np.int32(len(name))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(name * self._count)]
        return pa.Array.from_buffers(pa.string(), self._count, buffers)

    def offset(self) -> Any:
        runs = [np.arange(first, first + count, dtype=np.int64) for first, count in self._runs()]
        return _from_numbers(pa.int64(), runs)

    def key(self) -> Any:
        return _concatenate([batch.keys() for batch in self._batches])

    def value(self) -> Any:
        return _concatenate([batch.values() for batch in self._batches])

    def headers(self) -> Any:
        return _concatenate([batch.headers() for batch in self._batches])

    def timestamp(self) -> Any:
        return _from_numbers(TYPES["timestamp"], [batch.times_us() for batch in self._batches])

    def schema_version(self) -> Any:
        versions = [(batch.layout.schema_version, batch.head.count) for batch in self._batches]
        return pa.array(np.concatenate([np.full(count, version, np.int32) for version, count in versions]))

    def idempotency_key(self) -> Any:
        return idempotency_keys(self._fetched.topic_id, self._runs())

    def _runs(self) -> list[tuple[int, int]]:
        """The offsets as runs without a gap, each (first, count)."""
        runs: list[tuple[int, int]] = []
        for batch in self._batches:
            first, count = batch.head.first_offset, batch.head.count
            if runs and sum(runs[-1]) == first:
                first, count = runs[-1][0], runs.pop()[1] + count
            runs.append((first, count))
        return runs


def _from_numbers(kind: Any, parts: list[Any]) -> Any:
    """An array of 64-bit numbers that shares the memory of NumPy's. (`pa.array` would import pandas, which takes longer
    than most tasks.)"""
    numbers = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _concatenate(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def decode_headers(packed: Any) -> Any:
    """Convert a column of msgpack maps to a map column; null for a message without headers. Raises Malformed."""
    encoded = packed.dictionary_encode()
    distinct = [_decode_entries(raw) for raw in encoded.dictionary.to_pylist()]
    return pa.array(distinct, TYPES["headers"]).take(encoded.indices)


def _decode_entries(raw: bytes) -> list[tuple[str, bytes]] | None:
    if not raw:
        return None
    try:
        return list(_decode_headers(raw).items())
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.Malformed(f"the headers of a message can't be decoded: {error}") from None
