"""`oncemq pipeline run`: runs the pipeline of a file until it is complete or is stopped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from oncemq.cli.pipeline.spark_command import (
    SparkRun,
    broker_url,
    explain_errors,
    parse_trigger,
    run_pipeline,
    spark_options,
)
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import Reach, json_option, reaches_broker
from oncemq.terminal import json_line

if TYPE_CHECKING:
    from oncemq.spark.pipeline.model import Pipeline


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
@click.option("--checkpoint", metavar="DIR", help="The folder in which Spark stores its progress; overrides the file.")
@click.option(
    "--trigger",
    metavar="available-now|TIME",
    help="Run once, or start a micro-batch every TIME (5s); overrides the file.",
)
@spark_options
@json_option
@reaches_broker
@click.pass_context
def run(
    ctx: click.Context,
    /,
    file: str,
    checkpoint: str | None,
    trigger: str | None,
    spark: SparkRun,
    as_json: bool,
    reach: Reach,
) -> None:
    """Run a pipeline that a file declares.

    Problems in the file are reported before Spark starts, as by `oncemq pipeline validate`. With the trigger
    available-now, the run processes the messages that are available and ends. With `every`, it continues until Ctrl-C
    or SIGTERM. The next run continues where the last one ended, and each message is processed once. A second Ctrl-C
    ends the command immediately.

    With --json, an object is printed for each micro-batch, with `rows`, `rows_per_s`, `lag` and `duration_ms`, and one
    at the end.
    """
    from oncemq.protocol.errors import PipelineInvalid
    from oncemq.spark.pipeline.pipeline_file import ensure_valid, folder_of, validate

    broker_url(reach)
    validated = validate(file)
    if validated.pipeline is None:
        for problem in validated.problems:
            click.echo(json_line(problem) if as_json else problem.message, err=True)
        ctx.exit(PipelineInvalid.exit_code)
    pipeline = _override(validated.pipeline, checkpoint, trigger)
    ensure_valid(pipeline, folder_of(file))
    document = validated.document

    def locate_sql(offset: int) -> str:
        line, column = document.position(("transform", "sql"), offset)
        return f"{document.file}:{line}:{column}: "

    with explain_errors(spark.has_traceback):
        run_pipeline(ctx, pipeline, spark, reach, as_json=as_json, folder=folder_of(file), locate_sql=locate_sql)


def _override(pipeline: Pipeline, checkpoint: str | None, trigger: str | None) -> Pipeline:
    """The pipeline with the settings of the command line."""
    import msgspec

    from oncemq.spark.pipeline.model import Trigger

    if checkpoint is not None:
        path = checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)
        pipeline = msgspec.structs.replace(pipeline, checkpoint=path)
    if trigger is None:
        return pipeline
    return msgspec.structs.replace(pipeline, trigger=Trigger(every=parse_trigger(trigger)))
