"""The audit as a whole: what is asked (queries.py), in which order, and what becomes of the answers. Only counts and a
limited number of findings reach the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession

from oncemq.client.recording.records import FORMAT_VERSION
from oncemq.protocol import errors
from oncemq.spark.audit import queries
from oncemq.spark.audit.periods import Period, periods_of
from oncemq.spark.audit.positions import Positions
from oncemq.spark.audit.record_lines import read_lines
from oncemq.spark.audit.report import Finding, Report, SubscriptionResult, TopicResult, kinds_of

FINDINGS_MAX = 1000

#: (broker, topic's id), and that with subscriber and pattern.
TopicKey = tuple[str, int]
Key = tuple[str, int, str, str]

_KEY = "broker string, topic_id bigint, subscriber string, pattern string"
_PERIODS = (
    "broker string, owned_id bigint, subscriber string, pattern string, epoch bigint, is_shared boolean, era int,"
    " generation int"
)
_SAID = f"{_KEY}, is_shared boolean, era int, start bigint, stop bigint"


class Said(msgspec.Struct):
    """What the broker said of a subscription's position in one era, and what came in the wrong order."""

    key: Key
    is_shared: bool
    era: int
    #: The lowest and the highest: everything between was done in it.
    start: int
    stop: int
    #: Messages that its topic's quota has taken from it, ever.
    dropped: int = 0
    doubled: int = 0
    out_of_order: int = 0


