"""`oncemq pipeline audit`: proves from client records that no message was lost, duplicated or out of order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.pipeline.spark_command import master_option, spark_session
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import Reach, connected, json_option, reaches_broker
from oncemq.terminal import count_of, json_line, note, printable, table

if TYPE_CHECKING:
    from oncemq.spark.audit import Report

_FINDING_FIELDS = ("kind", "topic", "subscriber", "pattern", "offset", "topic_id", "broker")
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
    """,
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
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
    folder: str,
    complete: bool,
    broker: bool,
    findings: str | None,
    limit: int,
    master: str,
    as_json: bool,
    reach: Reach,
) -> None:
    """Prove from the records of clients that nothing was lost, duplicated or out of order, or list what was.

    FOLDER contains the records of clients: `oncemq.connect(…, record=FOLDER)`, or ONCEMQ_RECORD in their environment.
    The exit code is 1 if there are findings, or if the records are incomplete. docs/audit.md describes the proof.
    """
    from oncemq.protocol import errors

    if findings is not None and os.path.exists(findings):
        raise errors.SettingInvalid(f"'{findings}' exists; choose a new folder for the findings")
    positions = _positions(reach) if broker else None
    with spark_session("audit", master) as spark:
        from oncemq.spark.audit import audit as run_audit

        report = run_audit(spark, folder, complete=complete, positions=positions, findings_max=limit)
        if findings is not None:
            rows = [[getattr(finding, field) for field in _FINDING_FIELDS] for finding in report.findings]
            schema = "kind string, topic string, subscriber string, pattern string, offset bigint, topic_id bigint,"
            spark.createDataFrame(rows, f"{schema} broker string").coalesce(1).write.parquet(findings)
    (_print_json if as_json else _show)(report)
    if not report.is_proved:
        raise SystemExit(1)


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
        if len(report.findings) > _SHOWN_MAX:
            note(f"and {len(report.findings) - _SHOWN_MAX:,} more; --json and --findings list them.")
    click.echo("Nothing was lost, duplicated or out of order." if report.is_proved else "NOT PROVED.")
