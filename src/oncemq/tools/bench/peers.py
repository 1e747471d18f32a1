"""Peer processes of a benchmark: an echo, a sink, clients. Run as `python -m oncemq.tools.bench.peers`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import zmq


class Peer:
    """A process with a socket on a loopback port."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "oncemq.tools.bench.peers", kind], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def run_clients(kind: str, count: int, *arguments: str) -> list[dict[str, Any]]:
    """Run `count` clients at the same time, and return what each of them printed."""
    command = [sys.executable, "-m", "oncemq.tools.bench.peers", kind, *arguments]
    clients = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    for client in clients:
        assert client.stdout is not None
        client.stdout.readline()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("go\n")
        client.stdin.flush()
    return [json.loads(client.communicate()[0]) for client in clients]


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _reflect(kind: str) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        _print(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}")
        while True:
            frames = socket.recv_multipart()
            if kind == "echo" or len(frames) == 2:
                socket.send_multipart(frames)


def put_for(client: Any, topic: str, value: bytes, seconds: float) -> list[float]:
    """Put single messages for this time, and return the seconds of each."""
    times = []
    until = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < until:
        client.put(topic, value)
        times.append(time.perf_counter() - begin)
    return times


def _putter(url: str, topic: str, size: str, seconds: str) -> None:
    import oncemq

    with oncemq.connect(url, tries=20) as client:
        put_for(client, topic, b"v" * int(size), 0.2)
        _print("ready")
        sys.stdin.readline()
        begin = time.perf_counter()
        times = put_for(client, topic, b"v" * int(size), float(seconds))
        _print(json.dumps({"seconds": time.perf_counter() - begin, "times_s": times}))


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


def main(arguments: list[str]) -> None:
    kind, *rest = arguments
    if kind == "putter":
        _putter(*rest)
    elif kind == "worker":
        _worker(*rest)
    else:
        _reflect(kind)


if __name__ == "__main__":
    main(sys.argv[1:])
