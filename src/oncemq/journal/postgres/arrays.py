"""Arrays in PostgreSQL's binary format, packed without examining the type of each element.

The records and rows of a group are sent as a few columns, one array each. Packed like this, a thousand records cost
about as much as one statement.

    array    i32 dimensions (0 or 1) | i32 0 | i32 type of the elements | i32 count | i32 1 | element | …
    element  i32 bytes | bytes
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from psycopg.adapt import Dumper
from psycopg.pq import Format

if TYPE_CHECKING:
    import psycopg

_INT8, _BYTEA, _TEXT = 20, 17, 25
_HEAD = struct.Struct(">iiiii")
_SIZE = struct.Struct(">i")
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}".encode()


class Int8s:
    __slots__ = ("data",)

    def __init__(self, numbers: Sequence[int]) -> None:
        cells = chain.from_iterable(zip(repeat(8), numbers, strict=False))
        self.data = _head(_INT8, len(numbers)) + struct.pack(">" + "iq" * len(numbers), *cells)


class Byteas:
    __slots__ = ("data",)

    def __init__(self, values: Sequence[bytes | memoryview]) -> None:
        self.data = _pack(_BYTEA, values)


class Texts:
    __slots__ = ("data",)

    def __init__(self, texts: Iterable[str]) -> None:
        """Characters that PostgreSQL's text can't hold are replaced."""
        self.data = _pack(_TEXT, [text.encode("utf-8", "replace").replace(b"\0", _NO_CHARACTER) for text in texts])


def _head(kind: int, count: int) -> bytes:
    return _HEAD.pack(1, 0, kind, count, 1) if count else _HEAD.pack(0, 0, kind, 0, 1)[:12]


def _pack(kind: int, values: Sequence[bytes | memoryview]) -> bytes:
    sizes = [_SIZE.pack(len(value)) for value in values]
    return b"".join([_head(kind, len(values)), *chain.from_iterable(zip(sizes, values, strict=True))])


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        data: bytes = obj.data
        return data


class _Int8sDumper(_ArrayDumper):
    oid = 1016


class _ByteasDumper(_ArrayDumper):
    oid = 1001


class _TextsDumper(_ArrayDumper):
    oid = 1009


def register(connection: psycopg.Connection[Any]) -> None:
    for kind, dumper in ((Int8s, _Int8sDumper), (Byteas, _ByteasDumper), (Texts, _TextsDumper)):
        connection.adapters.register_dumper(kind, dumper)


def signed(number: int) -> int:
    """Return an unsigned 64-bit number as a bigint of PostgreSQL."""
    return number - (1 << 64) if number >> 63 else number


def unsigned(number: int) -> int:
    return number & 0xFFFF_FFFF_FFFF_FFFF
