"""Reading topics: the methods that Spark calls on its driver and in its tasks.

    batch    partitions()                                      then, in tasks, read()
    stream   initialOffset() first, then for each micro-batch:
             latestOffset() → commit(previous batch) → partitions() → read()

A replayed micro-batch gets the same offsets from the checkpoint. For them, `read` returns the same messages or raises
an error; it never returns other or fewer messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from oncemq.arrow.columns import FetchedBatches, record_batch
from oncemq.client.internal import internal_api
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.replies import SubscriptionInfo
from oncemq.spark.checkpoint.durability import sync_checkpoint
from oncemq.spark.checkpoint.location import refuse_damaged
from oncemq.spark.connections import shared_client
from oncemq.spark.options import SourceOptions
from oncemq.spark.source.fetch import fetch
from oncemq.spark.source.offsets import Offsets, Position, parse_offsets
from oncemq.spark.source.plan_record import PlanRecord
from oncemq.spark.source.planning import Admission, lag_report, plan_tasks
from oncemq.spark.source.ranges import Range
from oncemq.spark.source.stream_subscription import StreamSubscription, refuse_behind, stream_subscription
from oncemq.spark.source.topic_offsets import TopicBounds, resolve_offset, selected_topics, topic_bounds

_log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """The range of offsets that one task reads."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(None)
        self.wanted = wanted


def _partitions(client: Client, ranges: Sequence[Range], options: SourceOptions) -> list[RangePartition]:
    return [RangePartition(part) for part in plan_tasks(client, ranges, options.task_limits)]


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[Any]:
    if not isinstance(partition, RangePartition):
        # If there is nothing to read, Spark makes a partition of its own.
        return iter(())
    client = shared_client(options.broker, options.timeout_s)
    convert = _converter(client, options, partition.wanted)
    return fetch(client, partition.wanted, convert, fail_on_loss=options.fail_on_loss)


