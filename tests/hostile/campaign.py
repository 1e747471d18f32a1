"""Measures what one hostile peer does to a listener: the memory of its process, and the latency of another peer."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import zmq

from oncemq.testing.broker_process import BrokerProcess, free_port
from tests.hostile import attacks

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MIB = 2**20
_CONTENT = b"x" * (4 * _MIB)
_LARGE_MESSAGES = 20
_FEED_BYTES = 64 * 1024
_TIMEOUT_MS = 30_000
_WARM_UP_S = 1.0
_WATCH_S = 0.005


class Case(NamedTuple):
    name: str
    #: The process whose memory is measured: "broker" or "gateway".
    process: str
    #: Which peer measures its latency: "native", "text", "push" or "feed".
    other: str
    attack: Callable[..., None]
    arguments: tuple[Any, ...]


class Figures(NamedTuple):
    name: str
    idle_mib: float
    peak_mib: float
    p50_ms: float
    p99_ms: float
    attacked_p50_ms: float
    attacked_p99_ms: float


class Servers:
    """A broker with text and push gateways."""

    def __init__(self, folder: Path) -> None:
        text, push = free_port(), free_port()
        self.text = f"tcp://127.0.0.1:{text}"
        self.publish, self.feed, self.acks = (f"tcp://127.0.0.1:{push + number}" for number in range(3))
        self.ipc = f"ipc://{folder}/broker.sock"
        flags = (f"--listen={self.ipc}", f"--text=127.0.0.1:{text}", f"--push=127.0.0.1:{push}")
        self.broker = BrokerProcess(folder / "data", *flags)

    def start(self) -> None:
        self.broker.start()
        with self.broker.connect() as client:
            for topic in ("large", "victim"):
                client.create_topic(topic)
            client.subscribe("large", "hostile")
            for _ in range(_LARGE_MESSAGES):
                client.put("large", _CONTENT)
        with _asking(self.text) as ask:
            ask([b"sub victim v"])
        with _asking(self.acks) as ask:
            ask(_publish("victim", b"x"))

    @property
    def gateway_pid(self) -> int:
        children = Path(f"/proc/{self.broker.pid}/task/{self.broker.pid}/children")
        found = [int(each) for task in children.parent.parent.iterdir() for each in _children(task)]
        assert found, "there is no gateway process"
        return found[0]

    def cases(self) -> list[Case]:
        read = attacks.read_request("large", 8 * _MIB)
        get = [b"", b"get large hostile"]
        large, tiny, unread = attacks.unfinished, attacks.tiny_frames, attacks.unread_replies
        native, acks = self.broker.url, self.acks
        return [
            Case("native: endless message", "broker", "native", large, (native, "DEALER", _MIB)),
            Case("native: tiny frames", "broker", "native", tiny, (native, "DEALER")),
            Case("native: unread replies", "broker", "native", unread, (native, "DEALER", read)),
            Case("native ipc: endless message", "broker", "native", large, (self.ipc, "DEALER", _MIB)),
            Case("native ipc: tiny frames", "broker", "native", tiny, (self.ipc, "DEALER")),
            Case("native ipc: unread replies", "broker", "native", unread, (self.ipc, "DEALER", read)),
            Case("text: endless message", "gateway", "text", large, (self.text, "REQ", _MIB)),
            Case("text: tiny frames", "gateway", "text", tiny, (self.text, "REQ")),
            Case("text: unread replies", "gateway", "text", unread, (self.text, "REQ", get)),
            Case("push publish: endless message", "gateway", "push", large, (self.publish, "PUB", _MIB)),
            Case("push publish: tiny frames", "gateway", "push", tiny, (self.publish, "PUB")),
            Case("push acks: endless message", "gateway", "push", large, (acks, "REQ", _MIB)),
            Case("push acks: tiny frames", "gateway", "push", tiny, (acks, "REQ")),
            Case(
                "push acks: unread replies", "gateway", "push", unread, (acks, "REQ", [b"", *_publish("large", b"x")])
            ),
            Case("push feed: endless message", "gateway", "push", large, (self.feed, "SUB", 1000)),
            Case("push feed: tiny frames", "gateway", "push", tiny, (self.feed, "SUB")),
            Case(
                "push feed: unread feed",
                "gateway",
                "feed",
                attacks.unread_feed,
                (self.feed, "SUB", [b"victim"]),
            ),
        ]

    @contextmanager
    def operation(self, other: str) -> Iterator[Callable[[], object]]:
        """An operation of a peer that behaves."""
        if other == "native":
            with self.broker.connect(timeout_s=30.0) as client:
                yield lambda: client.put("victim", b"x" * 100)
        elif other == "text":
            with _asking(self.text) as ask:
                yield lambda: ask([b"put victim " + b"x" * 100])
        else:
            content = b"x" * (_FEED_BYTES if other == "feed" else 100)
            with _asking(self.acks) as ask:
                yield lambda: ask(_publish("victim", content))


def _children(task: Path) -> list[str]:
    return (task / "children").read_text(encoding="ascii").split()


def _publish(topic: str, content: bytes) -> list[bytes]:
    return [json.dumps({"type": "publish", "origin": os.urandom(8).hex(), "topic": topic, "id": "1"}).encode(), content]


@contextmanager
def _asking(url: str) -> Iterator[Callable[[list[bytes]], bytes]]:
    """A REQ socket, as a function from requests to replies."""
    socket: Any = zmq.Context.instance().socket(zmq.REQ)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, _TIMEOUT_MS)
    socket.connect(url)

    def ask(request: list[bytes]) -> bytes:
        socket.send_multipart(request)
        reply: bytes = socket.recv()
        return reply

    yield ask
    socket.close(0)


def measure(servers: Servers, case: Case, seconds: float) -> Figures:
    pid = servers.broker.pid if case.process == "broker" else servers.gateway_pid
    with servers.operation(case.other) as operation:
        _latencies(operation, _WARM_UP_S)
        idle = _resident_bytes(pid)
        quiet = _latencies(operation, seconds)
        with _PeakMemory(pid) as memory:
            attacker = attacks.start(case.attack, *case.arguments)
            try:
                attacked = _latencies(operation, seconds)
            finally:
                attacker.kill()
                attacker.join()
    return Figures(case.name, idle / _MIB, memory.peak_bytes / _MIB, *_quantiles(quiet), *_quantiles(attacked))


class _PeakMemory:
    """Watches the memory of a process."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_WATCH_S):
            self.peak_bytes = max(self.peak_bytes, _resident_bytes(self._pid))


def _latencies(operation: Callable[[], object], seconds: float) -> list[float]:
    found: list[float] = []
    until_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < until_s:
        operation()
        found.append(time.perf_counter() - began_s)
    return found


def _quantiles(latencies_s: list[float]) -> tuple[float, float]:
    if len(latencies_s) < 2:
        return 1000 * latencies_s[0], 1000 * latencies_s[0]
    hundredths = statistics.quantiles(latencies_s, n=100, method="inclusive")
    return 1000 * hundredths[49], 1000 * hundredths[98]


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def run(seconds: float, only: str, show: Callable[[Figures], None]) -> None:
    """Measure each case whose name starts with `only`."""
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(Path(folder))
        try:
            servers.start()
            for case in servers.cases():
                if case.name.startswith(only):
                    show(measure(servers, case, seconds))
        finally:
            servers.broker.stop()
