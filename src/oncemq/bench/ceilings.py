"""What the machine allows at the most: raw disk, bare ZeroMQ, bare codec."""

from __future__ import annotations

import os
import time
from pathlib import Path

import zmq

from oncemq.bench.peers import Peer
from oncemq.message import checksum, decode_batch, encode_batch

_FILE_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 4096


def sync_times(folder: Path, group_bytes: int, seconds: float) -> list[float]:
    """Seconds of each write + sync, over a file that was zero-filled before, as a recycled segment is."""
    path = folder / "raw-disk"
    group_bytes = min(max(_BLOCK_BYTES, -(-group_bytes // _BLOCK_BYTES) * _BLOCK_BYTES), _FILE_BYTES)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for offset in range(0, _FILE_BYTES, 1 << 20):
            os.pwrite(fd, bytes(1 << 20), offset)
        os.fsync(fd)
        return _write_and_sync(fd, os.urandom(group_bytes), seconds)
    finally:
        os.close(fd)
        path.unlink()


def _write_and_sync(fd: int, group: bytes, seconds: float) -> list[float]:
    times: list[float] = []
    offset = 0
    until = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < until or not times:
        os.pwrite(fd, group, offset)
        os.fdatasync(fd)
        times.append(time.perf_counter() - begin)
        offset = (offset + len(group)) % (_FILE_BYTES - len(group) + _BLOCK_BYTES)
        offset -= offset % _BLOCK_BYTES
    return times


def disk_bytes_per_s(folder: Path, group_bytes: int, seconds: float) -> float:
    times = sync_times(folder, group_bytes, seconds)
    return group_bytes * len(times) / sum(times)


def one_way_bytes_per_s(frame_bytes: int, seconds: float) -> float:
    """DEALER to ROUTER in another process, two frames a message, as a put travels."""
    frames = [b"h" * 60, os.urandom(max(1, frame_bytes))]
    with Peer("sink") as peer, zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 64)
        socket.connect(peer.url)
        sent = 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            for _ in range(32):
                socket.send_multipart(frames)
            sent += 32
        socket.send_multipart([b"end"])
        socket.recv_multipart()
        return sent * frame_bytes / (time.perf_counter() - begin)


def echo_times(seconds: float) -> list[float]:
    """Seconds of each round trip of a small message to another process and back."""
    frames = [b"h" * 60, b"p" * 136]
    times = []
    with Peer("echo") as peer, zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(peer.url)
        until = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < until:
            socket.send_multipart(frames)
            socket.recv_multipart()
            times.append(time.perf_counter() - begin)
    return times[len(times) // 10 :]


def encodes_per_s(value_bytes: int, count: int, seconds: float) -> float:
    values = [b"v" * value_bytes] * count
    encoded = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        checksum(encode_batch(values))
        encoded += count
    return encoded / (time.perf_counter() - begin)


def decodes_per_s(value_bytes: int, count: int, seconds: float) -> float:
    payload = encode_batch([b"v" * value_bytes] * count)
    decoded = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        checksum(payload)
        for _ in decode_batch(payload, "topic", 1, 0, 0, 0, count):
            pass
        decoded += count
    return decoded / (time.perf_counter() - begin)