def _converter(client: Client, options: SourceOptions, wanted: Range) -> Callable[[FetchedBatches], Any]:
    """What makes record batches of stored batches."""
    if options.typed is None:
        return partial(record_batch, names=options.columns)
    from oncemq.spark.typed.reading import TypedColumns

    return TypedColumns(client, options, wanted).record_batch


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        client = shared_client(options.broker, options.timeout_s)
        selection = options.selection
        found = {topic: topic_bounds(client, topic) for topic in selection.topics}
        if not selection.topics:
            found = selected_topics(client, selection)
        return _partitions(client, [self._range(client, topic, bounds) for topic, bounds in found.items()], options)

    def _range(self, client: Client, topic: str, bounds: TopicBounds) -> Range:
        start = resolve_offset(client, topic, bounds, self._options.start.of(topic))
        stop = resolve_offset(client, topic, bounds, self._options.end.of(topic))
        return Range(topic, bounds.topic_id, start, max(start, stop))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._admission = Admission(options.batch_limits)
        self._subscription: StreamSubscription | None = None
        #: With the trigger AvailableNow: where the topics ended when the query started.
        self._last: Mapping[str, TopicBounds] | None = None
        #: The end of the micro-batch that was planned last.
        self._planned: Offsets | None = None
        self._record: PlanRecord | None = None
        #: The subscriptions that existed when the query began, by topic.
        self._begun: Mapping[str, SubscriptionInfo] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Only the options are pickled for the tasks."""
        return {**self.__dict__, "_subscription": None, "_last": None, "_planned": None, "_record": None, "_begun": {}}

    # Called on the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        subscription = self._subscription or stream_subscription(self._client, self._options)
        if self._subscription is None:
            refuse_damaged(self._options.checkpoint)
            self._begun = subscription.infos()
        positions = subscription.begin()
        self._subscription = subscription
        self._record = self._load_record()
        return Offsets(self._broker_id, positions, is_initial=True).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        # A topic that does not exist yet has no messages for this run.
        self._last = selected_topics(self._client, self._options.selection)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return self._admission.default_limit()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        previous = parse_offsets(start)
        subscription = self._resume(previous)
        bounds: Mapping[str, TopicBounds] = subscription.bounds()
        known = self._known_positions(previous, bounds)
        repeated = self._recorded_end(start, bounds)
        if repeated is not None:
            self._planned = parse_offsets(repeated)
            return repeated
        if self._last is not None:
            # Without topics that were deleted or created again since the query started.
            bounds = {
                topic: last
                for topic, last in self._last.items()
                if topic in bounds and bounds[topic].topic_id == last.topic_id
            }
        starts = {**{topic: subscription.add_topic(topic) for topic in bounds if topic not in known}, **known}
        waiting = [
            Range(topic, at.topic_id, at.offset, bounds[topic].end) for topic, at in starts.items() if topic in bounds
        ]
        counts = self._admission.admit(self._client, waiting, limit, may_wait=self._last is None)
        if not any(counts.values()):
            return start
        ends = {
            topic: Position(at.topic_id, at.offset + counts.get(topic, 0))
            for topic, at in starts.items()
            # A new topic becomes part of the checkpoint with its first message.
            if topic in known or counts.get(topic)
        }
        new_starts = {topic: starts[topic].offset for topic in ends if previous.is_initial or topic not in known}
        self._planned = Offsets(self._broker_id, ends, new_starts)
        return self._planned.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The current ends of the topics, and what is not planned yet. Spark shows it in the query's progress."""
        if self._subscription is None:
            return None
        bounds = self._subscription.bounds()
        ends = {name: Position(at.topic_id, at.end) for name, at in bounds.items()}
        report = Offsets(self._broker_id, ends).to_json()
        report["source"] = self._options.description
        if self._planned is not None:
            reached = self._planned.topics
            unread = [
                Range(name, at.topic_id, reached[name].offset if name in reached else at.first, at.end)
                for name, at in bounds.items()
            ]
            report |= lag_report(self._client, unread)
        return report

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        previous, planned = parse_offsets(start), parse_offsets(end)
        if previous.topics == planned.topics and previous.is_initial == planned.is_initial:
            # Spark may run a micro-batch without new messages, for its state. Start and end are the same then.
            return []
        subscription = self._resume(previous)
        self._known_positions(previous, subscription.bounds())
        if previous.is_initial:
            begun = {topic: Position(planned.topics[topic].topic_id, at) for topic, at in planned.starts.items()}
            refuse_behind(self._begun, begun)
            # Targets recognise a replay by the id of the query, so a power failure must not take this id away.
            sync_checkpoint(self._options.checkpoint)
        if self._record is not None:
            self._record.store(start, end, subscription.ensure_owner)
        ranges = [
            Range(topic, at.topic_id, _start_offset(topic, previous, planned), at.offset)
            for topic, at in planned.topics.items()
        ]
        return _partitions(self._client, ranges, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        committed = parse_offsets(end)
        subscription = self._resume(committed, is_commit=True)
        # The broker may delete acked messages, so a power failure must not take back what Spark knows of them.
        sync_checkpoint(self._options.checkpoint)
        subscription.ack(committed.topics)

    # Called in a task.

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)

    # Internal.

    @property
    def _client(self) -> Client:
        return shared_client(self._options.broker, self._options.timeout_s)

    @property
    def _broker_id(self) -> str:
        return internal_api(self._client).broker_id

    def _resume(self, start: Offsets, *, is_commit: bool = False) -> StreamSubscription:
        """The subscription; the first call of a process takes ownership of it for the checkpoint.

        Raises CheckpointBehind, except for a commit, which may be repeated."""
        if start.broker != self._broker_id:
            raise errors.TopicGone(
                f"the checkpoint was written with broker {start.broker}, but this is broker {self._broker_id}, where "
                "its offsets have no meaning. Connect to the former broker, or start with a new checkpoint"
            )
        if self._subscription is None:
            subscription = stream_subscription(self._client, self._options)
            known = self._known_positions(start, subscription.bounds())
            if not is_commit:
                refuse_damaged(self._options.checkpoint)
                refuse_behind(subscription.infos(known), known)
            subscription.resume(start.topics)
            self._subscription = subscription
            self._record = self._load_record()
            if not (is_commit or start.is_initial):
                self._record.refuse_other_query()
        return self._subscription

    def _load_record(self) -> PlanRecord:
        options = self._options
        selection = options.selection
        topics = [selection.pattern, selection.regex, sorted(selection.topics)]
        return PlanRecord(self._client, options.subscription, topics, options.checkpoint)

    def _recorded_end(self, start: dict[str, Any], bounds: Mapping[str, TopicBounds]) -> dict[str, Any] | None:
        """Where the micro-batch that starts here ended before the checkpoint lost it, if its topics still exist."""
        end = self._record.end_after(start) if self._record is not None else None
        if end is None:
            return None
        is_read = self._options.selection.matcher()
        exist = (
            is_read(topic)
            and topic in bounds
            and bounds[topic].topic_id == at.topic_id
            and at.offset <= bounds[topic].end
            for topic, at in parse_offsets(end).topics.items()
        )
        return end if all(exist) else None

    def _known_positions(self, start: Offsets, bounds: Mapping[str, TopicBounds]) -> dict[str, Position]:
        """The checkpoint's positions on those topics that this query reads and that were not deleted since.

        Raises TopicGone, OffsetOutOfRange."""
        found = {}
        is_read = self._options.selection.matcher()
        for topic, at in start.topics.items():
            current = bounds.get(topic)
            if not is_read(topic):
                # The topic was removed from the query.
                _log.warning("subscription '%s' still keeps messages of '%s'", self._options.subscription, topic)
            elif current is not None and current.topic_id == at.topic_id:
                _check_end(topic, at, current)
                found[topic] = at
            elif self._options.fail_on_loss:
                what = "was deleted" if current is None else "was deleted and created again"
                raise errors.TopicGone(
                    f"topic '{topic}' {what} after the checkpoint was written; its messages for this query are lost. "
                    "Start with a new checkpoint, or accept the loss: failOnDataLoss=false (in a pipeline "
                    "`on_loss: skip`, for an archive --on-loss skip)"
                )
        return found


def _start_offset(topic: str, previous: Offsets, planned: Offsets) -> int:
    """The offset at which a micro-batch starts on a topic. Raises OffsetOutOfRange."""
    first = planned.starts.get(topic)
    known = previous.topics.get(topic)
    if first is None and known is not None and known.topic_id == planned.topics[topic].topic_id:
        first = known.offset
    if first is None or first > planned.topics[topic].offset:
        raise errors.OffsetOutOfRange(f"the checkpoint does not say where topic '{topic}' starts: is it damaged?")
    return first


def _check_end(topic: str, at: Position, bounds: TopicBounds) -> None:
    if bounds.end < at.offset:
        raise errors.OffsetOutOfRange(
            f"topic '{topic}' ends at offset {bounds.end}, but the checkpoint is at {at.offset}: "
            "has the broker been restored from an older copy? Start with a new checkpoint"
        )
