"""Puts frames: the rows of a table as messages, checked against the schema of their topic."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from oncemq.arrow.frames import as_table, conform, key_column
from oncemq.arrow.typed_payloads import TypedRows
from oncemq.arrow.typed_rows import encode_rows, is_checked_by_row
from oncemq.client.producer.encoding import Headers, Times, headers_as_bytes, times_of
from oncemq.client.runtime.flow import Flow, Outside
from oncemq.protocol.batch import checksum, encode_headers
from oncemq.protocol.commands import Envelope, Put

if TYPE_CHECKING:
    from oncemq.client.frames.schemas import FrameSchemas
    from oncemq.client.producer.producer import Producer
    from oncemq.client.producer.receipt import Receipt
    from oncemq.protocol.schema import SchemaVersion

#: The approximate size of a stored batch.
_BATCH_BYTES = 1024 * 1024


class FrameOptions:
    """What is put, checked before anything is sent."""

    def __init__(
        self,
        topic: str,
        frame: Any,
        key: str | None,
        headers: Headers | None,
        ttl_s: float | None,
        delay_s: float | None,
        version: int,
    ) -> None:
        self.topic = topic
        self.table = as_table(frame)
        self.key = key
        self.headers = encode_headers(headers_as_bytes(headers)) if headers else b""
        self.times: Times = times_of(ttl_s, delay_s)
        self.version = version


def put_frame(producer: Producer[Any], schemas: FrameSchemas, options: FrameOptions) -> Flow[Receipt]:
    """Put the rows of a frame, in order. Each batch is stored whole or not at all."""
    topic_id, version = yield from schemas.ask(options.topic, options.version)
    limit = producer.driver.core.batch_bytes_max
    bytes_max = min(_BATCH_BYTES, limit) if limit else _BATCH_BYTES
    batches = partial(_batches, options, topic_id, version, bytes_max)
    if is_checked_by_row(version.schema):
        # All of them first: a row that does not match must not leave a part of the frame behind.
        checked = batches()
        while (yield Outside(partial(next, checked, None))) is not None:
            pass
    return (yield from producer.put_batches(options.topic, batches()))


def _batches(
    options: FrameOptions, topic_id: int, version: SchemaVersion, bytes_max: int
) -> Iterator[tuple[Put, bytes]]:
    times = options.times
    first = 0
    for rows in _rows(options, version):
        for part in encode_rows(rows, version, options.topic, bytes_max, first):
            envelope = Envelope(
                part.rows,
                len(part.payload),
                checksum(part.payload),
                times.ttl_ms,
                times.due_ms,
                part.key_hashes,
                version.version,
                topic_id,
            )
            yield Put(options.topic, envelope), part.payload
        first += rows.values.num_rows


def _rows(options: FrameOptions, version: SchemaVersion) -> Iterator[TypedRows]:
    table = conform(options.table, version.schema, options.topic)
    keys = None if options.key is None else key_column(table, options.key)
    start = 0
    for batch in table.to_batches():
        count = batch.num_rows
        part = None if keys is None else keys.slice(start, count)
        headers = pa.array([options.headers] * count, pa.binary()) if options.headers else None
        yield TypedRows(batch, part, headers)
        start += count
