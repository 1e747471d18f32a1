"""Runs pipelines in one Spark session until they are complete or a signal stops them. Imports Spark only on use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from oncemq.cli.pipeline.spark_command import (
    SparkRun,
    StopSignal,
    find_broker,
    make_reporter,
    spark_session,
    wants_traceback,
    write_line,
)
from oncemq.cli.support.options import Reach
from oncemq.terminal import error as print_error
from oncemq.terminal import json_line, note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.protocol.errors import OnceMQError
    from oncemq.spark.broker import Broker
    from oncemq.spark.pipeline.model import Pipeline
    from oncemq.spark.pipeline.progress import Reporter
    from oncemq.spark.pipeline.runs.handle import RunningPipeline
    from oncemq.spark.pipeline.spark_errors import SqlLocator

_POLL_S = 0.1


class Job(NamedTuple):
    """A pipeline to run, and where it comes from."""

    pipeline: Pipeline
    #: An additional folder for Python modules.
    folder: str = "."
    locate_sql: SqlLocator | None = None
    #: Makes the reporter of the run, given that of the command.
    wrap_reporter: Callable[[Reporter], Reporter] | None = None


def limited(pipeline: Pipeline, reach: Reach) -> Pipeline:
    """The pipeline with the limit that --timeout and --tries give for an unreachable broker, if they are given."""
    import msgspec

    from oncemq.config.settings import ClientSettings

    if reach.get("timeout_s") is None and reach.get("tries") is None:
        return pipeline
    default = ClientSettings()
    limit_s = (reach.get("timeout_s") or default.timeout_s) * (reach.get("tries") or default.tries)
    return msgspec.structs.replace(pipeline, broker_timeout=f"{max(1, round(limit_s * 1000))}ms")


def run_pipeline(ctx: click.Context, job: Job, spark: SparkRun, reach: Reach, *, as_json: bool) -> None:
    """Run a pipeline until it is complete or a signal stops it, which sets the exit code."""
    from oncemq.spark.pipeline import runner

    job = job._replace(pipeline=limited(job.pipeline, reach))
    pipeline, broker = job.pipeline, find_broker(reach, job.pipeline)
    reporter = make_reporter(has_end=not pipeline.trigger.every, as_json=as_json, is_quiet=spark.quiet)
    _await_broker(ctx, [pipeline], broker, reporter)
    if job.wrap_reporter is not None:
        reporter = job.wrap_reporter(reporter)
    with spark_session(pipeline.name, spark.master, spark.conf) as session, StopSignal() as stop:
        _limit_log(session, spark)
        runner.run(
            pipeline,
            **broker.arguments,
            session=session,
            reporter=reporter,
            is_stopping=stop,
            folder=job.folder,
            locate_sql=job.locate_sql,
        )
    if stop.number:
        ctx.exit(128 + stop.number)


def run_together(
    ctx: click.Context, jobs: Sequence[Job], spark: SparkRun, reach: Reach, *, as_json: bool, stops_all: bool
) -> None:
    """Run several pipelines in one session, until all of them have ended. One that fails is reported by its name, and
    ends the others if `stops_all`."""
    from oncemq.spark.pipeline import runner

    jobs = [job._replace(pipeline=limited(job.pipeline, reach)) for job in jobs]
    brokers = [find_broker(reach, job.pipeline) for job in jobs]
    for broker in dict.fromkeys(brokers):
        waiting = [job.pipeline for job, its_broker in zip(jobs, brokers, strict=True) if its_broker == broker]
        _await_broker(ctx, waiting, broker, _line_reporter("", as_json=as_json, is_quiet=spark.quiet))
    with spark_session("oncemq-pipelines", spark.master, spark.conf) as session, StopSignal() as stop:
        _limit_log(session, spark)
        handles = [
            runner.start(
                job.pipeline,
                **broker.arguments,
                session=session,
                reporter=_line_reporter(job.pipeline.name, as_json=as_json, is_quiet=spark.quiet),
                folder=job.folder,
                locate_sql=job.locate_sql,
            )
            for job, broker in zip(jobs, brokers, strict=True)
        ]
        failed = _await_all(handles, stop, as_json=as_json, stops_all=stops_all)
    if stop.number:
        ctx.exit(128 + stop.number)
    if failed:
        ctx.exit(failed[0].exit_code)


def _await_all(
    handles: Sequence[RunningPipeline], stop: StopSignal, *, as_json: bool, stops_all: bool
) -> list[OnceMQError]:
    """Wait for the end of all pipelines. Returns the errors of those that failed, which are printed."""
    failed: list[OnceMQError] = []
    running = list(handles)
    while running:
        for handle in list(running):
            if stop() or (failed and stops_all):
                handle.request_stop()
            if handle.is_running:
                continue
            running.remove(handle)
            if handle.exception is not None:
                failed.append(_report_failure(handle.name, handle.exception, as_json=as_json))
        time.sleep(_POLL_S)
    return failed


def _report_failure(name: str, error: BaseException, *, as_json: bool) -> OnceMQError:
    """Print the error of one of several pipelines. An error that is not ours is a bug, and ends the command."""
    from oncemq.protocol.errors import OnceMQError

    if not isinstance(error, OnceMQError):
        raise error
    if as_json:
        fields = {"code": error.code, "text": error.text, "advice": error.advice}
        write_line(json_line({"event": "error", "pipeline": name, **fields}))
    else:
        print_error(f"{name} has failed: {error.text}", error.advice)
    return error


def _line_reporter(name: str, *, as_json: bool, is_quiet: bool) -> Reporter:
    """A reporter whose lines begin with the name of the pipeline."""
    from oncemq.spark.pipeline import progress

    if as_json:
        return progress.JsonReporter(write_line)
    if is_quiet:
        return progress.SilentReporter()
    return progress.LineReporter(note, time.monotonic, prefix=f"{name}: " if name else "")


def _await_broker(ctx: click.Context, pipelines: Sequence[Pipeline], broker: Broker, reporter: Reporter) -> None:
    """Wait until the broker answers, before the JVM, which starts slowly. Raises BrokerAway after the longest of the
    pipelines' limits."""
    from oncemq.spark.pipeline.runs.broker_wait import BrokerWait

    limits = [pipeline.broker_timeout_s for pipeline in pipelines]
    limit_s = None if None in limits else max(limit for limit in limits if limit is not None)
    with StopSignal() as stop:
        is_there = BrokerWait(broker, limit_s, reporter.notice, stop).wait()
    if not is_there:
        ctx.exit(128 + stop.number)


def _limit_log(session: SparkSession, spark: SparkRun) -> None:
    if not wants_traceback(spark.has_traceback):
        # The command prints errors as one sentence. Spark would print hundreds of lines before that.
        session.sparkContext.setLogLevel("OFF")


def refuse_conflicts(jobs: Sequence[Job]) -> None:
    """Raises PipelineInvalid if two of the pipelines can't run at the same time."""
    from oncemq.protocol.errors import PipelineInvalid

    seen: dict[tuple[str, Any], str] = {}
    for job in jobs:
        pipeline = job.pipeline
        uses: list[tuple[str, Any]] = [("the name", pipeline.name), ("the checkpoint", pipeline.checkpoint)]
        for view, each in pipeline.inputs.items():
            topics = each.source.names or (each.source.pattern,)
            uses += [("the subscription", f"{pipeline.subscription_of(view)} on {topic}") for topic in topics]
        for use in uses:
            if use in seen:
                text = f"the pipelines {seen[use]!r} and {pipeline.name!r} have {use[0]} {use[1]} in common"
                raise PipelineInvalid(f"{text}; give each one its own")
        seen |= dict.fromkeys(uses, pipeline.name)
