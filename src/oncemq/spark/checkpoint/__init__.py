"""Spark's checkpoint of a streaming query, as source and sinks see it: its entries, and their durability.

metadata          the id of the query
offsets/N         where micro-batch N ends on each source; written before the micro-batch runs
commits/N         written when micro-batch N is complete
state/            the state of aggregations, joins and deduplication
"""
