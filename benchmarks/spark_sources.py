"""What Spark is compared with: record batches from memory, and a writer that discards its batches.

The Python processes of Spark import this module, so it contains nothing else.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from oncemq.arrow.columns import FetchedBatches, record_batch
from oncemq.protocol.batch import encode_batch
from oncemq.protocol.replies import BatchHead
from oncemq.spark.schema import NAMES, SPARK_TYPES
from oncemq.spark.source.ranges import Extent, Range, divide

#: A record batch has about as many bytes as one of the source.
_BATCH_BYTES = 1024 * 1024
#: More memory than the caches of a processor have: the rows of a real source are not in them.
_MEMORY_BYTES = 64 * 1024 * 1024


@functools.cache
def _batches(size: int) -> list[Any]:
    """Record batches of rows with values of this size, each in memory of its own. Made once per process."""
    per_batch = max(1, _BATCH_BYTES // size)
    payload = encode_batch([b"x" * size] * per_batch)
    head = BatchHead(0, per_batch, 0, 1_700_000_000_000, 0)
    return [
        record_batch(FetchedBatches("orders", 1, [(head, bytes(bytearray(payload)))]), NAMES)
        for _ in range(_MEMORY_BYTES // _BATCH_BYTES)
    ]


class _Rows:
    """Rows of this size in partitions."""

    def __init__(self, options: Any) -> None:
        self.rows = int(options["rows"])
        self.size = int(options["size"])
        self.parts = int(options["partitions"])
        self.per_trigger = int(options.get("perTrigger", "0"))

    def cut(self, first: int, stop: int) -> list[InputPartition]:
        pieces = divide(Range("orders", 1, first, stop), Extent(), self.parts)
        return [InputPartition((piece.start, piece.stop)) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        first, stop = partition.value
        for batch in itertools.cycle(_batches(self.size)):
            count = min(batch.num_rows, stop - first)
            if not count:
                return
            yield batch.slice(0, count)
            first += count


class _MemoryReader(DataSourceReader):
    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        return self._rows.cut(0, self._rows.rows)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._rows.read(partition)


class _MemoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        pass

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802
        return {"at": min(self._rows.rows, start["at"] + self._rows.per_trigger)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._rows.cut(start["at"], end["at"])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._rows.read(partition)


class MemorySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "memory_batches"

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in SPARK_TYPES.items() if name in NAMES)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return _MemoryReader(_Rows(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's signature
        return _MemoryStreamReader(_Rows(self.options))


class _Nowhere(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class NowhereSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nowhere"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002 - Spark's signature
        return _Nowhere()
