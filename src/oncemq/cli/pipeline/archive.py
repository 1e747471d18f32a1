"""`oncemq pipeline archive`: topics into a lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.pipeline.spark_command import (
    AVAILABLE_NOW,
    conf_of,
    every_of,
    explaining,
    reporter,
    runs_on_spark,
    until_stopped,
)
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import TOPIC, Reach, connected, json_option, reaches_broker

if TYPE_CHECKING:
    from oncemq.spark.pipeline.model import Pipeline
    from oncemq.spark.pipeline.progress import Reporter


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
@click.option("--pattern", metavar="PATTERN", default="", help="All topics that match, those to come too.")
@click.option("--to", "folder", metavar="DIR", required=True, help="The folder of the archive.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "delta"]),
    help="How it is stored. [default: as the folder has it; else parquet]",
)
@click.option(
    "--subscription",
    metavar="NAME",
    default="",
    help="The subscription that keeps what is not archived yet. [default: a name that the folder remembers]",
)
@click.option(
    "--checkpoint", metavar="DIR", default="", help="Where Spark notes how far it is. [default: _checkpoints in DIR]"
)
@click.option(
    "--trigger",
    metavar="available-now|TIME",
    default=AVAILABLE_NOW,
    help="Once, what is there; or a micro-batch every so often (5s). [default: available-now]",
)
@click.option(
    "--max-per-trigger",
    metavar="N",
    type=click.IntRange(min=1),
    help="Messages of one micro-batch. [default: 1,000,000]",
)
@click.option(
    "--on-loss",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    help="A topic or messages that went before they were archived: stop, or go on with what is left.",
)
@click.option("--ack-last", is_flag=True, help="After a run that ends, ack its last micro-batch too.")
@runs_on_spark
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
    master: str,
    pairs: tuple[str, ...],
    quiet: bool,
    has_traceback: bool,
    as_json: bool,
    reach: Reach,
    **given: Any,
) -> None:
    """Archive topics as Parquet or Delta, each message once.

    The archive has a row per message, with its topic, topic id, offset, key, value, headers, time stamp and
    idempotency key, in folders by topic and day (UTC). Run it again to archive what has come since; with --trigger 5s
    it goes on until Ctrl-C. What is not archived yet is kept in the broker by a subscription of the archive's own;
    what is archived is acked, and may be collected.

    The last micro-batch of a run is acked by the next run that has something to do, so that it can be read again if the
    checkpoint gets lost meanwhile. With --ack-last it is acked at once: then the archive alone has it.

    The checkpoint is a part of the archive: without it the next run can't know what is there.
    """
    with explaining(has_traceback):
        from oncemq.config import sources
        from oncemq.spark.lake import archiver
        from oncemq.spark.options import broker_url

        conf = conf_of(pairs)
        url = broker_url(sources.load_client(reach).url)
        pipeline = archiver.archive_pipeline(
            folder,
            topics=[name.strip() for name in topics.split(",") if name.strip()],
            format=kind or "",
            every=every_of(trigger),
            max_per_trigger=max_per_trigger or archiver.MESSAGES_PER_TRIGGER,
            **given,
        )
        report = reporter(has_end=not pipeline.trigger.every, as_json=as_json, is_quiet=quiet)
        with connected(reach) as client:
            # Java takes its time: a broker that is away should be known before.
            client.health()
        number = _run(pipeline, url, master, conf, report, is_loud=has_traceback)
    if number:
        ctx.exit(128 + number)


def _run(pipeline: Pipeline, url: str, master: str, conf: dict[str, str], reporter: Reporter, *, is_loud: bool) -> int:
    """The signal that stopped it; 0 = none."""
    from oncemq.spark.pipeline import runner

    with until_stopped(pipeline.name, master, conf, is_loud=is_loud) as (spark, stop):
        runner.run(pipeline, url=url, session=spark, reporter=reporter, is_stopping=stop)
    return stop.number
