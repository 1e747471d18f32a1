"""The thread that watches the connections of all ZeroMQ listeners of the process.

libzmq tells it of each new and each closed connection. While there are connections, it asks many times a second how
much memory is in use, which costs microseconds. It measures the connections when that has grown, and otherwise once in
a while. Without connections it sleeps.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import zmq

from oncemq.net import kernel, policy
from oncemq.net.connection import Connection
from oncemq.net.counters import Counters
from oncemq.net.descriptors import connection_descriptors_max
from oncemq.net.listener import Listener
from oncemq.net.policy import Cut, ListenerLimits, Memory

log = logging.getLogger("oncemq.net")

#: How often the memory is checked, while it grows and otherwise, and how much it may grow before connections are
#: measured. Checking is fast unless the memory is very fragmented; it takes at most a twentieth of the time.
_CHECK_MS = 25
_CHECK_SOON_MS = 5
_CHECK_SHARE = 20
_GROWTH_BYTES = 8 * 2**20
#: If the memory has grown, this is how often and in which distance the queues of Unix sockets are looked at: they are
#: often empty for a moment, even if a peer sends all the time.
_LOOKS = 8
_LOOK_EVERY_S = 0.0005
#: How often connections are measured in any case. Measuring takes at most a tenth of the time if the memory grows, and
#: a hundredth otherwise.
_MEASURE_EVERY_S = 1.0
#: How long memory takes at most to be free after a peer was disconnected.
_CALM_S = 0.1
_TRIM_AFTER_S = 0.3
#: A closed connection that had less than this is not worth to return memory to the system.
_SMALL_BYTES = 2**20
_EVENTS = int(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED)
_EVENT = struct.Struct("=Hi")
_TURN_EVENTS = 1000
_STOP_S = 10.0


class Guard:
    """Watches listeners while there are any. `Guard.here()` is the one of this process."""

    _here: ClassVar[Guard | None] = None
    _here_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._added: list[tuple[Any, Listener]] = []
        self._thread: threading.Thread | None = None
        self._woken, self._wake = socket.socketpair()
        self._numbers = itertools.count()
        self._listeners: dict[Any, Listener] = {}
        self._descriptors_max = connection_descriptors_max()
        #: The memory of the process without what its peers cause: as allocated, and as the system counts it.
        self._used_baseline = kernel.used_bytes()
        self._resident_baseline = kernel.resident_bytes()
        self._own_growth = 0
        #: At the last measurement.
        self._measured_at_bytes = self._used_baseline
        self._accounted = 0
        self._measured_s = self._measuring_took_s = 0.0
        self._is_growing = False
        self._check_at_s = 0.0
        #: Memory is about to be freed, unless it has fallen already.
        self._calm_until_s = 0.0
        self._cut_at_bytes = 0
        #: The least unexplained memory since Unix sockets were disconnected, until it is known whether that has helped.
        self._least_unexplained: int | None = None
        self._trim_at_s: float | None = None

    @classmethod
    def here(cls) -> Guard:
        with cls._here_lock:
            if cls._here is None or cls._here._pid != os.getpid():
                cls._here = Guard()
            return cls._here

    # The threads of the sockets.

    def watch(self, watched: Any, name: str, limits: ListenerLimits, counters: Counters) -> Listener:
        """Watch the connections of a socket, which is not bound yet. `name` is what log lines call it."""
        listener = Listener(name, limits, counters)
        address = f"inproc://oncemq-guard-{os.getpid()}-{next(self._numbers)}"
        watched.monitor(address, _EVENTS)
        news = watched.context.socket(zmq.PAIR)
        # With a limit, the thread of libzmq would wait for this one.
        news.setsockopt(zmq.RCVHWM, 0)
        news.setsockopt(zmq.LINGER, 0)
        news.connect(address)
        with self._lock:
            self._added.append((news, listener))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="oncemq-guard", daemon=True)
                self._thread.start()
        self._wake.send(b"\0")
        return listener

    def end(self, watched: Any, listener: Listener) -> None:
        """Stop watching a socket, before it is closed."""
        watched.monitor(None, 0)
        listener.ended.wait(_STOP_S)

    @contextmanager
    def own_growth(self) -> Iterator[None]:
        """Memory that the process takes in this block is no concern of its peers."""
        with self._lock:
            self._own_growth += 1
        try:
            yield
        finally:
            with self._lock:
                self._own_growth -= 1
                self._used_baseline, self._resident_baseline = kernel.used_bytes(), kernel.resident_bytes()

    # The thread of the guard.

    def _run(self) -> None:
        while self._adopt():
            try:
                self._wait()
                self._check(time.monotonic())
            except Exception:
                log.exception("the guard of the connections failed, and continues")
                time.sleep(_CALM_S)

    def _adopt(self) -> bool:
        """Start to watch what was added. Return False if nothing is left to watch: then the thread ends."""
        with self._lock:
            self._listeners.update(self._added)
            self._added.clear()
            if not self._listeners:
                self._thread = None
            return bool(self._listeners)

    def _wait(self) -> None:
        """Wait for news of connections, or until the memory must be checked."""
        polled: list[tuple[Any, int]] = [(news, int(zmq.POLLIN)) for news in self._listeners]
        polled.append((self._woken.fileno(), int(zmq.POLLIN)))
        has_connections = kernel.IS_MEASURED and not all(each.is_empty for each in self._listeners.values())
        check_ms = _CHECK_SOON_MS if self._is_growing else _CHECK_MS
        for ready, _ in zmq.zmq_poll(polled, check_ms if has_connections else -1):
            if isinstance(ready, int):
                self._woken.recv(4096)
            else:
                self._read_news(ready, self._listeners[ready])

    def _read_news(self, news: Any, listener: Listener) -> None:
        for _ in range(_TURN_EVENTS):
            try:
                event, descriptor = _EVENT.unpack(news.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                return
            if event == zmq.EVENT_ACCEPTED:
                self._accept(listener, descriptor)
            elif event == zmq.EVENT_MONITOR_STOPPED:
                news.close(0)
                del self._listeners[news]
                listener.ended.set()
                return
            else:
                connection = listener.close(descriptor)
                if connection is not None:
                    self._note_closed(connection)

    def _note_closed(self, connection: Connection) -> None:
        # What libzmq held for a Unix socket is not known.
        has_much = self._measured_at_bytes - self._used_baseline > policy.EVIDENT_BYTES_MAX
        if connection.unprocessed + connection.unread > _SMALL_BYTES or (connection.is_unix and has_much):
            self._trim_at_s = time.monotonic() + _TRIM_AFTER_S

    def _accept(self, listener: Listener, descriptor: int) -> None:
        connection = listener.accept(descriptor)
        if len(listener.connections) > listener.limits.connections_max:
            self._cut(listener, Cut(connection, "connections_refused", "there are too many connections"))
        elif descriptor >= self._descriptors_max:
            why = "the process has too many open files (ulimit -n)"
            self._cut(listener, Cut(connection, "connections_refused", why))

    def _check(self, now_s: float) -> None:
        if now_s < self._check_at_s:
            return
        started_s = time.thread_time()
        used, resident = kernel.used_bytes(), kernel.resident_bytes()
        self._check_at_s = now_s + _CHECK_SHARE * (time.thread_time() - started_s)
        self._note_fall(used, resident)
        growth = min(used - self._used_baseline, resident - self._resident_baseline)
        self._note_relief(growth)
        self._is_growing = used - self._measured_at_bytes > _GROWTH_BYTES
        pause_s = 10 * self._measuring_took_s
        if not self._is_growing:
            pause_s = max(_MEASURE_EVERY_S, 10 * pause_s)
        if now_s - self._measured_s >= pause_s:
            started_s = time.thread_time()
            self._measure(now_s, used, growth)
            self._measured_at_bytes = used
            self._measured_s = now_s
            self._measuring_took_s = time.thread_time() - started_s
        if self._trim_at_s is not None and now_s >= self._trim_at_s:
            self._trim_at_s = None
            kernel.return_free_memory()

    def _note_fall(self, used: int, resident: int) -> None:
        """What is in use without peers is never more than what is in use."""
        with self._lock:
            self._used_baseline = min(self._used_baseline, used)
            self._resident_baseline = min(self._resident_baseline, resident)
        self._measured_at_bytes = min(self._measured_at_bytes, used)
        if used < self._cut_at_bytes - _GROWTH_BYTES:
            self._calm_until_s = 0.0

    def _measure(self, now_s: float, used: int, growth: int) -> None:
        """Measure all connections, and end those that are over a limit."""
        if not kernel.IS_MEASURED:
            return
        connections: list[Connection] = []
        for listener in self._listeners.values():
            found = listener.measure(now_s, used)
            self._cut_all(listener, policy.over_limit(found, listener.limits, now_s), used)
            self._cut_all(listener, policy.over_total(found, listener.limits, now_s), used)
            connections += (each for each in found if not each.is_cut)
        if self._is_growing:
            _look_at_queues([each for each in connections if each.is_unix])
        self._accounted = sum(each.unprocessed + each.unread for each in connections)
        self._accounted += sum(listener.held_bytes() for listener in self._listeners.values())
        unexplained = growth - self._accounted
        if unexplained > policy.EVIDENT_BYTES_MAX and now_s >= self._calm_until_s and not self._own_growth:
            unexplained_max = policy.unexplained_bytes_max(connections, now_s)
            self._relieve(connections, Memory(growth, unexplained, used, unexplained_max), now_s)

    def _relieve(self, connections: list[Connection], memory: Memory, now_s: float) -> None:
        cuts = policy.under_pressure(connections, memory, _peek, now_s)
        if memory.is_short and not cuts and not policy.can_explain(connections, memory.unexplained):
            cuts = self._look_further(connections, memory, now_s)
        for listener in self._listeners.values():
            self._cut_all(listener, [cut for cut in cuts if listener.has(cut.connection)], memory.used)

    def _look_further(self, connections: list[Connection], memory: Memory, now_s: float) -> list[Cut]:
        """Return the connections that may hold memory that nothing explains. If there are none, or if it did not help
        to end them, the process needs it for something else."""
        cuts = policy.uncounted(connections, now_s) if self._least_unexplained is None else []
        self._least_unexplained = memory.unexplained if cuts else None
        if not cuts:
            with self._lock:
                self._used_baseline += memory.unexplained
                self._resident_baseline += memory.unexplained
        return cuts

    def _note_relief(self, growth: int) -> None:
        if self._least_unexplained is not None:
            self._least_unexplained = min(self._least_unexplained, growth - self._accounted)
            if self._least_unexplained < policy.UNEXPLAINED_BYTES_MAX:
                self._least_unexplained = None

    def _cut_all(self, listener: Listener, cuts: list[Cut], used: int) -> None:
        for cut in cuts:
            if not cut.connection.is_cut:
                self._cut(listener, cut)
                self._calm_until_s = time.monotonic() + _CALM_S
                self._cut_at_bytes = used
                self._trim_at_s = time.monotonic() + _TRIM_AFTER_S

    def _cut(self, listener: Listener, cut: Cut) -> None:
        if cut.connection.is_open:
            listener.cut(cut.connection, cut.kind, cut.why)
        else:
            listener.forget(cut.connection)


def _look_at_queues(connections: list[Connection]) -> None:
    if connections:
        for _ in range(_LOOKS):
            time.sleep(_LOOK_EVERY_S)
            for each in connections:
                each.look_at_queue()


def _peek(connection: Connection) -> bytes:
    return kernel.peek(connection.descriptor, policy.PEEK_BYTES) if connection.is_open else b""
