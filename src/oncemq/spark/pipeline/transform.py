"""Applies the watermark and the transform of a pipeline to its rows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from oncemq.config.durations import parse_duration_ms
from oncemq.protocol.errors import PipelineFailed, PipelineInvalid
from oncemq.spark.pipeline.functions import FunctionError, load_function
from oncemq.spark.pipeline.model import VIEW, Transform, Watermark


def apply_watermark(rows: DataFrame, watermark: Watermark | None) -> DataFrame:
    if watermark is None:
        return rows
    return rows.withWatermark(watermark.column, f"{parse_duration_ms(watermark.delay)} milliseconds")


def apply_transform(rows: DataFrame, transform: Transform | None, folder: str = ".") -> DataFrame:
    """Return the transformed rows. Python modules are also looked up in `folder`.

    Raises PipelineInvalid, PipelineFailed and the errors of Spark."""
    if transform is None:
        return rows
    if transform.sql:
        return _run_sql(rows, transform.sql)
    return _call(transform.function or _load(transform.python, folder), rows)


def _run_sql(rows: DataFrame, sql: str) -> DataFrame:
    session = rows.sparkSession
    rows.createOrReplaceTempView(VIEW)
    try:
        # Names are resolved in this call. The view is not needed afterwards.
        return session.sql(sql)
    finally:
        session.catalog.dropTempView(VIEW)


def _call(function: Callable[[Any], Any], rows: DataFrame) -> DataFrame:
    name = getattr(function, "__qualname__", repr(function))
    try:
        result = function(rows)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PipelineFailed(f"transform: {name} failed: {reason}") from error
    if not isinstance(result, DataFrame):
        text = f"transform: {name} returned {type(result).__name__}, but must return a DataFrame"
        raise PipelineInvalid(f"{text}; return the DataFrame that is derived from its argument")
    if rows.isStreaming and not result.isStreaming:
        raise PipelineInvalid(f"transform: {name} returned a batch, not a stream; derive the result from its argument")
    return result


def _load(reference: str, folder: str) -> Callable[[Any], Any]:
    try:
        function = load_function(reference, folder)
    except FunctionError as error:
        raise PipelineInvalid(f"transform.python: {error.text}; {error.advice}") from None
    from pyspark import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", ""))
    if module is not None:
        # Spark's workers can't import a module from the folder of the file, so its definitions are pickled.
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return function
