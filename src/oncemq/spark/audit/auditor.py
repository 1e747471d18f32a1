"""Runs the queries of the audit (queries/) and builds the report. Only counts and a limited number of findings reach
the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession

from oncemq.client.recording.records import FORMAT_VERSION
from oncemq.protocol import errors
from oncemq.spark.audit.periods import find_periods
from oncemq.spark.audit.positions import Positions
from oncemq.spark.audit.queries.deliveries import ACKED_RANGES, PERIODS
from oncemq.spark.audit.queries.findings import FINDINGS
from oncemq.spark.audit.queries.messages import COUNTS, UNKNOWN_COUNTS
from oncemq.spark.audit.queries.puts import FILES, PUT_SINCE, TOPICS
from oncemq.spark.audit.record_lines import read_lines
from oncemq.spark.audit.report import Finding, Report, SubscriptionResult, TopicResult, fault_kinds

FINDINGS_MAX = 1000

#: (broker, topic id), and (broker, topic id, subscriber, pattern).
TopicKey = tuple[str, int]
SubscriptionKey = tuple[str, int, str, str]

_PERIODS_SCHEMA = (
    "broker string, owned_id bigint, subscriber string, pattern string, epoch bigint, is_shared boolean, era int,"
    " generation int"
)
_RANGES_SCHEMA = (
    "broker string, topic_id bigint, subscriber string, pattern string, is_shared boolean, era int, start bigint,"
    " stop bigint"
)


class AckedRange(msgspec.Struct):
    """The range that a subscription acked in one era, as the broker confirmed it, and its faults of order."""

    key: SubscriptionKey
    is_shared: bool
    era: int
    #: The lowest and the highest position: all messages between them were acked in this era.
    start: int
    stop: int
    #: The total number of messages that the quota of the topic dropped.
    dropped: int = 0
    duplicated: int = 0
    out_of_order: int = 0


def audit(
    spark: SparkSession,
    folder: str,
    *,
    complete: bool = False,
    positions: Positions | None = None,
    findings_max: int = FINDINGS_MAX,
) -> Report:
    """Audit a folder of records.

    `complete`: every producer of these topics has recorded into the folder, so a message that was delivered and not put
    is a finding. `positions`: the positions that the broker reports. Raises SettingInvalid, VersionUnsupported."""
    with _persisted(read_lines(spark, folder)) as lines:
        return _Audit(spark, lines, complete, positions or Positions(), findings_max).report()


@contextmanager
def _persisted(frame: DataFrame) -> Iterator[DataFrame]:
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


class _Audit:
    def __init__(
        self, spark: SparkSession, lines: DataFrame, complete: bool, positions: Positions, findings_max: int
    ) -> None:
        self._spark = spark
        self._positions = positions
        self._frames = {"lines": lines}
        self._arguments = {"complete": complete, "findings_max": findings_max}
        self._names: dict[TopicKey, str] = {}

    def report(self) -> Report:
        files = self._files()
        topics, in_doubt = self._topics()
        periods = find_periods(row.asDict() for row in self._query(PERIODS))
        period_rows = [(*each.owned, each.epoch, each.is_shared, each.era, each.generation) for each in periods]
        self._add_frame("periods", period_rows, _PERIODS_SCHEMA)
        created = {(each.owned, each.era): each.created_at for each in periods if each.created_at >= 0}
        ranges = self._acked_ranges(created)
        range_rows = [(*each.key, each.is_shared, each.era, each.start, each.stop) for each in ranges]
        self._add_frame("acked_ranges", range_rows, _RANGES_SCHEMA)
        name_rows = [(*key, name) for key, name in self._names.items()]
        self._add_frame("names", name_rows, "broker string, topic_id bigint, topic string")
        subscriptions = self._subscriptions(ranges, topics)
        return Report(
            **files,
            in_doubt=in_doubt,
            topics=sorted(topics.values(), key=lambda each: (each.topic, each.topic_id)),
            subscriptions=subscriptions,
            findings=self._findings(fault_kinds(topics.values(), subscriptions)),
        )

    def _query(self, query: str) -> list[Row]:
        frames = {name: frame for name, frame in self._frames.items() if f"{{{name}}}" in query}
        arguments = {name: value for name, value in self._arguments.items() if f":{name}" in query}
        return self._spark.sql(query, arguments, **frames).collect()

    def _add_frame(self, name: str, rows: list[Any], schema: str) -> None:
        self._frames[name] = self._spark.createDataFrame(rows, schema)

    # Files.

    def _files(self) -> dict[str, int]:
        """Raises VersionUnsupported for records of a newer format."""
        files = self._query(FILES)
        newest = max((row["version"] or 0 for row in files), default=0)
        if newest > FORMAT_VERSION:
            raise errors.VersionUnsupported(
                f"the records have the format {newest}, and this version reads formats up to {FORMAT_VERSION}: use a "
                "newer version of OnceMQ"
            )
        return {
            "files": len(files),
            "lines": sum(row["lines"] for row in files),
            "torn": sum(row["broken"] > 0 for row in files),
            # A killed process truncates only its last line. The sequence numbers of the others have no gap.
            "unreadable": sum((row["written"] or 0) - (row["lines"] - row["broken"]) for row in files),
            "incomplete": sum(row["incomplete"] for row in files),
        }

    # Topics.

    def _topics(self) -> tuple[dict[TopicKey, TopicResult], int]:
        topics: dict[TopicKey, TopicResult] = {}
        in_doubt = 0
        for row in self._query(TOPICS):
            found = row.asDict()
            in_doubt += found.pop("in_doubt")
            if found["broker"] is not None:
                result = self._positions.compare(TopicResult(**found))
                topics[result.broker, result.topic_id] = result
                self._names[result.broker, result.topic_id] = result.topic
        return topics, in_doubt

    # Subscriptions.

    def _acked_ranges(self, created: Mapping[tuple[SubscriptionKey, int], int]) -> list[AckedRange]:
        """The acked range of each subscription and era. `created`: the position at which it was created, if known."""
        eras: dict[tuple[SubscriptionKey, int], AckedRange] = {}
        for row in self._query(ACKED_RANGES):
            key, era = _subscription_key(row), row["era"]
            if row["start"] is None:
                continue
            if row["topic"]:
                self._names.setdefault(key[:2], row["topic"])
            found = AckedRange(
                key,
                row["is_shared"],
                era,
                min(row["start"], created.get((key, era), row["start"])),
                row["stop"],
                row["dropped"],
                row["duplicated"],
                row["out_of_order"],
            )
            eras[key, era] = _merge(eras[key, era], found) if (key, era) in eras else found
        # The position that the broker reports belongs to the last era of each subscription.
        for key, era in dict(sorted(eras)).items():
            eras[key, era].stop = max(eras[key, era].stop, self._positions.acked.get(key, 0))
        return list(eras.values())

    def _subscriptions(
        self, ranges: list[AckedRange], topics: Mapping[TopicKey, TopicResult]
    ) -> list[SubscriptionResult]:
        merged: dict[SubscriptionKey, AckedRange] = {}
        for each in ranges:
            merged[each.key] = _merge(merged[each.key], each) if each.key in merged else each
        put = self._put_since(merged, topics)
        counts = {_subscription_key(row): row.asDict() for row in self._query(COUNTS)}
        unknown = self._unknown(counts)
        results = [
            self._result(merged[key], put[key], found, unknown.get(key, 0))
            for key, found in counts.items()
            if key in merged
        ]
        return sorted(results, key=lambda each: (each.topic, each.subscriber, each.pattern, each.topic_id))

    def _put_since(
        self, ranges: Mapping[SubscriptionKey, AckedRange], topics: Mapping[TopicKey, TopicResult]
    ) -> dict[SubscriptionKey, int]:
        """The number of messages that were put after the start of each subscription. The query is only needed if a
        subscription started after the first put."""
        put = dict.fromkeys(ranges, 0)
        is_later = False
        for key, acked in ranges.items():
            topic = topics.get(key[:2])
            if topic is not None:
                put[key] = topic.put
                is_later = is_later or acked.start > topic.first_offset
        if is_later:
            put |= {_subscription_key(row): row["put"] for row in self._query(PUT_SINCE)}
        return put

    def _unknown(self, counts: Mapping[SubscriptionKey, Mapping[str, Any]]) -> dict[SubscriptionKey, int]:
        if not self._arguments["complete"] or not any(found["unrecorded"] for found in counts.values()):
            return {}
        return {_subscription_key(row): row["unknown"] for row in self._query(UNKNOWN_COUNTS)}

    def _result(self, acked: AckedRange, put: int, found: Mapping[str, Any], unknown: int) -> SubscriptionResult:
        # The broker counts the messages that the quota dropped, but does not say which ones they were.
        dropped = min(acked.dropped, found["lost"])
        duplicated = found["duplicated"] + acked.duplicated
        broker, topic_id, subscriber, pattern = acked.key
        result = SubscriptionResult(
            broker=broker,
            topic_id=topic_id,
            subscriber=subscriber,
            pattern=pattern,
            topic=self._names.get(acked.key[:2], "?"),
            shared=acked.is_shared,
            judged=found["judged"],
            put=put,
            waiting=max(0, put - found["seen"]),
        )
        if not result.judged:
            return result
        return msgspec.structs.replace(
            result,
            consumed=found["consumed"],
            given=found["given"],
            redelivered=max(0, found["redelivered"] - duplicated),
            expired=found["expired"],
            dropped=dropped,
            passed=found["passed"],
            left=found["left_unread"],
            unexplained=found["unexplained"],
            lost=found["lost"] - dropped,
            duplicated=duplicated,
            out_of_order=acked.out_of_order,
            corrupted=found["corrupted"],
            unknown=unknown,
        )

    # Findings.

    def _findings(self, kinds: Iterable[str]) -> list[Finding]:
        wanted = set(kinds)
        rows = [row for found, query in FINDINGS if found & wanted for row in self._query(query)]
        findings = [
            Finding(topic=self._names.get((row["broker"], row["topic_id"]), "?"), **row.asDict()) for row in rows
        ]
        return sorted(findings, key=lambda each: (each.kind, each.topic, each.subscriber, each.offset))


def _subscription_key(row: Row) -> SubscriptionKey:
    return row["broker"], row["topic_id"], row["subscriber"], row["pattern"]


def _merge(one: AckedRange, other: AckedRange) -> AckedRange:
    return AckedRange(
        one.key,
        one.is_shared,
        one.era,
        min(one.start, other.start),
        max(one.stop, other.stop),
        max(one.dropped, other.dropped),
        one.duplicated + other.duplicated,
        one.out_of_order + other.out_of_order,
    )
