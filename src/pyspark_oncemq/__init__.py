"""Spark looks for packages `pyspark_*` with a `DefaultSource`: this one makes `format("oncemq")` known by itself."""

from oncemq.spark.data_source import OnceMQSource as DefaultSource

__all__ = ["DefaultSource"]
