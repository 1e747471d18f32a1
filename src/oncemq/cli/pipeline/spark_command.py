"""What commands that need Spark share: their options, a session for as long as they run, progress, stopping, and
errors in a sentence. Imports Spark only when one runs."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oncemq.cli.support.signals import orderly_exit
from oncemq.terminal import is_terminal, note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.spark.pipeline.progress import Reporter

Function = TypeVar("Function", bound=Callable[..., Any])

AVAILABLE_NOW = "available-now"


# Options.


def master_option(function: Function) -> Function:
    decorate = click.option(
        "--master", default="local[*]", metavar="URL", help="Where Spark runs. [default: local[*], all cores]"
    )
    return decorate(function)


def runs_on_spark(function: Function) -> Function:
    """--master, --conf, --quiet and --traceback, of the commands that run for long."""
    options = (
        click.option("--traceback", "has_traceback", is_flag=True, help="If it fails, show all that Spark says."),
        click.option("--quiet", is_flag=True, help="Say nothing but errors and warnings."),
        click.option(
            "--conf", "pairs", metavar="KEY=VALUE", multiple=True, help="A setting of Spark; may be repeated."
        ),
        master_option,
    )
    for decorate in options:
        function = decorate(function)
    return function


def conf_of(pairs: tuple[str, ...]) -> dict[str, str]:
    """Settings of Spark, as `--conf` takes them."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{pair!r} is not of the form KEY=VALUE.", param_hint="--conf")
        found[key] = value
    return found


def every_of(trigger: str) -> str:
    """A span of time; "" = once, with what is available."""
    from oncemq.config.durations import duration_s

    if trigger == AVAILABLE_NOW:
        return ""
    if duration_s(trigger) is None:
        text = f"{trigger!r} is neither {AVAILABLE_NOW} nor a span of time, such as 5s."
        raise click.BadParameter(text, param_hint="--trigger")
    return trigger


# Running.


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


@contextmanager
def on_spark(name: str, master: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session. Inside, Ctrl-C and SIGTERM end the command in an orderly way. Raises MissingExtra, and what went wrong
    in Spark as an error of ours."""
    from oncemq.spark import session

    with orderly_exit():
        with _java_deaf():
            spark = session.build(name, master=master, conf=conf)
        from pyspark.errors import PySparkException

        from oncemq.spark.pipeline.spark_errors import explain

        try:
            yield spark
        except PySparkException as error:
            raise explain(error) from error
        finally:
            spark.stop()


@contextmanager
def _java_deaf() -> Iterator[None]:
    """Who ends a whole group of processes, as systemd does, would end Java before we can stop what it runs. A process
    that is started while we ignore SIGTERM ignores it too; Java ends with us in any case."""
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


@contextmanager
def until_stopped(
    name: str, master: str, conf: Mapping[str, str], *, is_loud: bool
) -> Iterator[tuple[SparkSession, Stop]]:
    """The same for a stream, which is asked to stop."""
    with on_spark(name, master, conf) as spark, Stop() as stop:
        if not is_loud:
            # What fails is said by us, in a sentence; Java would say it in hundreds of lines, and first.
            spark.sparkContext.setLogLevel("OFF")
        yield spark, stop


@contextmanager
def explaining(has_traceback: bool) -> Iterator[None]:
    """What fails is a sentence, and, where it is asked for, all that Spark says."""
    from oncemq.config import sources
    from oncemq.protocol import errors

    if importlib.util.find_spec("pyspark") is None:
        raise errors.MissingExtra('pyspark is not installed: pip install "oncemq[spark]"')
    try:
        yield
    except errors.OnceMQError as error:
        if has_traceback or os.environ.get(sources.TRACEBACK_VARIABLE):
            click.echo("".join(traceback.format_exception(error)), nl=False, err=True)
        raise


# Progress.


def reporter(*, has_end: bool, as_json: bool, is_quiet: bool) -> Reporter:
    """A bar for people, lines for logs, objects for programs."""
    from oncemq.spark.pipeline import progress

    if as_json:
        return progress.JsonReporter(_write_line)
    if is_quiet:
        return progress.SilentReporter()
    if is_terminal():
        try:
            return progress.BarReporter(note, has_end=has_end)
        except ModuleNotFoundError:
            pass
    return progress.LineReporter(note, time.monotonic)


def _write_line(line: str) -> None:
    """At once: whoever reads it wants to know where the run is."""
    click.echo(line)
    sys.stdout.flush()
