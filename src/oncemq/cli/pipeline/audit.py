"""`oncemq pipeline audit`: proves that no message was lost, duplicated or out of order: from client records, or for the
rows that pipelines have written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.pipeline.spark_command import find_broker, master_option, require_broker, spark_session
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import Reach, connected, json_option, reaches_broker
from oncemq.terminal import count_of, json_line, note, printable, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.spark.audit import Report
    from oncemq.spark.audit.pipelines import PipelineReport
    from oncemq.spark.audit.pipelines.auditor import AuditedPipeline
    from oncemq.spark.broker import Broker

#: The columns of --findings.
_RECORD_COLUMNS = (
    "kind string, topic string, subscriber string, pattern string, offset bigint, topic_id bigint, broker string"
)
_PIPELINE_COLUMNS = "kind string, pipeline string, topic string, offset bigint, batch bigint, detail string"
_SHOWN_MAX = 20


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1),
    advice=READ_ONLY_ADVICE,
    examples="""
        ONCEMQ_RECORD=records oncemq put orders "one pizza"
        oncemq pipeline audit records
        oncemq pipeline audit records --broker --complete --findings wrong
        oncemq pipeline audit records --json | jq 'select(.lost > 0)'
        oncemq pipeline audit --pipeline orders.yaml --pipeline bills.yaml
    """,
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False), required=False)
@click.option(
    "--pipeline",
    "files",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Audit the rows that this pipeline has written, instead of records; may be repeated.",
)
@click.option(
    "--offset-column", metavar="NAME", help="With --pipeline: the column with the offset. [default: message_offset]"
)
@click.option(
    "--topic-column", metavar="NAME", help="With --pipeline: the column with the topic. [default: message_topic]"
)
@click.option("--complete", is_flag=True, help="All producers have recorded: report messages that none of them put.")
@click.option("--broker", is_flag=True, help="Compare with the broker: ends of topics, positions of subscriptions.")
@click.option("--findings", metavar="DIR", type=click.Path(), help="Write the findings to this folder, as Parquet.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Maximum number of findings of each kind. All are counted.",
)
@master_option
@json_option
@reaches_broker
def audit(
    folder: str | None,
    files: tuple[str, ...],
    offset_column: str | None,
    topic_column: str | None,
    complete: bool,
    broker: bool,
    findings: str | None,
    limit: int,
    master: str,
    as_json: bool,
    reach: Reach,
) -> None:
    """Prove that nothing was lost, duplicated or out of order, or list what was.

    FOLDER contains the records of clients: `oncemq.connect(…, record=FOLDER)`, or ONCEMQ_RECORD in their environment.
    With --pipeline, the offsets that the checkpoint of a pipeline covers are compared with the rows of its target and
    with its subscription. The exit code is 1 if there are findings, or if the records are incomplete. Rows of a
    pipeline that can't be judged are no finding, but are named. docs/audit.md describes both proofs.
    """
    from oncemq.protocol import errors

    if (folder is None) == (not files):
        raise click.UsageError("Give either FOLDER, with the records of clients, or --pipeline.")
    if files and (complete or broker):
        raise click.UsageError("--complete and --broker are for the records of clients, not for --pipeline.")
    if folder is not None and (offset_column or topic_column):
        raise click.UsageError("--offset-column and --topic-column need --pipeline.")
    if findings is not None and os.path.exists(findings):
        raise errors.SettingInvalid(f"'{findings}' exists; choose a new folder for the findings")
    if folder is None:
        columns = (offset_column or "", topic_column or "")
        _audit_pipelines(reach, files, columns, findings, limit, master, as_json=as_json)
        return
    positions = _positions(reach) if broker else None
    with spark_session("audit", master) as spark:
        from oncemq.spark.audit import audit as run_audit

        report = run_audit(spark, folder, complete=complete, positions=positions, findings_max=limit)
        if findings is not None:
            _write_findings(spark, report.findings, _RECORD_COLUMNS, findings)
    (_print_json if as_json else _show)(report)
    if not report.is_proved:
        raise SystemExit(1)


def _write_findings(spark: SparkSession, findings: Sequence[Any], columns: str, path: str) -> None:
    names = [column.split()[0] for column in columns.split(", ")]
    rows = [[getattr(finding, name) for name in names] for finding in findings]
    spark.createDataFrame(rows, columns).coalesce(1).write.parquet(path)


# Records.


def _positions(reach: Reach) -> Any:
    from oncemq.spark.audit.positions import read_positions

    with connected(reach) as client:
        return read_positions(client)


def _print_json(report: Report) -> None:
    """A line for each topic, subscription and finding, and one for the whole audit."""
    for topic in report.topics:
        click.echo(json_line({"of": "topic", **_fields(topic)}))
    for subscription in report.subscriptions:
        click.echo(json_line({"of": "subscription", **_fields(subscription), "verdict": subscription.summary}))
    for finding in report.findings:
        click.echo(json_line({"of": "finding", **_fields(finding)}))
    counts = ("files", "lines", "torn", "unreadable", "incomplete", "in_doubt")
    whole = {name: getattr(report, name) for name in counts}
    click.echo(json_line({"of": "audit", **whole, "proved": report.is_proved}))


def _fields(entry: Any) -> dict[str, Any]:
    import msgspec

    return msgspec.structs.asdict(entry)


def _show(report: Report) -> None:
    torn = f"; the last line of {count_of(report.torn, 'file')} was truncated" if report.torn else ""
    note(f"{count_of(report.lines, 'line')} in {count_of(report.files, 'file')}{torn}.")
    for sentence in report.summaries:
        click.echo(printable(sentence))
    if report.findings:
        rows = [
            (finding.kind.replace("_", " "), finding.topic, finding.subscriber, finding.offset)
            for finding in report.findings[:_SHOWN_MAX]
        ]
        click.echo()
        for line in table(("FOUND", "TOPIC", "SUBSCRIBER", "OFFSET"), rows):
            click.echo(line)
        _note_more(len(report.findings))
    click.echo("Nothing was lost, duplicated or out of order." if report.is_proved else "NOT PROVED.")


# Pipelines.


def _audit_pipelines(
    reach: Reach,
    files: Sequence[str],
    columns: tuple[str, str],
    findings: str | None,
    limit: int,
    master: str,
    *,
    as_json: bool,
) -> None:
    audited = _load(files)
    broker = _only_broker(reach, audited)
    require_broker(reach, broker)
    with spark_session("audit", master) as spark:
        from oncemq.spark.audit.pipelines import Identity, audit_pipelines

        offset, topic = columns
        report = audit_pipelines(spark, broker, audited, identity=Identity(offset, topic), findings_max=limit)
        if findings is not None:
            _write_findings(spark, report.findings, _PIPELINE_COLUMNS, findings)
    (_print_pipelines_json if as_json else _show_pipelines)(report)
    if not report.is_good:
        raise SystemExit(1)


def _load(files: Sequence[str]) -> list[AuditedPipeline]:
    from oncemq.spark.audit.pipelines.auditor import AuditedPipeline
    from oncemq.spark.pipeline.pipeline_file import folder_of, load

    return [AuditedPipeline(load(file), folder_of(file)) for file in files]


def _only_broker(reach: Reach, audited: Sequence[AuditedPipeline]) -> Broker:
    """The broker of all pipelines. Raises SettingInvalid if there are several."""
    from oncemq.protocol import errors

    brokers = {find_broker(reach, each.pipeline) for each in audited}
    if len(brokers) > 1:
        names = " and ".join(sorted(map(str, brokers)))
        raise errors.SettingInvalid(f"the pipelines use {names}: audit those of one broker at a time, or use --context")
    return brokers.pop()


def _print_pipelines_json(report: PipelineReport) -> None:
    """A line for each pipeline and finding, and one for the whole audit."""
    for each in report.pipelines:
        fields = {**_fields(each), **each.counts, "verdict": each.summary}
        del fields["counts"]
        click.echo(json_line({"of": "pipeline", **fields}))
    for finding in report.findings:
        click.echo(json_line({"of": "finding", **_fields(finding)}))
    click.echo(json_line({"of": "audit", "pipelines": len(report.pipelines), "proved": report.is_proved}))


def _show_pipelines(report: PipelineReport) -> None:
    for each in report.pipelines:
        click.echo(printable(each.summary))
    if report.findings:
        rows = [
            (
                finding.kind.replace("_", " "),
                finding.pipeline,
                finding.topic,
                "" if finding.offset < 0 else finding.offset,
                "" if finding.batch < 0 else finding.batch,
                finding.detail,
            )
            for finding in report.findings[:_SHOWN_MAX]
        ]
        click.echo()
        for line in table(("FOUND", "PIPELINE", "TOPIC", "OFFSET", "BATCH", "DETAIL"), rows):
            click.echo(line)
        _note_more(len(report.findings))
    click.echo(report.verdict)


def _note_more(findings: int) -> None:
    if findings > _SHOWN_MAX:
        note(f"and {findings - _SHOWN_MAX:,} more; --json and --findings list them.")
