"""Spark: topics as sources and sinks (`format("oncemq")`), and the pipelines built on them.

No other package imports this one, except for the commands `oncemq pipeline`: OnceMQ works without Spark.
"""
