"""The columns of a message and their Spark types. Imports nothing, because every query starts by loading it."""

from __future__ import annotations

SPARK_TYPES = {
    "topic": "string",
    "offset": "bigint",
    "key": "binary",
    "value": "binary",
    "headers": "map<string, binary>",
    "timestamp": "timestamp",
    "idempotency_key": "string",
}
NAMES = tuple(SPARK_TYPES)
