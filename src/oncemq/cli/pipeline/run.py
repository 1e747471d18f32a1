"""`oncemq pipeline run`: runs the pipelines of files until they are complete or are stopped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from oncemq.cli.pipeline.execution import Job, refuse_conflicts, run_pipeline, run_together
from oncemq.cli.pipeline.spark_command import SparkRun, explain_errors, find_broker, parse_trigger, spark_options
from oncemq.cli.support.command import BROKER_EXITS, READ_ONLY_ADVICE, Documented
from oncemq.cli.support.options import Reach, json_option, reaches_broker
from oncemq.terminal import json_line

if TYPE_CHECKING:
    from oncemq.spark.pipeline.model import Pipeline
    from oncemq.spark.pipeline.spark_errors import SqlLocator
    from oncemq.spark.pipeline.yaml_tree import Document


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1, 5, 7, 143),
    advice=READ_ONLY_ADVICE,
    examples="""
        oncemq pipeline run orders.yaml
        oncemq pipeline run orders.yaml --trigger 5s
        oncemq pipeline run orders.yaml bills.yaml --trigger 5s
        oncemq pipeline run orders.yaml --master "local[2]" --conf spark.driver.memory=2g
        oncemq pipeline run orders.yaml --json | jq .rows
    """,
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="The folder in which Spark stores its progress; overrides the file. Only for one file.",
)
@click.option(
    "--trigger",
    metavar="available-now|TIME",
    help="Run once, or start a micro-batch every TIME (5s); overrides the files.",
)
@click.option(
    "--on-failure",
    type=click.Choice(["continue", "stop"]),
    default="continue",
    help="If one of several pipelines fails: the others continue, or are stopped. [default: continue]",
)
@spark_options
@json_option
@reaches_broker
@click.pass_context
def run(
    ctx: click.Context,
    /,
    files: tuple[str, ...],
    checkpoint: str | None,
    trigger: str | None,
    on_failure: str,
    spark: SparkRun,
    as_json: bool,
    reach: Reach,
) -> None:
    """Run pipelines that files declare.

    Problems in the files are reported before Spark starts, as by `oncemq pipeline validate`. With the trigger
    available-now, the run processes the messages that are available and ends. With `every`, it continues until Ctrl-C
    or SIGTERM. The next run continues where the last one ended, and each message is processed once. A second Ctrl-C
    ends the command immediately.

    Several files run at the same time, in one Spark session. A pipeline that fails is reported by its name, and the
    others continue; the exit code is that of the first failure.

    The broker is the one of --url or --context, of ONCEMQ_URL or ONCEMQ_CONTEXT, of the `context` in the file, or of
    the current context. Spark's workers look the context up on their own machines.

    If the broker is unreachable, the run waits for it and then continues: without limit if it has the trigger `every`,
    else for 30 seconds, or for `broker_timeout` of the file. --timeout and --tries override this: the limit is their
    product.

    With --json, an object is printed for each micro-batch, with `pipeline`, `rows`, `rows_per_s`, `lag` and
    `duration_ms`, and one at the end of each pipeline. Its `event` is batch or end; it is notice for what an operator
    should know, and error for one of several pipelines that has failed.
    """
    from oncemq.protocol.errors import PipelineInvalid

    if checkpoint is not None and len(files) > 1:
        raise click.UsageError("--checkpoint is for one file: two pipelines can't share a checkpoint.")
    jobs = _read(files, checkpoint, trigger, as_json=as_json)
    if jobs is None:
        ctx.exit(PipelineInvalid.exit_code)
    for job in jobs:
        find_broker(reach, job.pipeline)
    with explain_errors(spark.has_traceback):
        if len(jobs) == 1:
            run_pipeline(ctx, jobs[0], spark, reach, as_json=as_json)
        else:
            refuse_conflicts(jobs)
            run_together(ctx, jobs, spark, reach, as_json=as_json, stops_all=on_failure == "stop")


def _read(files: tuple[str, ...], checkpoint: str | None, trigger: str | None, *, as_json: bool) -> list[Job] | None:
    """The pipelines of the files; None if there are problems, which are printed."""
    from oncemq.spark.pipeline.pipeline_file import ensure_valid, folder_of, validate

    validated = [validate(file) for file in files]
    jobs: list[Job] = []
    for file, each in zip(files, validated, strict=True):
        for problem in each.problems:
            click.echo(json_line(problem) if as_json else problem.message, err=True)
        if each.pipeline is not None:
            pipeline = _override(each.pipeline, checkpoint, trigger)
            jobs.append(Job(pipeline, folder_of(file), _sql_locator(each.document)))
    if len(jobs) < len(files):
        return None
    for job in jobs:
        ensure_valid(job.pipeline, job.folder)
    return jobs


def _sql_locator(document: Document) -> SqlLocator:
    def locate(offset: int) -> str:
        line, column = document.position(("transform", "sql"), offset)
        return f"{document.file}:{line}:{column}: "

    return locate


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
