"""The column statistics of a file in the log of a Delta table, taken from the Parquet footer. Readers use them to skip
files.

Only exact bounds are written: none for text that is too long, and none for numbers if there may be a NaN.
"""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

_TEXT_LENGTH_MAX = 64


def statistics(metadata: Any, schema: Any) -> str:
    """Return the statistics of a Parquet file as JSON, in the format of Delta."""
    plain = {field.name for field in schema if not pa.types.is_nested(field.type)}
    columns: dict[str, list[Any]] = {}
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            if column.path_in_schema in plain:
                columns.setdefault(column.path_in_schema, []).append(column.statistics)
    nulls, lows, highs = {}, {}, {}
    for name, found in columns.items():
        if not all(each is not None and each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        bounds = _bounds(found, schema.field(name).type)
        if bounds is not None:
            lows[name], highs[name] = bounds
    whole = {"numRecords": metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
    return msgspec.json.encode(whole).decode()


def _bounds(found: list[Any], kind: Any) -> tuple[Any, Any] | None:
    known = [each for each in found if each.has_min_max]
    if not known or any(not each.has_min_max and each.num_values for each in found):
        return None
    low = _bound(min(each.min for each in known), kind, up=False)
    high = _bound(max(each.max for each in known), kind, up=True)
    return None if low is None or high is None else (low, high)


def _bound(value: Any, kind: Any, *, up: bool) -> Any:
    """The value as Delta writes it in JSON; None if it can't be written exactly. Times are rounded outwards."""
    if isinstance(value, datetime.datetime):
        return _timestamp(value, up=up)
    if pa.types.is_date(kind):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _TEXT_LENGTH_MAX else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    # A reader may round a decimal that is a number in JSON.
    return float(value) if isinstance(value, Decimal) and Decimal(float(value)) == value else None


def _timestamp(value: datetime.datetime, *, up: bool) -> str | None:
    """Delta has milliseconds."""
    if value.tzinfo is None:
        return None
    if up:
        value += datetime.timedelta(microseconds=-value.microsecond % 1000)
    utc = value.astimezone(datetime.UTC)
    return utc.strftime("%Y-%m-%dT%H:%M:%S.") + f"{utc.microsecond // 1000:03d}Z"
