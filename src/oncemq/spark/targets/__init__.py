"""Targets of pipelines: a topic, Parquet files, a Delta table, a PostgreSQL table, the console.

`declarations` defines the settings of each target. `start` starts a query that writes each row exactly once.
"""

from __future__ import annotations

from oncemq.spark.targets.declarations import (
    ConsoleTarget,
    DeltaTarget,
    ParquetTarget,
    PostgresTarget,
    Target,
    TopicTarget,
)

__all__ = ["ConsoleTarget", "DeltaTarget", "ParquetTarget", "PostgresTarget", "Target", "TopicTarget"]
