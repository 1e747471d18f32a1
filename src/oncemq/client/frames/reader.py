"""Reads frames: stored messages as tables with the columns of one version of their topic's schema."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from oncemq.arrow.columns import TYPES, FetchedBatches
from oncemq.arrow.typed_table import typed_table
from oncemq.client.runtime.flow import Flow, Outside
from oncemq.protocol.batch import schema_version_of
from oncemq.protocol.replies import BatchHead

if TYPE_CHECKING:
    from oncemq.client.consumer.reader import Reader
    from oncemq.client.frames.schemas import FrameSchemas
    from oncemq.protocol.schema import Schema

Batches = Sequence[tuple[BatchHead, bytes]]


class FrameConverter:
    """Makes tables of batches. The version of the schema is the one that is the newest at the first batch of a topic,
    or the one that the caller has chosen."""

    def __init__(self, schemas: FrameSchemas, version: int, columns: Sequence[str]) -> None:
        for name in columns:
            if name not in TYPES:
                raise ValueError(f"messages have no column {name!r}; they have {', '.join(TYPES)}")
        self._schemas = schemas
        self._version = version
        self._columns = tuple(columns)
        #: By topic id.
        self._targets: dict[int, Schema] = {}

    def convert(self, topic: str, topic_id: int, batches: Batches) -> Flow[Any]:
        """Return the table of some batches. Raises SchemaMismatch, Malformed, SchemaUnknown."""
        target = self._targets.get(topic_id)
        if target is None:
            target = self._targets[topic_id] = yield from self._schemas.find(topic, topic_id, self._version)
        known: dict[int, Schema] = {0: target}
        for version in {schema_version_of(payload) for _, payload in batches} - {0}:
            known[version] = yield from self._schemas.find(topic, topic_id, version)
        fetched = FetchedBatches(topic, topic_id, batches)
        return (yield Outside(partial(typed_table, fetched, target, known.__getitem__, self._columns)))

    def concatenated(self, topic: str, tables: Sequence[Any]) -> Flow[Any]:
        """Return tables as one. Versions of the schema that were added in the meantime do not count."""
        if tables:
            return pa.concat_tables(tables)
        _, version = yield from self._schemas.ask(topic, self._version)
        return typed_table(FetchedBatches(topic, 0, ()), version.schema, lambda _: version.schema, self._columns)


class FrameReader:
    """Reads a range of a topic in frames."""

    def __init__(self, reader: Reader, converter: FrameConverter) -> None:
        self._reader = reader
        self._converter = converter

    def next_frame(self) -> Flow[Any]:
        """Return the next table; None at the end."""
        batches = yield from self._reader.next_batches()
        if not batches:
            return None
        return (yield from self._converter.convert(self._reader.topic, self._reader.topic_id, batches))

    def close(self) -> None:
        self._reader.close()
