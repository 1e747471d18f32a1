"""Reading topics: what Spark calls on its driver, and in its tasks.

    batch    partitions()                                      then, in tasks, read()
    stream   initialOffset() at first, then per micro-batch:
             latestOffset() → commit(the batch before) → partitions() → read()

A replayed micro-batch gets the same offsets, out of the checkpoint, and `read` brings the same messages for them or
an error: never others, never fewer.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.patterns import matches
from oncemq.spark.connections import client_of
from oncemq.spark.options import SourceOptions
from oncemq.spark.source.fetch import fetch
from oncemq.spark.source.offsets import Offsets, Position, lag_of, offsets_of
from oncemq.spark.source.ranges import Range, admit, cut
from oncemq.spark.source.stream_subscription import Hold, hold_of
from oncemq.spark.source.topic_offsets import Extent, extent_of, matching, offset_at, those_there

_log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(None)
        self.wanted = wanted


def _partitions(ranges: Sequence[Range], options: SourceOptions) -> list[RangePartition]:
    parts = options.partitions or os.cpu_count() or 1
    return [RangePartition(piece) for piece in cut(ranges, parts)]


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[Any]:
    if not isinstance(partition, RangePartition):
        # Where there is nothing to read, Spark makes a partition of its own.
        return iter(())
    client = client_of(options.url, options.timeout_s)
    return fetch(client, partition.wanted, options.columns, fail_on_loss=options.fail_on_loss)


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        client = client_of(options.url, options.timeout_s)
        if options.pattern:
            extents = matching(client, options.pattern)
        else:
            extents = {topic: extent_of(client, topic) for topic in options.topics}
        return _partitions([self._range(client, topic, extent) for topic, extent in extents.items()], options)

    def _range(self, client: Client, topic: str, extent: Extent) -> Range:
        options = self._options
        start = offset_at(client, topic, extent, options.start.on(topic))
        stop = offset_at(client, topic, extent, options.end.on(topic))
        return Range(topic, extent.topic_id, start, max(start, stop))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._hold: Hold | None = None
        #: Until the query's end, where it ends with what is available now.
        self._last: Mapping[str, Extent] | None = None
        #: Where the batch that was planned last ends.
        self._planned: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the options alone."""
        return {"_options": self._options, "_hold": None, "_last": None, "_planned": None}

    # The driver's part.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        hold = self._hold or hold_of(self._client, self._options)
        positions = hold.begin()
        self._hold = hold
        return Offsets(self._broker, positions, is_initial=True).as_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        options = self._options
        # A topic that nobody has made yet has nothing for this run.
        if options.pattern:
            self._last = matching(self._client, options.pattern)
        else:
            self._last = those_there(self._client, options.topics)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.rows_max) if self._options.rows_max else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        begun = offsets_of(start)
        hold = self._held_from(begun)
        extents: Mapping[str, Extent] = hold.extents()
        known = self._known(begun, extents)
        if self._last is not None:
            # Those that are still the same ones.
            extents = {
                topic: last
                for topic, last in self._last.items()
                if topic in extents and extents[topic].topic_id == last.topic_id
            }
        starts = {**{topic: hold.take_in(topic) for topic in extents if topic not in known}, **known}
        counts = {topic: max(0, extents[topic].offset - at.offset) for topic, at in starts.items() if topic in extents}
        if isinstance(limit, ReadMaxRows):
            counts = admit(counts, limit.max_rows)
        if not any(counts.values()):
            return start
        ends = {
            topic: Position(at.topic_id, at.offset + counts.get(topic, 0))
            for topic, at in starts.items()
            # A new topic is a part of the stream from its first message on.
            if topic in known or counts.get(topic)
        }
        begins = {topic: starts[topic].offset for topic in ends if begun.is_initial or topic not in known}
        self._planned = Offsets(self._broker, ends, begins)
        return self._planned.as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Where the topics end by now, and how many messages were not yet planned."""
        if self._hold is None:
            return None
        extents = self._hold.extents()
        latest = Offsets(self._broker, {name: Position(at.topic_id, at.offset) for name, at in extents.items()})
        report = latest.as_json()
        if self._planned is not None:
            report["lag"] = lag_of(self._planned, latest)
        return report

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ended = offsets_of(start), offsets_of(end)
        if begun.topics == ended.topics and begun.is_initial == ended.is_initial:
            # Without new messages Spark may run a batch for its state, with the end that it knows.
            return []
        self._known(begun, self._held_from(begun).extents())
        ranges = [
            Range(topic, at.topic_id, _first_of(topic, begun, ended), at.offset) for topic, at in ended.topics.items()
        ]
        return _partitions(ranges, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        ended = offsets_of(end)
        self._held_from(ended).ack(ended.topics)

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)

    # How it is done.

    @property
    def _client(self) -> Client:
        return client_of(self._options.url, self._options.timeout_s)

    @property
    def _broker(self) -> str:
        return self._client._driver.core.broker_id

    def _held_from(self, start: Offsets) -> Hold:
        if start.broker != self._broker:
            raise errors.TopicGone(
                f"the checkpoint was made with broker {start.broker}, and this is broker {self._broker}: its offsets "
                "mean nothing here. Connect to the former one, or start with a new checkpoint"
            )
        if self._hold is None:
            hold = hold_of(self._client, self._options)
            self._known(start, hold.extents())
            hold.resume(start.topics)
            self._hold = hold
        return self._hold

    def _known(self, start: Offsets, extents: Mapping[str, Extent]) -> dict[str, Position]:
        """Where the checkpoint stands on the topics that this query reads, the same ones that it speaks of."""
        found = {}
        for topic, at in start.topics.items():
            extent = extents.get(topic)
            if not self._reads(topic):
                # The query has fewer topics than it had.
                _log.warning("subscription '%s' still keeps messages of '%s'", self._options.subscription, topic)
            elif extent is not None and extent.topic_id == at.topic_id:
                _check_end(topic, at, extent)
                found[topic] = at
            elif self._options.fail_on_loss:
                what = "was deleted" if extent is None else "was deleted and made again"
                raise errors.TopicGone(
                    f"topic '{topic}' {what} since the checkpoint was made; what it had for this stream is lost. "
                    "Start with a new checkpoint, or accept it: failOnDataLoss=false (in a pipeline `on_loss: skip`, "
                    "for an archive --on-loss skip)"
                )
        return found

    def _reads(self, topic: str) -> bool:
        options = self._options
        return matches(options.pattern.split("."), topic) if options.pattern else topic in options.topics


def _first_of(topic: str, begun: Offsets, ended: Offsets) -> int:
    """Where a batch starts on a topic."""
    first = ended.begins.get(topic)
    known = begun.topics.get(topic)
    if first is None and known is not None and known.topic_id == ended.topics[topic].topic_id:
        first = known.offset
    if first is None or first > ended.topics[topic].offset:
        raise errors.OffsetOutOfRange(f"the checkpoint does not say where topic '{topic}' starts: is it damaged?")
    return first


def _check_end(topic: str, at: Position, extent: Extent) -> None:
    if extent.offset < at.offset:
        raise errors.OffsetOutOfRange(
            f"topic '{topic}' ends at offset {extent.offset}, and the checkpoint stands at {at.offset}: "
            "has the broker been restored from an older copy? Start with a new checkpoint"
        )
