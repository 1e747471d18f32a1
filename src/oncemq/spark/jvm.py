"""Recognises that Spark's Java process has ended, for which PySpark says only "Connection refused".

A session that has lost its Java process can't be used any more. `forget` lets the next one start a new process.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oncemq.protocol.errors import PipelineFailed

#: The connection breaks before the process can be waited for.
_END_S = 2.0
_ADVICE = (
    "If the machine ran out of memory, the kernel has killed it, and `dmesg` says so: give Spark less memory "
    "(spark.driver.memory), or the machine more. Then run the command again: it continues where the last one ended"
)


@contextmanager
def explained() -> Iterator[None]:
    """Errors because of a Java process that has ended are raised as PipelineFailed."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        yield
    except (Py4JError, ConnectionError, EOFError) as error:
        code = exit_code(_END_S)
        if code is None:
            raise
        raise PipelineFailed(f"Spark's Java process has ended ({_how(code)}). {_ADVICE}") from error


@contextmanager
def quiet_loss() -> Iterator[None]:
    """Inside, the end of the Java process is only an exception. PySpark would print dozens of lines about each of its
    connections."""
    from pyspark import SparkContext

    root = logging.getLogger()
    server: Any = SparkContext._active_spark_context and SparkContext._active_spark_context._accumulatorServer
    if server is not None:
        server.handle_error = lambda *_: None
    root.addFilter(_is_worth_printing)
    try:
        yield
    finally:
        root.removeFilter(_is_worth_printing)


def _is_worth_printing(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname or exit_code(_END_S) is None


def exit_code(wait_s: float = 0.0) -> int | None:
    """The exit code of the Java process; negative = a signal. None if it runs, or if there is none."""
    process = _process()
    deadline_s = time.monotonic() + wait_s
    while process is not None:
        code: int | None = process.poll()
        if code is not None or time.monotonic() >= deadline_s:
            return code
        time.sleep(0.02)
    return None


def forget() -> None:
    """Remove what PySpark remembers of a Java process that has ended, so that the next session starts another one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def _process() -> Any:
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
