"""What happens to the rows between their being read and their being written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from oncemq.config.durations import duration_s
from oncemq.protocol.errors import PipelineFailed, PipelineInvalid
from oncemq.spark.pipeline.functions import FunctionError, load_function
from oncemq.spark.pipeline.model import VIEW, Transform, Watermark


def watermarked(rows: DataFrame, watermark: Watermark | None) -> DataFrame:
    if watermark is None:
        return rows
    delay_s = duration_s(watermark.delay)
    assert delay_s is not None, watermark.delay
    return rows.withWatermark(watermark.column, f"{round(delay_s * 1000)} milliseconds")


def transformed(rows: DataFrame, transform: Transform | None, folder: str = ".") -> DataFrame:
    """The result; modules of Python are looked for in `folder` too. Raises PipelineInvalid, and what Spark raises."""
    if transform is None:
        return rows
    if transform.sql:
        return _by_sql(rows, transform.sql)
    return _by_function(rows, transform.function or _loaded(transform.python, folder))


def _by_sql(rows: DataFrame, sql: str) -> DataFrame:
    session = rows.sparkSession
    rows.createOrReplaceTempView(VIEW)
    try:
        # Names are resolved here: the view is not needed any longer.
        return session.sql(sql)
    finally:
        session.catalog.dropTempView(VIEW)


def _by_function(rows: DataFrame, function: Callable[[Any], Any]) -> DataFrame:
    name = getattr(function, "__qualname__", repr(function))
    try:
        result = function(rows)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PipelineFailed(f"transform: {name} failed: {reason}") from error
    if not isinstance(result, DataFrame):
        text = f"transform: {name} returned {type(result).__name__}, and a DataFrame is needed"
        raise PipelineInvalid(f"{text}; return what becomes of the one that it gets")
    if rows.isStreaming and not result.isStreaming:
        raise PipelineInvalid(f"transform: {name} returned rows that are no stream; build the result on what it gets")
    return result


def _loaded(reference: str, folder: str) -> Callable[[Any], Any]:
    try:
        function = load_function(reference, folder)
    except FunctionError as error:
        raise PipelineInvalid(f"transform.python: {error.text}; {error.advice}") from None
    _send_along(function)
    return function


def _send_along(function: Callable[[Any], Any]) -> None:
    """Spark's workers don't find a module beside the file: what it defines goes with what is sent to them."""
    import sys

    from pyspark import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", ""))
    if module is not None:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
