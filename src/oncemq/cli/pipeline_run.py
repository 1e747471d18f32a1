"""`oncemq pipeline run`: a pipeline of a file, until it is done or somebody stops it."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from oncemq.cli.command import BROKER_EXITS, LOOKING_ADVICE, Documented
from oncemq.cli.options import Reach, connected, json_option, reaches_broker
from oncemq.cli.output import is_terminal, note
from oncemq.cli.stopping import orderly

if TYPE_CHECKING:
    from oncemq.spark.pipeline.model import Pipeline
    from oncemq.spark.pipeline.progress import Reporter
    from oncemq.spark.pipeline.validating import Declared

_AVAILABLE_NOW = "available-now"


class Stop:
    """Ctrl-C or SIGTERM asks the run to stop; a second one ends the process at once."""

    def __init__(self) -> None:
        #: The signal that came; 0 = none.
        self.number = 0
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        self._former = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self.number != 0

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            # Java ends with its parent. What was not finished is done by the next run.
            os._exit(128 + number)
        self.number = number


@click.command(
    cls=Documented,
    exits=(*BROKER_EXITS, 1, 5, 7, 143),
    advice=LOOKING_ADVICE,
    examples="""
        oncemq pipeline run orders.yaml
        oncemq pipeline run orders.yaml --trigger 5s
        oncemq pipeline run orders.yaml --master "local[2]" --conf spark.driver.memory=2g
        oncemq pipeline run orders.yaml --json | jq .rows
    """,
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--master", default="local[*]", metavar="URL", help="Where Spark runs. [default: local[*], all cores]")
@click.option("--checkpoint", metavar="DIR", help="Where Spark notes how far it is, instead of what the file says.")
@click.option(
    "--trigger",
    metavar="available-now|TIME",
    help="Once, or a micro-batch every so often (5s), instead of what the file says.",
)
@click.option("--conf", "pairs", metavar="KEY=VALUE", multiple=True, help="A setting of Spark; may be repeated.")
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
@click.option("--traceback", "has_traceback", is_flag=True, help="If it fails, show all that Spark says.")
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

    Mistakes in the file are explained before Spark starts, as by `oncemq pipeline validate`. With the trigger
    available-now it processes what is there and ends; with `every`, it goes on until Ctrl-C or SIGTERM. However it
    ends, the next run goes on where it was, and each message counts once. A second Ctrl-C ends it at once.

    With --json, each micro-batch is an object, with `rows`, `rows_per_s`, `lag` and `duration_ms`, and the end too.
    """
    from oncemq import config
    from oncemq.errors import OnceMQError
    from oncemq.spark.options import broker_url
    from oncemq.spark.pipeline.validating import ensure_valid, folder_of, validate

    has_traceback = has_traceback or bool(os.environ.get(config.TRACEBACK_VARIABLE))
    conf = _conf_of(pairs)
    url = broker_url(config.load_client(reach).url)
    declared = validate(file)
    if declared.pipeline is None:
        _refuse(ctx, declared, as_json)
        return
    pipeline = _changed(declared.pipeline, checkpoint, trigger)
    ensure_valid(pipeline, folder_of(file))
    reporter = _reporter(pipeline, as_json=as_json, quiet=quiet)
    with connected(reach) as client:
        # Java takes its time: a broker that is away should be known before.
        client.health()
    try:
        number = _run(declared, pipeline, url, master, conf, reporter, is_loud=has_traceback)
    except OnceMQError as error:
        if has_traceback:
            click.echo("".join(traceback.format_exception(error)), nl=False, err=True)
        raise
    if number:
        ctx.exit(128 + number)


def _refuse(ctx: click.Context, declared: Declared, as_json: bool) -> None:
    from oncemq.cli.output import json_line
    from oncemq.errors import PipelineInvalid

    for mistake in declared.mistakes:
        click.echo(json_line(mistake) if as_json else mistake.sentence, err=True)
    ctx.exit(PipelineInvalid.exit_code)


def _run(
    declared: Declared,
    pipeline: Pipeline,
    url: str,
    master: str,
    conf: dict[str, str],
    reporter: Reporter,
    *,
    is_loud: bool,
) -> int:
    """The signal that stopped it; 0 = none."""
    from oncemq.spark import session
    from oncemq.spark.pipeline.running import run as run_pipeline
    from oncemq.spark.pipeline.validating import folder_of

    document = declared.document

    def place(offset: int) -> str:
        line, column = document.place_of(("transform", "sql"), offset)
        return f"{document.file}:{line}:{column}: "

    with orderly():
        spark = session.build(pipeline.name, master=master, conf=conf)
        with Stop() as stop:
            try:
                if not is_loud:
                    # What fails is said by us, in a sentence; Java would say it in hundreds of lines, and first.
                    spark.sparkContext.setLogLevel("OFF")
                run_pipeline(
                    pipeline,
                    url=url,
                    session=spark,
                    folder=folder_of(document.file),
                    reporter=reporter,
                    is_stopping=stop,
                    place=place,
                )
            finally:
                spark.stop()
    return stop.number


def _changed(pipeline: Pipeline, checkpoint: str | None, trigger: str | None) -> Pipeline:
    """With what the command line says instead."""
    import msgspec

    from oncemq.spark.pipeline.model import Trigger, duration_s

    if checkpoint is not None:
        path = checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)
        pipeline = msgspec.structs.replace(pipeline, checkpoint=path)
    if trigger is None:
        return pipeline
    if trigger != _AVAILABLE_NOW and duration_s(trigger) is None:
        text = f"{trigger!r} is neither {_AVAILABLE_NOW} nor a span of time, such as 5s."
        raise click.BadParameter(text, param_hint="--trigger")
    every = "" if trigger == _AVAILABLE_NOW else trigger
    return msgspec.structs.replace(pipeline, trigger=Trigger(every=every))


def _conf_of(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{pair!r} is not of the form KEY=VALUE.", param_hint="--conf")
        found[key] = value
    return found


def _reporter(pipeline: Pipeline, *, as_json: bool, quiet: bool) -> Reporter:
    from oncemq.spark.pipeline import progress

    if as_json:
        return progress.JsonLines(_write_line)
    if quiet:
        return progress.Silent()
    if is_terminal():
        try:
            return progress.Bar(note, has_end=not pipeline.trigger.every)
        except ModuleNotFoundError:
            pass
    return progress.Lines(note, time.monotonic)


def _write_line(line: str) -> None:
    """At once: whoever reads it wants to know where the run is."""
    click.echo(line)
    sys.stdout.flush()
