"""Commands that need Spark: a session for as long as they run, and errors in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oncemq.cli.stopping import orderly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Function = TypeVar("Function", bound=Callable[..., Any])


def master_option(function: Function) -> Function:
    decorate = click.option(
        "--master", default="local[*]", metavar="URL", help="Where Spark runs. [default: local[*], all cores]"
    )
    return decorate(function)


@contextmanager
def on_spark(name: str, master: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Inside, Ctrl-C and SIGTERM end the command in an orderly way. Raises MissingExtra, and what went wrong in Spark
    as an error of ours."""
    from oncemq.spark import session

    with orderly():
        spark = session.build(name, master=master, conf=conf)
        from pyspark.errors import PySparkException

        from oncemq.spark.pipeline.explaining import explained

        try:
            yield spark
        except PySparkException as error:
            raise explained(error) from error
        finally:
            spark.stop()
