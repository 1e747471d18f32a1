"""The common parts of the commands that use Spark: options, sessions, progress, stop signals and error messages.
Imports Spark only when a command runs."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from oncemq.cli.support.options import Reach, connected
from oncemq.cli.support.signals import orderly_exit
from oncemq.terminal import is_terminal, note, printable, printable_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oncemq.spark.broker import Broker
    from oncemq.spark.pipeline.model import Pipeline
    from oncemq.spark.pipeline.progress import Reporter

Function = TypeVar("Function", bound=Callable[..., Any])

AVAILABLE_NOW = "available-now"


# Options.


def master_option(function: Function) -> Function:
    decorate = click.option(
        "--master", default="local[*]", metavar="URL", help="The master of Spark. [default: local[*], all cores]"
    )
    return decorate(function)


class SparkRun(NamedTuple):
    """The options of a command that runs on Spark."""

    master: str
    conf: dict[str, str]
    quiet: bool
    has_traceback: bool


def spark_options(function: Function) -> Callable[..., Any]:
    """Adds --master, --conf, --quiet and --traceback, and passes them as `spark`."""

    @functools.wraps(function)
    def with_spark_run(
        *args: Any, master: str, pairs: tuple[str, ...], quiet: bool, has_traceback: bool, **options: Any
    ) -> Any:
        return function(*args, spark=SparkRun(master, parse_conf(pairs), quiet, has_traceback), **options)

    decorated: Callable[..., Any] = with_spark_run
    for option in (
        click.option(
            "--traceback", "has_traceback", is_flag=True, help="If the command fails, print the whole error of Spark."
        ),
        click.option("--quiet", is_flag=True, help="Print only errors and warnings."),
        click.option(
            "--conf", "pairs", metavar="KEY=VALUE", multiple=True, help="A setting of Spark. May be repeated."
        ),
        master_option,
    ):
        decorated = option(decorated)
    return decorated


def parse_conf(pairs: tuple[str, ...]) -> dict[str, str]:
    """The settings of Spark from --conf."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{pair!r} is not of the form KEY=VALUE.", param_hint="--conf")
        found[key] = value
    return found


def parse_trigger(text: str) -> str:
    """The interval of --trigger; "" = available-now."""
    from oncemq.config.durations import parse_duration_ms

    if text == AVAILABLE_NOW:
        return ""
    try:
        parse_duration_ms(text)
    except ValueError as error:
        raise click.BadParameter(f"use {AVAILABLE_NOW} or a duration: {error}", param_hint="--trigger") from None
    return text


# Sessions.


class StopSignal:
    """SIGINT or SIGTERM asks the run to stop. A second signal ends the process immediately."""

    def __init__(self) -> None:
        #: The signal that arrived; 0 = none.
        self.number = 0
        self._former: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        self._former = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self.number != 0

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            # The JVM ends with its parent. The next run does the work that was not completed.
            os._exit(128 + number)
        self.number = number


@contextmanager
def spark_session(name: str, master: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session, in which SIGINT and SIGTERM end the command in an orderly way. Raises MissingExtra. Errors of Spark
    are raised as OnceMQError."""
    from oncemq.spark import session

    with orderly_exit():
        with _sigterm_ignored():
            spark = session.build(name, master=master, conf=conf)
        from pyspark.errors import PySparkException

        from oncemq.spark import jvm
        from oncemq.spark.pipeline.spark_errors import explain

        try:
            with jvm.quiet_loss(), jvm.explained():
                yield spark
        except PySparkException as error:
            raise explain(error) from error
        finally:
            session.stop(spark)


@contextmanager
def _sigterm_ignored() -> Iterator[None]:
    """A process that is started while SIGTERM is ignored ignores it too. So a signal to the whole process group, as
    systemd sends it, does not end the JVM before its jobs are stopped. The JVM ends with its parent in any case."""
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


@contextmanager
def explain_errors(has_traceback: bool) -> Iterator[None]:
    """Print the traceback of an error if it is requested. The error itself is printed as one sentence."""
    from oncemq.protocol import errors

    if importlib.util.find_spec("pyspark") is None:
        raise errors.MissingExtra('pyspark is not installed: pip install "oncemq[spark]"')
    try:
        yield
    except errors.OnceMQError as error:
        if wants_traceback(has_traceback):
            click.echo(printable("".join(traceback.format_exception(error))), nl=False, err=True)
        raise


def wants_traceback(has_traceback: bool) -> bool:
    """Whether the whole error of Spark is printed."""
    from oncemq.config import sources

    return has_traceback or bool(os.environ.get(sources.TRACEBACK_VARIABLE))


def find_broker(reach: Reach, pipeline: Pipeline | None = None) -> Broker:
    """How Spark's workers reach the broker of the command or of the pipeline. Raises SettingInvalid if they can't."""
    from oncemq.config import endpoints, sources
    from oncemq.spark.broker import broker_of

    context = endpoints.file("the pipeline: ", {"context": pipeline.context if pipeline is not None else ""})
    return broker_of(sources.choose_endpoint(reach, above_file=[context]))


def require_broker(reach: Reach, broker: Broker) -> None:
    """Raises BrokerAway. Called before the JVM, which starts slowly."""
    if broker.context:
        # The context may be that of a pipeline.
        reach = {**reach, "url": None, "context": broker.context}
    with connected(reach) as client:
        client.health()


# Progress.


def make_reporter(*, has_end: bool, as_json: bool, is_quiet: bool) -> Reporter:
    """A progress bar on a terminal, lines in a log, or JSON."""
    from oncemq.spark.pipeline import progress

    if as_json:
        return progress.JsonReporter(write_line)
    if is_quiet:
        return progress.SilentReporter()
    if is_terminal():
        try:
            return progress.BarReporter(note, has_end=has_end)
        except ModuleNotFoundError:
            pass
    return progress.LineReporter(note, time.monotonic)


def write_line(line: str) -> None:
    """Write a line without buffering, so that a reader sees the progress."""
    click.echo(printable_json(line))
    sys.stdout.flush()
