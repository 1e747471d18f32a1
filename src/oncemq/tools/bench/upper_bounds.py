"""Upper bounds of the machine: the raw disk, ZeroMQ alone, and the codec alone.

Each measures for a short time when it is called, so that a case can alternate with its bounds: on a noisy machine only
figures of the same moment can be compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from oncemq.protocol.batch import checksum, decode_batch, encode_batch
from oncemq.tools.bench.peers import Peer

_FILE_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 4096


class RawDisk:
    """Writes and syncs in a file that was filled with zeros before, as a recycled segment is."""

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


class Wire:
    """A DEALER socket that is connected to a ROUTER socket in another process."""

    def __init__(self, kind: str) -> None:
        self._peer = Peer(kind)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 64)
        self._socket.connect(self._peer.url)
        self._socket.send_multipart([b"end"])
        self._socket.recv_multipart()

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()
        self._peer.close()

    def one_way(self, frame_bytes: int, seconds: float) -> tuple[int, float]:
        """Send messages of two frames, as a put. Returns their number, and the seconds until all had arrived."""
        frames = [b"h" * 60, os.urandom(max(1, frame_bytes))]
        sent = 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            for _ in range(8):
                self._socket.send_multipart(frames)
            sent += 8
        self._socket.send_multipart([b"end"])
        self._socket.recv_multipart()
        return sent, time.perf_counter() - begin

    def echo_times(self, seconds: float) -> list[float]:
        """Return the seconds of each round trip of a small message."""
        frames = [b"h" * 60, b"p" * 136]
        times = []
        until = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < until:
            self._socket.send_multipart(frames)
            self._socket.recv_multipart()
            times.append(time.perf_counter() - begin)
        return times


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
