"""Registers `format("oncemq")` automatically: Spark looks for packages `pyspark_*` that have a `DefaultSource`."""

from oncemq.spark.data_source import OnceMQSource as DefaultSource

__all__ = ["DefaultSource"]
