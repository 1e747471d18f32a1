"""The client processes. Each one has several connections, each connection a thread: 64 clients are 8 processes with 8
connections. They live for the whole benchmark, and are controlled by lines of JSON on their standard input.

    {"open": {"module": "redis_streams", "address": "redis://…", "connections": 8, "first": 16}}
    {"run": {"case": "single put", "queue": "q", "seconds": 0.8, "is_shared": false}}
    {"close": {}}
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from benchmarks.others import candidates
from benchmarks.others.contract import Connection
from oncemq.tools.bench import processes

VALUE = b"x" * 100
PROCESSES = 8


class Result(msgspec.Struct):
    """What one connection, one process or all of them did. Times are those of `time.perf_counter`, which all processes
    of a machine share."""

    count: int = 0
    begin_s: float = float("inf")
    end_s: float = 0.0
    #: CPU time of the clients.
    cpu_s: float = 0.0
    #: The seconds of each message, in cases with single messages.
    times_s: list[float] = []

    @property
    def rate(self) -> float:
        return self.count / (self.end_s - self.begin_s) if self.count else 0.0


def merged(results: Iterable[Result]) -> Result:
    total = Result()
    for result in results:
        total.count += result.count
        total.begin_s = min(total.begin_s, result.begin_s)
        total.end_s = max(total.end_s, result.end_s)
        total.cpu_s += result.cpu_s
        total.times_s = total.times_s + result.times_s
    return total


# In the client process.


def _put_singly(connection: Connection, queue: str, until_s: float) -> Result:
    return _repeat(lambda: connection.put(queue, VALUE), until_s)


def _make_round_trips(connection: Connection, queue: str, until_s: float) -> Result:
    def go_round() -> None:
        connection.put(queue, VALUE)
        connection.get(queue)

    return _repeat(go_round, until_s)


def _repeat(work: Callable[[], None], until_s: float) -> Result:
    times_s = []
    start_s = begin_s = time.perf_counter()
    while begin_s < until_s:
        work()
        end_s = time.perf_counter()
        times_s.append(end_s - begin_s)
        begin_s = end_s
    return Result(len(times_s), start_s, begin_s, times_s=times_s)


def _put_batches(connection: Connection, queue: str, until_s: float) -> Result:
    begin_s = time.perf_counter()
    count = connection.put_until(queue, VALUE, until_s)
    return Result(count, begin_s, time.perf_counter())


def _get_batches(connection: Connection, queue: str, until_s: float, is_shared: bool) -> Result:
    begin_s = time.perf_counter()
    consumed = connection.get_until(queue, until_s, is_shared=is_shared)
    return Result(consumed.count, begin_s, consumed.end_s)


class _Seat:
    """A connection and its thread."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._thread = ThreadPoolExecutor(1)
        self._connection: Connection | None = None

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._thread.submit(work, *arguments)

    def open(self, module: str, address: str) -> None:
        self._connection = candidates.connect(module, address)

    def run(self, case: str, queue: str, seconds: float, is_shared: bool) -> Result:
        assert self._connection is not None
        until_s = time.perf_counter() + seconds
        if case == candidates.SINGLE:
            return _put_singly(self._connection, queue, until_s)
        if case == candidates.ROUND_TRIP:
            return _make_round_trips(self._connection, own_queue(queue, self.number), until_s)
        if case == candidates.PUT:
            return _put_batches(self._connection, queue, until_s)
        return _get_batches(self._connection, queue, until_s, is_shared)

    def close(self) -> None:
        assert self._connection is not None
        self._connection.close()


def own_queue(queue: str, client: int) -> str:
    """The name of the queue that only this client uses."""
    return f"{queue}-{client}"


class _Process:
    def __init__(self) -> None:
        self._seats: list[_Seat] = []

    def open(self, module: str, address: str, connections: int, first: int) -> None:
        self._seats = [_Seat(first + index) for index in range(connections)]
        self._wait(seat.submit(seat.open, module, address) for seat in self._seats)

    def run(self, case: str, queue: str, seconds: float, is_shared: bool) -> Result:
        before_s = time.process_time()
        results = self._wait(seat.submit(seat.run, case, queue, seconds, is_shared) for seat in self._seats)
        spent_s = time.process_time() - before_s
        total = merged(results)
        total.cpu_s = spent_s
        return total

    def close(self) -> None:
        self._wait(seat.submit(seat.close) for seat in self._seats)
        self._seats = []

    def _wait(self, futures: Iterable[Future[Any]]) -> list[Any]:
        return [future.result() for future in list(futures)]


def main() -> None:
    """Do what the lines of standard input say, until it ends."""
    process = _Process()
    for line in sys.stdin:
        [(verb, arguments)] = json.loads(line).items()
        try:
            reply = msgspec.json.encode({"result": getattr(process, verb)(**arguments)})
        except Exception:
            reply = msgspec.json.encode({"error": traceback.format_exc()})
        sys.stdout.buffer.write(reply + b"\n")
        sys.stdout.buffer.flush()


# In the process of the benchmark.


class _Reply(msgspec.Struct):
    result: Result | None = None
    error: str = ""


_decode = msgspec.json.Decoder(_Reply).decode


class Clients:
    """The client processes."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.others.load"]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(PROCESSES)
        ]
        self._open: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def pin(self, cpus: Collection[int]) -> None:
        for process in self._processes:
            processes.pin(process.pid, cpus)

    def open(self, module: str, address: str, count: int) -> None:
        """Connect `count` clients: a process each, as far as there are any, and then more in each process."""
        used = min(count, PROCESSES)
        each = count // used
        self._open = self._processes[:used]
        for index, process in enumerate(self._open):
            _send(process, open={"module": module, "address": address, "connections": each, "first": index * each})
        self._receive()

    def run(self, case: str, queue: str, seconds: float, is_shared: bool) -> Result:
        """Let all open clients do the same at the same time."""
        for process in self._open:
            _send(process, run={"case": case, "queue": queue, "seconds": seconds, "is_shared": is_shared})
        return merged(result for result in self._receive() if result is not None)

    def close(self) -> None:
        """Disconnect the clients."""
        for process in self._open:
            _send(process, close={})
        self._receive()
        self._open = []

    def _receive(self) -> list[Result | None]:
        lines = [process.stdout.readline() for process in self._open if process.stdout is not None]
        replies = [_decode(line) if line else _Reply(error="a client process has ended") for line in lines]
        if error := next((reply.error for reply in replies if reply.error), ""):
            raise RuntimeError(f"a client failed:\n{error}")
        return [reply.result for reply in replies]


def _send(process: subprocess.Popen[bytes], **command: dict[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(command).encode() + b"\n")
    process.stdin.flush()


if __name__ == "__main__":
    main()
