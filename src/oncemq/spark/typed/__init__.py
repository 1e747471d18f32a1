"""Typed topics in Spark: the columns of a topic's schema instead of its values."""

from oncemq.arrow.values import decode_values

__all__ = ["decode_values"]