def audit(
    spark: SparkSession,
    folder: str,
    *,
    complete: bool = False,
    positions: Positions | None = None,
    findings_max: int = FINDINGS_MAX,
) -> Report:
    """Judge a folder of records. `complete`: every producer of these topics has recorded into it, so what was
    delivered and is not among the puts is a finding. `positions`: the broker's own word on where topics end and how far
    subscriptions are. Raises SettingInvalid, VersionUnsupported."""
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
        self._add_frame("periods", self._periods(), _PERIODS)
        said = self._listen()
        self._add_frame("said", [(*s.key, s.is_shared, s.era, s.start, s.stop) for s in said], _SAID)
        rows = [(*key, name) for key, name in self._names.items()]
        self._add_frame("names", rows, "broker string, topic_id bigint, topic string")
        subscriptions = self._subscriptions(said, topics)
        return Report(
            **files,
            in_doubt=in_doubt,
            topics=sorted(topics.values(), key=lambda each: (each.topic, each.topic_id)),
            subscriptions=subscriptions,
            findings=self._findings(kinds_of(topics.values(), subscriptions)),
        )

    def _ask(self, query: str) -> list[Row]:
        frames = {name: frame for name, frame in self._frames.items() if f"{{{name}}}" in query}
        arguments = {name: value for name, value in self._arguments.items() if f":{name}" in query}
        return self._spark.sql(query, arguments, **frames).collect()

    def _add_frame(self, name: str, rows: list[Any], schema: str) -> None:
        self._frames[name] = self._spark.createDataFrame(rows, schema)

    # Files.

    def _files(self) -> dict[str, int]:
        """Raises VersionUnsupported for records of a newer format."""
        files = self._ask(queries.FILES)
        newest = max((row["version"] or 0 for row in files), default=0)
        if newest > FORMAT_VERSION:
            raise errors.VersionUnsupported(f"records of format {newest}; this audit reads up to {FORMAT_VERSION}")
        return {
            "files": len(files),
            "lines": sum(row["lines"] for row in files),
            "torn": sum(row["broken"] > 0 for row in files),
            # A process that is killed tears its last line, and no other: the numbers of the others have no gap.
            "unreadable": sum((row["written"] or 0) - (row["lines"] - row["broken"]) for row in files),
            "incomplete": sum(row["incomplete"] for row in files),
        }

    # Topics.

    def _topics(self) -> tuple[dict[TopicKey, TopicResult], int]:
        topics: dict[TopicKey, TopicResult] = {}
        in_doubt = 0
        for row in self._ask(queries.TOPICS):
            found = row.asDict()
            in_doubt += found.pop("in_doubt")
            if found["broker"] is not None:
                result = self._positions.compared(TopicResult(**found))
                topics[result.broker, result.topic_id] = result
                self._names[result.broker, result.topic_id] = result.topic
        return topics, in_doubt

    # Subscriptions.

    def _periods(self) -> list[tuple[Any, ...]]:
        periods = periods_of(row.asDict() for row in self._ask(queries.PERIODS))
        self._made = _made(periods)
        return [(*each.owned, each.epoch, each.is_shared, each.era, each.generation) for each in periods]

    def _listen(self) -> list[Said]:
        """What the broker said, era by era."""
        eras: dict[tuple[Key, int], Said] = {}
        for row in self._ask(queries.STATEMENTS):
            key = _key_of(row)
            if row["start"] is None:
                continue
            if row["topic"]:
                self._names.setdefault(key[:2], row["topic"])
            said = Said(key, row["is_shared"], row["era"], row["start"], row["stop"])
            said.start = min(said.start, self._made.get((key, said.era), said.start))
            said.dropped, said.doubled, said.out_of_order = row["dropped"], row["doubled"], row["out_of_order"]
            known = eras.get((key, said.era))
            eras[key, said.era] = said if known is None else _together(known, said)
        # Of each subscription the last one.
        for key, era in dict(sorted(eras)).items():
            eras[key, era].stop = max(eras[key, era].stop, self._positions.acked.get(key, 0))
        return list(eras.values())

    def _subscriptions(self, said: list[Said], topics: Mapping[TopicKey, TopicResult]) -> list[SubscriptionResult]:
        whole: dict[Key, Said] = {}
        for each in said:
            whole[each.key] = _together(whole[each.key], each) if each.key in whole else each
        put = self._put_since(whole, topics)
        counts = {_key_of(row): row.asDict() for row in self._ask(queries.COUNTS)}
        unknown = self._unknown(counts)
        results = [
            self._result(whole[key], put[key], found, unknown.get(key, 0))
            for key, found in counts.items()
            if key in whole
        ]
        return sorted(results, key=lambda each: (each.topic, each.subscriber, each.pattern, each.topic_id))

    def _put_since(self, whole: Mapping[Key, Said], topics: Mapping[TopicKey, TopicResult]) -> dict[Key, int]:
        """Messages that were put since a subscription began; asked for only where it began later than the puts."""
        put = dict.fromkeys(whole, 0)
        is_later = False
        for key, said in whole.items():
            topic = topics.get(key[:2])
            if topic is not None:
                put[key] = topic.put
                is_later = is_later or said.start > topic.first_offset
        if is_later:
            put |= {_key_of(row): row["put"] for row in self._ask(queries.PUT_SINCE)}
        return put

    def _unknown(self, counts: Mapping[Key, Mapping[str, Any]]) -> dict[Key, int]:
        if not self._arguments["complete"] or not any(found["unrecorded"] for found in counts.values()):
            return {}
        return {_key_of(row): row["unknown"] for row in self._ask(queries.UNKNOWN_COUNTS)}

    def _result(self, said: Said, put: int, found: Mapping[str, Any], unknown: int) -> SubscriptionResult:
        """Which messages the quota took is not known; how many, the broker counts."""
        dropped = min(said.dropped, found["lost"])
        doubled = found["doubled"] + said.doubled
        broker, topic_id, subscriber, pattern = said.key
        result = SubscriptionResult(
            broker=broker,
            topic_id=topic_id,
            subscriber=subscriber,
            pattern=pattern,
            topic=self._names.get(said.key[:2], "?"),
            shared=said.is_shared,
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
            redelivered=max(0, found["redelivered"] - doubled),
            expired=found["expired"],
            dropped=dropped,
            passed=found["passed"],
            left=found["left_unread"],
            unexplained=found["unexplained"],
            lost=found["lost"] - dropped,
            doubled=doubled,
            out_of_order=said.out_of_order,
            corrupted=found["corrupted"],
            unknown=unknown,
        )

    # Findings.

    def _findings(self, kinds: Iterable[str]) -> list[Finding]:
        wanted = set(kinds)
        rows = [row for found, query in queries.FINDINGS if found & wanted for row in self._ask(query)]
        findings = [
            Finding(topic=self._names.get((row["broker"], row["topic_id"]), "?"), **row.asDict()) for row in rows
        ]
        return sorted(findings, key=lambda each: (each.kind, each.topic, each.subscriber, each.offset))


def _key_of(row: Row) -> Key:
    return row["broker"], row["topic_id"], row["subscriber"], row["pattern"]


def _made(periods: Iterable[Period]) -> dict[tuple[Key, int], int]:
    """(subscription, era) → where it began, of those that were made while this was recorded."""
    return {(each.owned, each.era): each.made_at for each in periods if each.made_at >= 0}


def _together(one: Said, other: Said) -> Said:
    return Said(
        one.key,
        one.is_shared,
        one.era,
        min(one.start, other.start),
        max(one.stop, other.stop),
        max(one.dropped, other.dropped),
        one.doubled + other.doubled,
        one.out_of_order + other.out_of_order,
    )
