"""Applies the watermark and the transform of a pipeline to its rows."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from oncemq.config.durations import parse_duration_ms
from oncemq.protocol.errors import PipelineFailed, PipelineInvalid
from oncemq.spark.pipeline.functions import FunctionError, load_function
from oncemq.spark.pipeline.model import VIEW, Transform, Watermark

_views_lock = threading.Lock()


def apply_watermark(rows: DataFrame, watermark: Watermark | None) -> DataFrame:
    if watermark is None:
        return rows
    return rows.withWatermark(watermark.column, f"{parse_duration_ms(watermark.delay)} milliseconds")


def apply_transform(views: Mapping[str, DataFrame], transform: Transform | None, folder: str = ".") -> DataFrame:
    """Return the transformed rows. Python modules are also looked up in `folder`.

    Raises PipelineInvalid, PipelineFailed and the errors of Spark."""
    if transform is None:
        return views[VIEW]
    if transform.sql:
        return _run_sql(views, transform.sql)
    argument = views[VIEW] if list(views) == [VIEW] else dict(views)
    return _call(transform.function or _load(transform.python, folder), argument, views)


def _run_sql(views: Mapping[str, DataFrame], sql: str) -> DataFrame:
    session = next(iter(views.values())).sparkSession
    # The views of a session are shared by all threads that run pipelines in it.
    with _views_lock:
        former = {view: _temporary_view(session, view) for view in views}
        for view, rows in views.items():
            rows.createOrReplaceTempView(view)
        try:
            # Names are resolved in this call. The views are not needed afterwards.
            return session.sql(sql)
        finally:
            for view, own in former.items():
                if own is None:
                    session.catalog.dropTempView(view)
                else:
                    own.createOrReplaceTempView(view)


def _temporary_view(session: SparkSession, view: str) -> DataFrame | None:
    """The rows of a temporary view of the session's user."""
    if session.catalog.tableExists(view) and session.catalog.getTable(view).isTemporary:
        return session.table(view)
    return None


def _call(function: Callable[[Any], Any], argument: Any, views: Mapping[str, DataFrame]) -> DataFrame:
    name = getattr(function, "__qualname__", repr(function))
    try:
        result = function(argument)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PipelineFailed(f"transform: {name} failed: {reason}") from error
    if not isinstance(result, DataFrame):
        text = f"transform: {name} returned {type(result).__name__}, but must return a DataFrame"
        raise PipelineInvalid(f"{text}; return the DataFrame that is derived from its argument")
    if any(rows.isStreaming for rows in views.values()) and not result.isStreaming:
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
