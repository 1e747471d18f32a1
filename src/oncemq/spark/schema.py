"""The columns of a message and their Spark types. Imports little, because every query starts by loading it."""

from __future__ import annotations

from oncemq.protocol.message import COLUMN_PREFIX

SPARK_TYPES = {
    "topic": "string",
    "offset": "bigint",
    "key": "binary",
    "value": "binary",
    "headers": "map<string, binary>",
    "timestamp": "timestamp",
    "idempotency_key": "string",
    "schema_version": "int",
}
#: The columns that are read unless others are chosen.
NAMES = tuple(name for name in SPARK_TYPES if name != "schema_version")
#: With typed columns, and in pipelines.
MESSAGE_PREFIX = COLUMN_PREFIX
