"""Spark: topics as sources and sinks (`format("oncemq")`), and the pipelines built on them.

Nothing in here is imported by the rest of the package: who does not use Spark does not need it.
"""
