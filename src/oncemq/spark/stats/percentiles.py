"""The exact percentiles of a column, as columns of an aggregation in Spark."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

#: By the name of the column that they make, after a prefix.
_SHARES = {"p50": 0.5, "p99": 0.99}


def percentile_columns(value: str, prefix: str) -> list[Column]:
    """`{prefix}_p50`, `{prefix}_p99` and `{prefix}_max`. Spark counts the distinct values in a hash map, so the memory
    that this needs depends on their number, not on that of the rows."""
    found = [
        F.expr(f"CAST(percentile_disc({share}) WITHIN GROUP (ORDER BY {value}) AS bigint) AS {prefix}_{name}")
        for name, share in _SHARES.items()
    ]
    return [*found, F.max(value).alias(f"{prefix}_max")]
