"""Who a task is, by its context."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import TaskContext

from oncemq.spark.sink.task import task_identity


class Context:
    def __init__(self, **properties: str) -> None:
        self._properties = {name.replace("_", "."): value for name, value in properties.items()}

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self._properties.get(name)

    def partitionId(self) -> int:  # noqa: N802
        return 3


def enter(monkeypatch: pytest.MonkeyPatch, context: Any) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: context)


def test_a_streams_task_has_its_query_its_batch_and_an_attempt_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, Context(sql_streaming_queryId="q", streaming_sql_batchId="7"))
    one, two = task_identity(), task_identity()
    assert (one.query_id, one.batch_id, one.partition) == ("q", 7, 3)
    assert one.attempt != two.attempt
    assert len(one.attempt) == 32


def test_a_batch_write_has_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, Context())
    identity = task_identity()
    assert (identity.query_id, identity.batch_id) == ("", 0)


def test_outside_of_a_task_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="inside a Spark task"):
        task_identity()
    enter(monkeypatch, Context(sql_streaming_queryId="q"))
    with pytest.raises(RuntimeError, match="has no batch id"):
        task_identity()
