"""Builds the column of idempotency keys, `TOPIC_ID-OFFSET`, a thousand at a time.

Formatting the numbers one by one would cost more than all other columns together. Offsets come in runs, and within a
block of a thousand all digits except the last three are the same. The last three digits come from a fixed table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

_BLOCK = 1000
_LAST_DIGITS = [b"%03d" % number for number in range(_BLOCK)]


def idempotency_keys(topic_id: int, runs: Iterable[tuple[int, int]]) -> Any:
    """Build the keys of consecutive runs of offsets, each (first, count)."""
    prefix = b"%x-" % topic_id
    #: For each block: its bytes, the length of a key, and the number of keys.
    blocks = [block for first, count in runs for block in _blocks(prefix, first, first + count)]
    ends = np.cumsum(np.repeat([width for _, width, _ in blocks], [count for _, _, count in blocks]))
    offsets = np.zeros(len(ends) + 1, dtype=np.int32)
    offsets[1:] = ends
    data = b"".join([block for block, _, _ in blocks])
    return pa.Array.from_buffers(pa.string(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _blocks(prefix: bytes, first: int, stop: int) -> Iterable[tuple[bytes, int, int]]:
    while first < stop:
        if first < _BLOCK:
            # Offsets with fewer than four digits: their keys differ in length, so each one is a block.
            key = prefix + b"%d" % first
            yield key, len(key), 1
            first += 1
            continue
        end = min(stop, first - first % _BLOCK + _BLOCK)
        shared = prefix + b"%d" % (first // _BLOCK)
        digits = _LAST_DIGITS[first % _BLOCK : first % _BLOCK + end - first]
        yield shared + shared.join(digits), len(shared) + 3, end - first
        first = end
