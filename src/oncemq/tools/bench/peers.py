"""Peer processes of a benchmark: an echo, a sink, clients, idle connections. Run as
`python -m oncemq.tools.bench.peers`. What a peer prints first says that it is ready."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zmq

from oncemq.config.addresses import is_stream, split_address, stream_place, unix_path
from oncemq.protocol.stream import encode_opening
from oncemq.tools.bench.processes import allow_descriptors, pin

_SIZE = struct.Struct("<I")
_END_BYTES = 3
_BUFFER_BYTES = 16 * 1024 * 1024
_STORE_BYTES = 16 * 1024 * 1024
_BLOCK = b"b" * 4096


class Peer:
    """A process of this module that runs until it is closed."""

    def __init__(self, kind: str, *arguments: str, cpus: Collection[int] = ()) -> None:
        self._process = subprocess.Popen([*_COMMAND, kind, *arguments], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        #: The line that it printed: where it listens, for an echo or a sink.
        self.address = self._process.stdout.readline().strip()
        if cpus:
            pin(self._process.pid, cpus)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


_COMMAND = (sys.executable, "-m", "oncemq.tools.bench.peers")


def run_clients(
    kind: str, count: int, *arguments: str, on_go: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Run `count` clients at the same time, and return what each of them printed. `on_go` is called when all are
    ready."""
    clients = [
        subprocess.Popen([*_COMMAND, kind, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for client in clients:
        assert client.stdout is not None
        client.stdout.readline()
    on_go()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("go\n")
        client.stdin.flush()
    return [json.loads(client.communicate()[0]) for client in clients]


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# Echo and sink.


class _Store:
    """A file that is filled with zeros first, as a segment is. Each call writes and syncs its next block."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._descriptor, bytes(_STORE_BYTES), 0)
        os.fsync(self._descriptor)
        self._at = 0

    def __call__(self) -> None:
        os.pwrite(self._descriptor, _BLOCK, self._at)
        os.fdatasync(self._descriptor)
        self._at = (self._at + len(_BLOCK)) % _STORE_BYTES


def _nothing() -> None:
    pass


def _zeromq_peer(kind: str, where: str, path: str = "") -> None:
    store = _Store(path) if path else _nothing
    with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
        if where.startswith("/"):
            address = f"ipc://{where}"
            server.bind(address)
        else:
            address = f"tcp://{where}:{server.bind_to_random_port(f'tcp://{where}')}"
        _print(address)
        while True:
            frames = server.recv_multipart()
            store()
            if kind == "echo" or len(frames) == 2:
                server.send_multipart(frames)


def _stream_peer(kind: str, where: str, path: str = "") -> None:
    store = _Store(path) if path else _nothing
    if where.startswith("/"):
        server = socket.socket(socket.AF_UNIX)
        server.bind(where)
        server.listen()
        _print(where)
    else:
        server = socket.create_server((where, 0))
        _print(f"{where}:{server.getsockname()[1]}")
    connection, _ = server.accept()
    if not where.startswith("/"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    if kind == "echo":
        _echo(connection, buffer, store)
    else:
        _sink(connection, buffer)


def _echo(connection: socket.socket, buffer: memoryview, store: Callable[[], None]) -> None:
    """Store something, and send each message back. The client waits for it, so a receive call never gets parts of
    two."""
    while got := connection.recv_into(buffer):
        while got < _SIZE.size or got < _SIZE.size + _SIZE.unpack_from(buffer)[0]:
            got += connection.recv_into(buffer[got:])
        store()
        connection.sendall(buffer[:got])


def _sink(connection: socket.socket, buffer: memoryview) -> None:
    """Receive messages, and send only the end back."""
    head = memoryview(bytearray(_SIZE.size))
    while connection.recv_into(head, 0, socket.MSG_WAITALL):
        (size,) = _SIZE.unpack(head)
        connection.recv_into(buffer, size, socket.MSG_WAITALL)
        if size == _END_BYTES:
            connection.sendall(bytes(head) + bytes(buffer[:size]))


# Clients.


def put_for(client: Any, topic: str, value: bytes, seconds: float) -> list[float]:
    """Put single messages for this time, and return the seconds of each."""
    times = []
    until = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < until:
        client.put(topic, value)
        times.append(time.perf_counter() - begin)
    return times


def _putter(url: str, topic: str, size: str, seconds: str, connections: str = "1") -> None:
    """Put single messages with each of several connections, which have a thread each."""
    import oncemq

    count, value = int(connections), b"v" * int(size)
    clients = [oncemq.connect(url, tries=20) for _ in range(count)]
    with ThreadPoolExecutor(count) as threads:

        def put_each(each_s: float) -> list[float]:
            found = list(threads.map(lambda client: put_for(client, topic, value, each_s), clients))
            return [time_s for times_s in found for time_s in times_s]

        put_each(0.2)
        _print("ready")
        sys.stdin.readline()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        times = put_each(float(seconds))
        spent = {"seconds": time.perf_counter() - begin, "cpu_s": time.process_time() - begin_cpu}
    _print(json.dumps({**spent, "times_s": times}))
    for client in clients:
        client.close()


def _worker(url: str, topic: str, subscriber: str) -> None:
    """Ack each task. Ends when no task has arrived for one second."""
    import oncemq

    with oncemq.connect(url, tries=20) as client, client.shared_subscription(topic, subscriber) as shared:
        _print("ready")
        sys.stdin.readline()
        begin_s = end_s = time.monotonic()
        count = 0
        for task in shared.tasks(timeout_s=1.0):
            task.ack()
            count += 1
            if not count % 100:
                end_s = time.monotonic()
        shared.flush()
    _print(json.dumps({"count": count, "begin_s": begin_s, "end_s": end_s}))


# Idle connections.

#: What a ZeroMQ client sends first: the greeting without authentication, and the READY command of a DEALER socket
#: (ZMTP 3.0).
_ZEROMQ_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(b"DEALER")) + b"DEALER"
_ZEROMQ_OPENING = _ZEROMQ_GREETING + bytes([4, len(_READY)]) + _READY
#: The opening of the broker has at least this many bytes.
_OPENING_BYTES_MIN = 12


def _idle(url: str, count: str) -> None:
    """Open connections, and keep them without a request."""
    allow_descriptors(int(count) + 100)
    opening = encode_opening({}) if is_stream(url) else _ZEROMQ_OPENING
    connections = []
    for _ in range(int(count)):
        connection = _connect(url)
        connection.sendall(opening)
        connection.recv(_OPENING_BYTES_MIN)
        connections.append(connection)
    _print("ready")
    time.sleep(3600)


def _connect(url: str) -> socket.socket:
    place = stream_place(url) if is_stream(url) else unix_path(url) or split_address(url)
    if isinstance(place, tuple):
        return socket.create_connection(place)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    return connection


_KINDS: dict[str, Callable[..., None]] = {
    "zeromq-peer": _zeromq_peer,
    "stream-peer": _stream_peer,
    "putter": _putter,
    "worker": _worker,
    "idle": _idle,
}


def main(arguments: list[str]) -> None:
    kind, *rest = arguments
    _KINDS[kind](*rest)


if __name__ == "__main__":
    main(sys.argv[1:])
