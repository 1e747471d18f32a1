"""Audits pipelines: reads checkpoint, target and subscription, and judges what the pipeline lets it judge.

The order of reading makes this right for a pipeline that is running: subscriptions, then the checkpoint, then the
target, then the checkpoint again. A micro-batch that was complete before the target was read must be in it. A row is
unexpected only if it belongs to no micro-batch that was planned after the target was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from pyspark.sql import DataFrame, SparkSession

from oncemq.protocol.patterns import matcher
from oncemq.spark.audit.pipelines import report
from oncemq.spark.audit.pipelines.batches import compare_batches, compare_contents
from oncemq.spark.audit.pipelines.checkpoint import Checkpoint, read_checkpoint
from oncemq.spark.audit.pipelines.comparison import compare_rows
from oncemq.spark.audit.pipelines.expected import Expected, expected_rows
from oncemq.spark.audit.pipelines.identity import Identity, find_identity, with_topic_names
from oncemq.spark.audit.pipelines.positions import BrokerPositions, compare_positions, read_positions
from oncemq.spark.audit.pipelines.readers.content import read_content, target_name
from oncemq.spark.audit.pipelines.report import PipelineFinding, PipelineReport, PipelineResult
from oncemq.spark.audit.pipelines.shape import EACH, OTHER, SOME, Shape, pipeline_shape
from oncemq.spark.audit.pipelines.subject import Subject
from oncemq.spark.audit.pipelines.targets import TargetContent
from oncemq.spark.broker import Broker
from oncemq.spark.checkpoint.content import batch_content
from oncemq.spark.connections import shared_client
from oncemq.spark.pipeline.model import Pipeline

_TIMEOUT_S = 30.0


class AuditedPipeline(msgspec.Struct, frozen=True):
    pipeline: Pipeline
    #: The folder of its file.
    folder: str = "."


def audit_pipelines(
    spark: SparkSession,
    broker: Broker,
    pipelines: Iterable[AuditedPipeline],
    *,
    identity: Identity | None = None,
    findings_max: int = 1000,
) -> PipelineReport:
    """`identity`: the names of the columns that say from which message a row comes, if they are not the usual ones.

    Raises SettingInvalid if a pipeline has no checkpoint, or belongs to another broker."""
    client = shared_client(broker, _TIMEOUT_S)
    results, findings = [], []
    for each in pipelines:
        subject = Subject(spark, client, broker, each.pipeline, each.folder, identity or Identity())
        audit = _Audit(subject, findings_max)
        results.append(audit.result())
        findings += audit.findings
    return PipelineReport(pipelines=results, findings=findings)


class _Audit:
    def __init__(self, subject: Subject, limit: int) -> None:
        self._subject = subject
        self._spark = subject.spark
        self._pipeline = subject.pipeline
        self._limit = limit
        self._remarks: list[str] = []
        self._unjudged: list[str] = []
        self._counts: dict[str, int] = {}
        self.findings: list[PipelineFinding] = []

    def result(self) -> PipelineResult:
        pipeline = self._pipeline
        positions = read_positions(self._subject.client)
        before = read_checkpoint(self._spark, pipeline.checkpoint, len(pipeline.inputs))
        self._judge_checkpoint(before, positions)
        shape = pipeline_shape(self._subject)
        identity = self._identity(shape, before)
        only_topic = next(iter(before.topic_names.values()), "")
        with read_content(self._subject, before.query_id, shape.columns, identity, only_topic) as content:
            after = read_checkpoint(self._spark, pipeline.checkpoint, len(pipeline.inputs))
            self._remarks += content.remarks
            self._judge_batches(before, after, content, shape)
            judged_by, rows = self._judge_rows(before, after, content, shape, positions)
        committed = [batch for batch in before.batches if batch.is_committed]
        return PipelineResult(
            pipeline=pipeline.name,
            target=target_name(pipeline.target),
            query_id=before.query_id,
            first_batch=before.batches[0].number if before.batches else -1,
            last_planned=before.last_planned,
            last_committed=before.last_committed,
            messages=sum(batch.messages for batch in committed),
            rows=rows,
            shape=shape.kind,
            judged_by=judged_by,
            unjudged=tuple(self._unjudged),
            remarks=tuple(dict.fromkeys(self._remarks)),
            counts=self._counts,
        )

    # Checkpoint, positions and micro-batches.

    def _judge_checkpoint(self, checkpoint: Checkpoint, positions: BrokerPositions) -> None:
        for fault in checkpoint.faults:
            self._add(fault.kind, batch=fault.batch, detail=fault.detail)
        subscriptions = _subscriptions(self._pipeline, checkpoint)
        for kind, topic, offset, detail in compare_positions(positions, checkpoint, subscriptions, self._remarks):
            self._add(kind, topic=topic, offset=offset, detail=detail)
        if checkpoint.batches and not checkpoint.is_whole:
            first = checkpoint.batches[0].number
            self._remarks.append(f"the checkpoint keeps micro-batches from {first} on; earlier ones are not judged")
        if checkpoint.last_planned > checkpoint.last_committed:
            self._remarks.append(f"micro-batch {checkpoint.last_planned} is not complete")

    def _judge_batches(self, before: Checkpoint, after: Checkpoint, content: TargetContent, shape: Shape) -> None:
        is_one_to_one = shape.kind == EACH and not self._may_skip
        for kind, number, detail in compare_batches(before, after, content, is_one_to_one=is_one_to_one):
            self._add(kind, batch=number, detail=detail)
        location = self._pipeline.checkpoint
        for kind, number, detail in compare_contents(after, content, lambda number: batch_content(location, number)):
            self._add(kind, batch=number, detail=detail)
        for name in content.missing_files:
            self._add("missing_file", detail=name)

    # Rows.

    def _identity(self, shape: Shape, checkpoint: Checkpoint) -> Identity | None:
        if shape.kind == OTHER:
            self._remarks.append("a row is made of several messages, or of several sources")
            return None
        topics = set(checkpoint.topic_names.values())
        identity, why = find_identity(shape.columns, self._subject.wanted, sorted(topics))
        if identity is None:
            self._remarks.append(why)
        return identity

    def _judge_rows(
        self, before: Checkpoint, after: Checkpoint, content: TargetContent, shape: Shape, positions: BrokerPositions
    ) -> tuple[str, int | None]:
        """What the rows were compared by, and their number."""
        if shape.kind == OTHER:
            return report.NOT_JUDGED, content.count
        if content.rows is None:
            return self._judge_counts(before, after, content, shape), content.count
        rows = with_topic_names(content.rows, after.topic_names)
        trimmed = rows if content.is_trimmed else None
        expected = expected_rows(self._subject, shape, before, after, positions, trimmed)
        self._remarks += expected.remarks
        return report.BY_OFFSET, self._compare(rows, expected, shape)

    def _compare(self, rows: DataFrame, expected: Expected, shape: Shape) -> int:
        kinds = ["unexpected", "duplicated"]
        is_single = shape.kind in (EACH, SOME)
        if expected.rows is not None and not self._may_skip:
            kinds.append("lost")
        if self._may_skip:
            self._remarks.append("lost rows are not judged: on_loss is skip")
        if self._may_skip or not expected.is_complete:
            self._unjudged.append("lost")
        if not is_single and not expected.is_complete:
            self._unjudged.append("duplicated")
        found = compare_rows(self._spark, rows, expected, kinds=kinds, is_single=is_single, limit=self._limit)
        for kind, examples in found.examples.items():
            self._counts[kind] = found.counts[kind]
            self.findings += [
                PipelineFinding(kind=kind, pipeline=self._pipeline.name, topic=topic, offset=offset)
                for topic, offset in examples
            ]
        if found.unidentified:
            self._remarks.append(f"{found.unidentified:,} rows do not say from which message they come")
        return found.rows

    def _judge_counts(self, before: Checkpoint, after: Checkpoint, content: TargetContent, shape: Shape) -> str:
        """Without identities, the number of rows must be that of the messages, if each message is a row."""
        if shape.kind != EACH or self._may_skip or content.count is None:
            return report.NOT_JUDGED
        if content.rows_by_batch is not None and before.batches:
            return report.BY_BATCH
        if not after.is_whole or content.is_trimmed:
            return report.NOT_JUDGED
        # The target may have a micro-batch that was not complete when the checkpoint was read.
        last = max(before.last_committed, -1 if content.last_batch is None else content.last_batch)
        messages = sum(batch.messages for batch in after.batches if batch.number <= last)
        in_progress = sum(batch.messages for batch in after.batches if batch.number > last)
        difference = content.count - messages
        if difference < 0:
            self._add("lost", count=-difference, detail=f"{content.count:,} rows of {messages:,} messages")
            return report.BY_TOTAL
        if content.has_other_writers:
            self._remarks.append("other queries write to the target too, and the rows do not tell")
            return report.NOT_JUDGED
        if 0 < difference <= in_progress:
            self._remarks.append("rows arrived while they were counted; run the audit again")
            return report.NOT_JUDGED
        if difference and content.has_other_writers is None:
            self._remarks.append(f"{difference:,} rows more than messages: others may write to the target")
            return report.NOT_JUDGED
        if difference:
            self._add("unexpected", count=difference, detail=f"{content.count:,} rows of {messages:,} messages")
        return report.BY_TOTAL

    @property
    def _may_skip(self) -> bool:
        """Whether the pipeline was told to continue without messages that no longer exist."""
        return any(each.source.on_loss == "skip" for each in self._pipeline.inputs.values())

    def _add(
        self, kind: str, *, count: int = 1, topic: str = "", offset: int = -1, batch: int = -1, detail: str = ""
    ) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + count
        if self._counts[kind] <= self._limit or count > 1:
            name = self._pipeline.name
            self.findings.append(
                PipelineFinding(kind=kind, pipeline=name, topic=topic, offset=offset, batch=batch, detail=detail)
            )


def _subscriptions(pipeline: Pipeline, checkpoint: Checkpoint) -> list[str]:
    """The subscription of each source in the checkpoint. Spark orders sources as its plan does, so topics tell."""
    left = list(pipeline.inputs)
    found = []
    for end in checkpoint.committed_ends:
        topics = [] if end is None else list(end.topics)
        view = next((each for each in left if _reads(pipeline, each, topics)), left[0] if left else "")
        if view in left and len(left) > 1:
            left.remove(view)
        found.append(pipeline.subscription_of(view))
    return found


def _reads(pipeline: Pipeline, view: str, topics: Sequence[str]) -> bool:
    source = pipeline.inputs[view].source
    if source.pattern:
        is_match = matcher(source.pattern)
        return all(is_match(topic) for topic in topics)
    return set(topics) <= set(source.names)
