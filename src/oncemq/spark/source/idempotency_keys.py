"""The column of idempotency keys, `TOPIC_ID-OFFSET`, a thousand at a time.

Formatting numbers one by one would cost more than all other columns together. But offsets come in runs: of a
thousand in a row, all but the last three digits are the same, and those three are always the same thousand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

_BLOCK = 1000
_LAST_DIGITS = [b"%03d" % number for number in range(_BLOCK)]


def idempotency_keys(topic_id: int, runs: Iterable[tuple[int, int]]) -> Any:
    """For runs of offsets, each (first, count), one after the other."""
    prefix = b"%x-" % topic_id
    #: Of each block: its bytes, the length of a key, how many there are.
    blocks = [block for first, count in runs for block in _blocks(prefix, first, first + count)]
    ends = np.cumsum(np.repeat([width for _, width, _ in blocks], [count for _, _, count in blocks]))
    offsets = np.zeros(len(ends) + 1, dtype=np.int32)
    offsets[1:] = ends
    data = b"".join([block for block, _, _ in blocks])
    return pa.Array.from_buffers(pa.string(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _blocks(prefix: bytes, first: int, stop: int) -> Iterable[tuple[bytes, int, int]]:
    while first < stop:
        if first < _BLOCK:
            # Shorter than three digits: these few have lengths of their own.
            key = prefix + b"%d" % first
            yield key, len(key), 1
            first += 1
            continue
        until = min(stop, first - first % _BLOCK + _BLOCK)
        yield _block(prefix + b"%d" % (first // _BLOCK), first % _BLOCK, until - first)
        first = until


def _block(beginning: bytes, first: int, count: int) -> tuple[bytes, int, int]:
    keys = beginning + beginning.join(_LAST_DIGITS[first : first + count])
    return keys, len(beginning) + 3, count
