"""The columns of a message, and their types in Spark's words. Imports nothing: every query asks for it first."""

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
