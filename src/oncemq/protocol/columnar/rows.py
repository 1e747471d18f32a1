"""Single messages of a typed batch, without Arrow: the value of a message is its row as JSON.

The JSON is the one that the client writes for an object with these fields: fields in the order of the columns, null for
a null, numbers as numbers, RFC 3339 for times, base64 for bytes, a string for a decimal, and the strings "NaN",
"Infinity" and "-Infinity" for floats that JSON has no number for.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from math import isfinite
from typing import Any

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.columnar.layout import DECIMAL_BYTES, WIDTHS, ColumnLayout, ValuesLayout
from oncemq.protocol.schema.model import Decimal as DecimalType
from oncemq.protocol.schema.model import ListType, MapType, Scalar, StructType

_BIG_ENDIAN = sys.byteorder == "big"
_CODES = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
    "date": "i",
    "time": "q",
    "timestamp": "q",
    "timestamp_ntz": "q",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NTZ = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAY_US = 24 * 3600 * 1_000_000

_encode = msgspec.json.Encoder().encode


def row_values(payload: bytes, layout: ValuesLayout, start: int, stop: int) -> list[bytes]:
    """Return rows `start` to `stop` as JSON. Raises Malformed for a value that its type does not have."""
    view = memoryview(payload)
    try:
        columns = [_values(view, column, start, stop) for column in layout.columns]
        names = [field.name for field in layout.fields]
        return [_encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    except (ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise errors.Malformed(f"a value of a typed batch can't be decoded: {error}") from None


def _values(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    kind = column.type
    decode = _SCALARS[kind.kind] if isinstance(kind, Scalar) else _OTHERS[type(kind)]
    found = decode(view, column, start, stop)
    if not column.bitmap_at:
        return found
    valid = _bits(view, column.bitmap_at, start, stop)
    return [value if is_valid else None for value, is_valid in zip(found, valid, strict=True)]


def _bits(view: memoryview, at: int, start: int, stop: int) -> list[bool]:
    first = start // 8
    bits = int.from_bytes(view[at + first : at + (stop + 7) // 8], "little") >> (start - 8 * first)
    # Text is the fastest way to take a large number apart.
    digits = f"{bits:b}".zfill(stop - start)[: -(stop - start) - 1 : -1]
    return [digit == "1" for digit in digits]


def _numbers(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    kind, at = _kind(column), column.data_at
    return _cast(view[at + WIDTHS[kind] * start : at + WIDTHS[kind] * stop], _CODES[kind])


def _kind(column: ColumnLayout) -> str:
    assert isinstance(column.type, Scalar)
    return column.type.kind


def _cast(raw: memoryview, code: str) -> list[Any]:
    if not _BIG_ENDIAN:
        return raw.cast(code).tolist()  # type: ignore[call-overload, no-any-return]
    swapped = array(code, raw.tobytes())
    swapped.byteswap()
    return swapped.tolist()


def _booleans(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    return _bits(view, column.data_at, start, stop)


def _floats(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    found = _numbers(view, column, start, stop)
    return found if all(map(isfinite, found)) else [_finite(number) for number in found]


def _finite(number: float) -> float | str:
    if isfinite(number):
        return number
    return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"


def _dates(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    days = _numbers(view, column, start, stop)
    return _converted(view, column, start, stop, days, lambda day: date.fromordinal(_EPOCH_DAY + day))


def _times(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    return _converted(view, column, start, stop, _numbers(view, column, start, stop), _time)


def _time(microseconds: int) -> time:
    if not 0 <= microseconds < _DAY_US:
        raise ValueError(f"{microseconds} microseconds are not a time of day")
    return (_EPOCH_NTZ + timedelta(microseconds=microseconds)).time()


def _timestamps(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    epoch = _EPOCH if _kind(column) == "timestamp" else _EPOCH_NTZ
    moments = _numbers(view, column, start, stop)
    return _converted(view, column, start, stop, moments, lambda moment: epoch + timedelta(microseconds=moment))


def _converted(
    view: memoryview, column: ColumnLayout, start: int, stop: int, raw: list[Any], convert: Callable[[Any], Any]
) -> list[Any]:
    if not column.bitmap_at:
        return [convert(each) for each in raw]
    # What a null has as its bytes may be anything.
    valid = _bits(view, column.bitmap_at, start, stop)
    return [convert(each) if is_valid else None for each, is_valid in zip(raw, valid, strict=True)]


def _decimals(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    assert isinstance(column.type, DecimalType)
    at, scale, end = column.data_at, column.type.scale, 10**column.type.precision
    positions = range(at + DECIMAL_BYTES * start, at + DECIMAL_BYTES * stop, DECIMAL_BYTES)
    numbers = [int.from_bytes(view[at : at + DECIMAL_BYTES], "little", signed=True) for at in positions]

    def text(number: int) -> str:
        if not -end < number < end:
            raise ValueError("a decimal has more digits than its type")
        return decimal_text(number, scale)

    return _converted(view, column, start, stop, numbers, text)


def decimal_text(unscaled: int, scale: int) -> str:
    """Write a decimal with all its digits and without an exponent."""
    digits = tuple(map(int, str(abs(unscaled))))
    return format(Decimal((int(unscaled < 0), digits, -scale)), "f")


def _offsets(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[int]:
    at = column.offsets_at
    offsets = _cast(view[at + 4 * start : at + 4 * (stop + 1)], "i")
    last = column.parts[0].count if column.parts else column.data_bytes
    if offsets[0] < 0 or offsets[-1] > last or any(begin > end for begin, end in pairwise(offsets)):
        raise errors.Malformed("the offsets of a column do not rise")
    return offsets


def _texts(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    return _converted(view, column, start, stop, _slices(view, column, start, stop), bytes.decode)


def _binaries(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    return list(_slices(view, column, start, stop))


def _slices(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[bytes]:
    offsets, at = _offsets(view, column, start, stop), column.data_at
    data = bytes(view[at + offsets[0] : at + offsets[-1]])
    first = offsets[0]
    return [data[begin - first : end - first] for begin, end in pairwise(offsets)]


def _lists(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    offsets = _offsets(view, column, start, stop)
    items = _values(view, column.parts[0], offsets[0], offsets[-1])
    first = offsets[0]
    return [items[begin - first : end - first] for begin, end in pairwise(offsets)]


def _maps(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    offsets = _offsets(view, column, start, stop)
    keys, values = (_values(view, child, offsets[0], offsets[-1]) for child in column.parts)
    first = offsets[0]
    return [
        dict(zip(keys[begin - first : end - first], values[begin - first : end - first], strict=True))
        for begin, end in pairwise(offsets)
    ]


def _structs(view: memoryview, column: ColumnLayout, start: int, stop: int) -> list[Any]:
    assert isinstance(column.type, StructType)
    names = [field.name for field in column.type.fields]
    members = [_values(view, part, start, stop) for part in column.parts]
    return [dict(zip(names, row, strict=True)) for row in zip(*members, strict=True)]


_Decoder = Callable[[memoryview, ColumnLayout, int, int], list[Any]]
_SCALARS: dict[str, _Decoder] = {
    "bool": _booleans,
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), _numbers),
    "float32": _floats,
    "float64": _floats,
    "date": _dates,
    "time": _times,
    "timestamp": _timestamps,
    "timestamp_ntz": _timestamps,
    "string": _texts,
    "binary": _binaries,
}
_OTHERS: dict[type, _Decoder] = {DecimalType: _decimals, ListType: _lists, MapType: _maps, StructType: _structs}
