"""Spark's plan says how rows relate to messages."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from oncemq.spark.audit.pipelines.shape import EACH, OTHER, SEVERAL, SOME, _is_repeatable, plan_shape
from oncemq.spark.pipeline.model import VIEW, Transform
from oncemq.spark.pipeline.transform import apply_transform


@pytest.mark.parametrize(
    ("sql", "kind", "is_repeatable"),
    [
        ("SELECT * FROM messages", EACH, True),
        ("WITH a AS (SELECT id + 1 AS x FROM messages) SELECT x, rand() AS r FROM a", EACH, False),
        ("SELECT id FROM messages WHERE price > 2", SOME, True),
        ("SELECT id FROM messages WHERE at > now() - INTERVAL 1 DAY", SOME, False),
        ("SELECT id, explode(tags) AS tag FROM messages", SEVERAL, True),
        ("SELECT count(*) FROM messages", OTHER, True),
        ("SELECT DISTINCT id FROM messages", OTHER, True),
        ("SELECT a.id FROM messages a JOIN messages b ON a.id = b.id", OTHER, True),
        ("SELECT id FROM messages UNION ALL SELECT id FROM messages", OTHER, True),
        ("SELECT id FROM messages WHERE price = (SELECT max(price) FROM messages)", OTHER, True),
    ],
)
def test_the_shape_of_a_transform(spark: SparkSession, sql: str, kind: str, is_repeatable: bool) -> None:
    rows = spark.createDataFrame([], "id bigint, price double, tags array<string>, at timestamp")
    result = apply_transform({VIEW: rows}, Transform(sql=sql))
    assert (plan_shape(result), _is_repeatable(result)) == (kind, is_repeatable)
