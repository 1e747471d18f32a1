"""Simulated sockets: connections of bytes in virtual time.

The bytes of one direction arrive in order, in chunks that are cut anywhere. Nothing is lost inside a connection, but
the connection as a whole may be lost, with everything that is under way in both directions. Each side learns of that at
its own time.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncemq.protocol.frames import Frame
from tests.simulation.environment.slow_link import SlowLink

if TYPE_CHECKING:
    from tests.simulation.environment.internet import Internet
    from tests.simulation.environment.machine import Machine

#: Where Linux puts the number of acknowledged bytes into `struct tcp_info`.
_ACKED = struct.Struct("@120xQ")


def _failure(code: int) -> OSError:
    return OSError(code, os.strerror(code))


class Pipe:
    """One direction of a connection."""

    def __init__(self, internet: Internet, source: SimSocket, sink: SimSocket, bytes_per_ms: int) -> None:
        self._internet = internet
        self._world = internet.world
        self.source = source
        self.sink = sink
        self._window_bytes = self._world.stream_faults.window_bytes
        self._slow_link = SlowLink(self._world, bytes_per_ms) if bytes_per_ms else None
        #: Bytes that were written, that have arrived, and that were read.
        self._written = self.arrived = self._read = 0
        #: What is under way. An empty chunk is the end.
        self._chunks: deque[bytes] = deque()
        #: Nothing arrives before.
        self.last_ms = 0
        self.is_lost = False

    @property
    def free_bytes(self) -> int:
        return max(0, self._window_bytes - (self._written - self._read))

    def write(self, data: bytes) -> int:
        """Take what fits, or less. Return how many bytes."""
        random, faults = self._internet.random, self._world.stream_faults
        count = min(len(data), self.free_bytes)
        if random() < faults.split:
            count = 1 + int(random() * count * 0.999)
        if count < len(data):
            self._world.tally["stream: partial write"] += 1
        self._written += count
        begin = 0
        while begin < count and not self.is_lost:
            end = count
            if end - begin > 1 and random() < faults.split:
                # Most cuts are near the beginning, where the sizes are.
                end = begin + 1 + int(random() ** 3 * (count - begin - 1))
                self._world.tally["stream: split"] += 1
            self._carry(data[begin:end])
            begin = end
        return count

    def end(self) -> None:
        """The source has closed the connection: the sink reads that behind everything else."""
        self._carry(b"")

    def _carry(self, chunk: bytes) -> None:
        world, random = self._world, self._internet.random
        delay_ms = 1 + int(random() * 4)
        if self._slow_link is not None:
            delay_ms = 1 + self._slow_link.carry([chunk])
        elif not world.healed and random() < world.stream_faults.delay:
            world.tally["stream: delayed"] += 1
            delay_ms += int(random() ** 3 * 400)
        self.last_ms = max(self.last_ms, world.now_ms + delay_ms)
        self._chunks.append(chunk)
        world.at(self.last_ms, self._arrive)

    def _arrive(self) -> None:
        if self.is_lost:
            return
        until_ms = max(self.source.machine.cut_off_until_ms, self.sink.machine.cut_off_until_ms)
        if until_ms > self._world.now_ms and not self._world.healed:
            # It is sent again until it arrives.
            self._world.tally["stream: cut off"] += 1
            self._world.at(until_ms, self._arrive)
            return
        chunk = self._chunks.popleft()
        self.arrived += len(chunk)
        self.sink.take(chunk)

    def read(self, count: int) -> None:
        self._read += count
        self.source.changed()

    def lose(self) -> None:
        self.is_lost = True
        self._chunks.clear()


class SimSocket:
    """One end of a connection, or a listening socket. It never blocks."""

    def __init__(self, machine: Machine, family: int = socket.AF_INET) -> None:
        self.machine = machine
        self.family = family
        self._internet = machine.internet
        self.descriptor = -1
        self.is_closed = False
        #: (outgoing, incoming); None until it is connected.
        self.pipes: tuple[Pipe, Pipe] | None = None
        self._received = bytearray()
        self._is_at_end = False
        self._error = 0
        self._name: object = None
        #: Of a listening socket: connections that were not accepted yet.
        self.backlog: deque[SimSocket] | None = None

    # What the other side and the network do to it.

    def changed(self) -> None:
        """It may be ready now."""
        if not self.is_closed:
            self.machine.changed(self.descriptor)

    def take(self, chunk: bytes) -> None:
        assert self.pipes is not None
        if self.is_closed:
            self._internet.reset_by(self)
        elif chunk:
            self._received += chunk
            self.changed()
        else:
            self._is_at_end = True
            self.changed()

    def connected(self, pipes: tuple[Pipe, Pipe]) -> None:
        self.pipes = pipes
        self.changed()

    def fail(self, code: int) -> None:
        if not self._error:
            self._error = code
            if self._internet.random() < 0.5:
                self._received.clear()
            self.changed()

    @property
    def is_readable(self) -> bool:
        return bool(self._received or self.backlog or self._is_at_end or self._error)

    @property
    def is_writable(self) -> bool:
        return bool(self._error or (self.pipes is not None and self.pipes[0].free_bytes))

    @property
    def has_failed(self) -> bool:
        return bool(self._error)

    # What the code under test calls.

    def fileno(self) -> int:
        return -1 if self.is_closed else self.descriptor

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def setsockopt(self, level: int, option: int, value: int) -> None: ...

    def getsockopt(self, level: int, option: int, size: int = 0) -> int | bytes:
        if level == socket.SOL_SOCKET and option == socket.SO_ERROR:
            return self._error
        assert option == socket.TCP_INFO
        return _ACKED.pack(self.pipes[0].arrived if self.pipes is not None else 0)[:size]

    def getpeername(self) -> tuple[str, int]:
        if self.pipes is None or self._error:
            raise _failure(errno.ENOTCONN)
        return "192.0.2.1", self.descriptor

    def getsockname(self) -> object:
        return self._name

    def bind(self, name: object) -> None:
        self._name = name

    def listen(self, _backlog: int) -> None:
        self.backlog = deque()
        self._internet.listen(self._name, self)

    def accept(self) -> tuple[SimSocket, object]:
        if not self.backlog:
            raise BlockingIOError
        if self._internet.flip(0.02):
            self._internet.world.tally["stream: no descriptor left"] += 1
            raise _failure(errno.EMFILE)
        accepted = self.backlog.popleft()
        accepted.descriptor = self.machine.add(accepted)
        return accepted, None

    def connect_ex(self, name: object) -> int:
        return self._internet.connect(self, name)

    def send(self, data: Frame) -> int:
        if self._error:
            raise _failure(self._error)
        if self.pipes is None or not self.pipes[0].free_bytes:
            raise BlockingIOError
        count = self.pipes[0].write(bytes(data))
        self._internet.written(self)
        return count

    def sendmsg(self, buffers: Sequence[Frame]) -> int:
        assert len(buffers) <= self._internet.buffers_max, "EINVAL"
        return self.send(b"".join(buffers))

    def recv(self, size: int) -> bytes:
        if not self._received:
            if self._error:
                raise _failure(self._error)
            if self._is_at_end:
                return b""
            raise BlockingIOError
        assert self.pipes is not None
        random = self._internet.random
        count = min(size, len(self._received))
        if random() < self._internet.world.stream_faults.split:
            count = 1 + int(random() * count * 0.999)
        data = bytes(self._received[:count])
        del self._received[:count]
        self.pipes[1].read(count)
        return data

    def recv_into(self, target: memoryview) -> int:
        data = self.recv(len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.machine.remove(self.descriptor)
        if self.backlog is not None:
            self._internet.listen(self._name, None)
            for waiting in self.backlog:
                waiting.is_closed = True
                self._internet.reset_by(waiting)
        elif self.pipes is not None and not self._error:
            if self._received or self._internet.flip(0.3):
                self._internet.reset_by(self)
            else:
                self.pipes[0].end()


class Waker:
    """One end of a socket pair that only wakes a thread."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.descriptor = machine.add(self)
        self.other: Waker | None = None
        self.is_readable = False
        self.is_writable = True
        self.has_failed = False

    def fileno(self) -> int:
        return self.descriptor

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def send(self, data: bytes) -> int:
        if self.other is None or self.descriptor < 0:
            raise _failure(errno.EBADF)
        self.other.is_readable = True
        self._machine.changed(self.other.descriptor)
        return len(data)

    def recv(self, _size: int) -> bytes:
        if not self.is_readable:
            raise BlockingIOError
        self.is_readable = False
        return b"\0"

    def close(self) -> None:
        if self.descriptor >= 0:
            self._machine.remove(self.descriptor)
            self.descriptor = -1
