"""`oncemq pipeline run`: a pipeline of a file, until it is done or somebody stops it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from oncemq.cli.pipeline.spark_command import conf_of, every_of, explaining, reporter, runs_on_spark, until_stopped
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import Reach, connected, json_option, reaches_broker

if TYPE_CHECKING:
    from oncemq.spark.pipeline.model import Pipeline
    from oncemq.spark.pipeline.pipeline_file import ValidatedFile
    from oncemq.spark.pipeline.progress import Reporter


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1, 5, 7, 143),
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq pipeline run orders.yaml
        oncemq pipeline run orders.yaml --trigger 5s
        oncemq pipeline run orders.yaml --master "local[2]" --conf spark.driver.memory=2g
        oncemq pipeline run orders.yaml --json | jq .rows
    """,
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--checkpoint", metavar="DIR", help="Where Spark notes how far it is, instead of what the file says.")
@click.option(
    "--trigger",
    metavar="available-now|TIME",
    help="Once, or a micro-batch every so often (5s), instead of what the file says.",
)
@runs_on_spark
@json_option
@reaches_broker
@click.pass_context
def run(
    ctx: click.Context,
    /,
    file: str,
    master: str,
    checkpoint: str | None,
    trigger: str | None,
    pairs: tuple[str, ...],
    quiet: bool,
    has_traceback: bool,
    as_json: bool,
    reach: Reach,
) -> None:
    """Run a pipeline that a file declares.

    Problems in the file are reported before Spark starts, as by `oncemq pipeline validate`. With the trigger
    available-now it processes what is there and ends; with `every`, it goes on until Ctrl-C or SIGTERM. However it
    ends, the next run goes on where it was, and each message counts once. A second Ctrl-C ends it at once.

    With --json, each micro-batch is an object, with `rows`, `rows_per_s`, `lag` and `duration_ms`, and the end too.
    """
    from oncemq.config import sources
    from oncemq.spark.options import broker_url
    from oncemq.spark.pipeline.pipeline_file import ensure_valid, folder_of, validate

    conf = conf_of(pairs)
    url = broker_url(sources.load_client(reach).url)
    declared = validate(file)
    if declared.pipeline is None:
        _refuse(ctx, declared, as_json)
        return
    pipeline = _changed(declared.pipeline, checkpoint, trigger)
    ensure_valid(pipeline, folder_of(file))
    report = reporter(has_end=not pipeline.trigger.every, as_json=as_json, is_quiet=quiet)
    with connected(reach) as client:
        # Java takes its time: a broker that is away should be known before.
        client.health()
    is_loud = has_traceback or bool(os.environ.get(sources.TRACEBACK_VARIABLE))
    with explaining(has_traceback):
        number = _run(declared, pipeline, url, master, conf, report, is_loud=is_loud)
    if number:
        ctx.exit(128 + number)


def _refuse(ctx: click.Context, declared: ValidatedFile, as_json: bool) -> None:
    from oncemq.protocol.errors import PipelineInvalid
    from oncemq.terminal import json_line

    for problem in declared.problems:
        click.echo(json_line(problem) if as_json else problem.message, err=True)
    ctx.exit(PipelineInvalid.exit_code)


def _run(
    declared: ValidatedFile,
    pipeline: Pipeline,
    url: str,
    master: str,
    conf: dict[str, str],
    reporter: Reporter,
    *,
    is_loud: bool,
) -> int:
    """The signal that stopped it; 0 = none."""
    from oncemq.spark.pipeline.pipeline_file import folder_of
    from oncemq.spark.pipeline.runner import run as run_pipeline

    document = declared.document

    def locate_sql(offset: int) -> str:
        line, column = document.position(("transform", "sql"), offset)
        return f"{document.file}:{line}:{column}: "

    with until_stopped(pipeline.name, master, conf, is_loud=is_loud) as (spark, stop):
        run_pipeline(
            pipeline,
            url=url,
            session=spark,
            folder=folder_of(document.file),
            reporter=reporter,
            is_stopping=stop,
            locate_sql=locate_sql,
        )
    return stop.number


def _changed(pipeline: Pipeline, checkpoint: str | None, trigger: str | None) -> Pipeline:
    """With what the command line says instead."""
    import msgspec

    from oncemq.spark.pipeline.model import Trigger

    if checkpoint is not None:
        path = checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)
        pipeline = msgspec.structs.replace(pipeline, checkpoint=path)
    if trigger is None:
        return pipeline
    return msgspec.structs.replace(pipeline, trigger=Trigger(every=every_of(trigger)))
