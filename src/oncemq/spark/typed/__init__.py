"""Typed topics in Spark: the columns of a topic's schema instead of its values."""
