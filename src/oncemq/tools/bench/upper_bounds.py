"""Upper bounds of the machine: the raw disk, the page cache and the codec alone. transports.py has the transport.

Each measures for a short time when it is called, so that a case can alternate with its bounds: on a noisy machine only
figures of the same moment can be compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

from oncemq.protocol.batch import checksum, decode_batch, encode_batch

_FILE_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 4096


class RawDisk:
    """Writes and syncs in a file that was filled with zeros before, as a recycled segment is, and reads of it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "raw-disk"
        self._offset = 0
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        for offset in range(0, _FILE_BYTES, 1 << 20):
            os.pwrite(self._fd, bytes(1 << 20), offset)
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)
        self._path.unlink()

    def times(self, group_bytes: int, seconds: float) -> list[float]:
        """Return the seconds of each write and sync of a group, which is padded to whole blocks."""
        blocks = min(max(1, -(-group_bytes // _BLOCK_BYTES)), _FILE_BYTES // _BLOCK_BYTES)
        group = os.urandom(blocks * _BLOCK_BYTES)
        times: list[float] = []
        until = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < until or not times:
            if self._offset + len(group) > _FILE_BYTES:
                self._offset = 0
            os.pwrite(self._fd, group, self._offset)
            os.fdatasync(self._fd)
            times.append(time.perf_counter() - begin)
            self._offset += len(group)
        return times

    def read_cached(self, chunk_bytes: int, seconds: float) -> tuple[int, float]:
        """Read chunks from the page cache, as a broker reads messages that were put a moment ago. Returns the number
        of bytes, and the seconds."""
        chunk_bytes = min(chunk_bytes, _FILE_BYTES)
        offsets = cycle(range(0, _FILE_BYTES - chunk_bytes + 1, chunk_bytes))
        return repeat_for(lambda: len(os.pread(self._fd, chunk_bytes, next(offsets))), seconds)


def repeat_for(work: Callable[[], int], seconds: float) -> tuple[int, float]:
    """Repeat `work` for this time. Returns the amount of work, and the seconds."""
    done = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        done += work()
    return done, time.perf_counter() - begin


def encode(value_bytes: int, count: int) -> Callable[[], int]:
    """Return a function that encodes a batch."""
    values = [b"v" * value_bytes] * count

    def work() -> int:
        checksum(encode_batch(values))
        return count

    return work


def decode(value_bytes: int, count: int) -> Callable[[], int]:
    """Return a function that decodes a batch."""
    payload = encode_batch([b"v" * value_bytes] * count)

    def work() -> int:
        checksum(payload)
        for _ in decode_batch(payload, "topic", 1, 0, 0, 0, count):
            pass
        return count

    return work
