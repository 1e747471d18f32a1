"""`oncemq pipeline archive`: archives topics as Parquet files or a Delta table."""

from __future__ import annotations

from typing import Any

import click

from oncemq.cli.pipeline.execution import Job, run_pipeline
from oncemq.cli.pipeline.spark_command import (
    AVAILABLE_NOW,
    SparkRun,
    explain_errors,
    find_broker,
    parse_trigger,
    spark_options,
)
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import TOPIC, Reach, json_option, reaches_broker


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1, 5, 7, 143),
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq pipeline archive --topic orders --to /lake/orders
        oncemq pipeline archive --topics orders,bills --to /lake/trade --format delta
        oncemq pipeline archive --pattern "orders.#" --to /lake/orders --trigger 30s
        oncemq pipeline archive --topic orders --to /lake/orders --ack-last --json | jq .rows
    """,
)
@click.option("--topic", type=TOPIC, default="", help="The topic to archive.")
@click.option("--topics", metavar="NAME,NAME...", default="", help="Several topics.")
@click.option(
    "--pattern", metavar="PATTERN", default="", help="All topics that match, including topics that are created later."
)
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    required=True,
    help="The folder of the archive; also in an object store (s3://...).",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "delta"]),
    help="The format. [default: that of the folder; parquet for a new folder]",
)
@click.option(
    "--subscription",
    metavar="NAME",
    default="",
    help="The subscription that keeps messages until they are archived. [default: a name that is stored in the folder]",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    default="",
    help="The folder in which Spark stores its progress. [default: _checkpoints in DIR]",
)
@click.option(
    "--trigger",
    metavar="available-now|TIME",
    default=AVAILABLE_NOW,
    help="Archive what is available and end, or start a micro-batch every TIME (5s). [default: available-now]",
)
@click.option(
    "--max-per-trigger",
    metavar="N",
    type=click.IntRange(min=1),
    help="Maximum number of messages in one micro-batch. [default: 1,000,000]",
)
@click.option(
    "--on-loss",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    help="If a topic or messages were deleted before they were archived: fail, or continue with what is left.",
)
@click.option("--ack-last", is_flag=True, help="At the end of the run, also ack its last micro-batch.")
@spark_options
@json_option
@reaches_broker
@click.pass_context
def archive(
    ctx: click.Context,
    /,
    topics: str,
    kind: str | None,
    folder: str,
    trigger: str,
    max_per_trigger: int | None,
    spark: SparkRun,
    as_json: bool,
    reach: Reach,
    **settings: Any,
) -> None:
    """Archive topics as Parquet or Delta, each message once.

    The archive has a row per message, with its topic, topic id, offset, key, value, headers, time stamp, idempotency
    key and schema version, in folders by topic and day (UTC), and the schemas of the topics. Run the command again to
    archive new messages. With --trigger 5s it continues until Ctrl-C. A subscription of the archive keeps messages in
    the broker until they are archived. Archived messages are acked, so that the broker can delete them.

    The last micro-batch of a run is acked by the next run that has new messages. Until then it can be read again if
    the checkpoint is lost. With --ack-last it is acked immediately, and then only the archive has it.

    The checkpoint is part of the archive: without it, the next run does not know what is archived.
    """
    with explain_errors(spark.has_traceback):
        from oncemq.spark.lake import archiver

        broker = find_broker(reach)
        pipeline = archiver.archive_pipeline(
            folder,
            topics=[name.strip() for name in topics.split(",") if name.strip()],
            format=kind or "",
            every=parse_trigger(trigger),
            max_per_trigger=max_per_trigger or archiver.MESSAGES_PER_TRIGGER,
            **settings,
        )
        job = Job(pipeline, wrap_reporter=archiver.keep_schemas(folder, pipeline, broker))
        run_pipeline(ctx, job, spark, reach, as_json=as_json)
