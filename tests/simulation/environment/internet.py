"""Connects simulated machines by streams of bytes, and interrupts them."""

from __future__ import annotations

import errno

from tests.simulation.environment.sockets import Pipe, SimSocket
from tests.simulation.environment.world import World

#: When the system of a side finds out by itself that the other side is gone.
_KEEPALIVE_MS = 2_500
#: Maximum number of buffers of one call.
BUFFERS_MAX = 3


class Internet:
    buffers_max = BUFFERS_MAX

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random("internet").random
        self._listening: dict[object, SimSocket] = {}
        #: The client's ends of the connections that are not lost.
        self._connected: dict[SimSocket, None] = {}

    def flip(self, probability: float) -> bool:
        """Return True with this probability, while there are faults."""
        return not self.world.healed and self.random() < probability

    # Connecting.

    def listen(self, name: object, listening: SimSocket | None) -> None:
        if listening is None:
            self._listening.pop(name, None)
        else:
            assert name not in self._listening, "EADDRINUSE"
            self._listening[name] = listening

    def connect(self, client: SimSocket, name: object) -> int:
        if name not in self._listening and self.random() < 0.3:
            # Inside a machine, there is no delay.
            self.world.tally["stream: refused"] += 1
            return errno.ECONNREFUSED
        self.world.after(1 + int(self.random() * 3), lambda: self._reach(client, name))
        return errno.EINPROGRESS

    def _reach(self, client: SimSocket, name: object) -> None:
        """The first packet of a connection arrives, unless the client is cut off: then it is sent again."""
        world = self.world
        if client.is_closed:
            return
        until_ms = client.machine.cut_off_until_ms
        if until_ms > world.now_ms and not world.healed:
            world.at(until_ms, lambda: self._reach(client, name))
            return
        listening = self._listening.get(name)
        if listening is None or self.flip(world.stream_faults.refusal):
            world.tally["stream: refused"] += 1
            client.fail(errno.ECONNREFUSED)
            return
        world.tally["stream: connected"] += 1
        server = SimSocket(listening.machine)
        bytes_per_ms = client.machine.bytes_per_ms
        there, back = Pipe(self, client, server, bytes_per_ms), Pipe(self, server, client, bytes_per_ms)
        server.connected((back, there))
        assert listening.backlog is not None
        listening.backlog.append(server)
        self._connected[client] = None
        established_ms = back.last_ms = world.now_ms + 1 + int(self.random() * 3)
        world.at(established_ms, lambda: self._established(client, (there, back)))
        listening.changed()

    def _established(self, client: SimSocket, pipes: tuple[Pipe, Pipe]) -> None:
        if client.is_closed:
            client.pipes = pipes
            self.reset_by(client)
        else:
            client.connected(pipes)

    # Resets.

    def reset_somebody(self) -> None:
        if self._connected:
            clients = list(self._connected)
            self._reset(clients[int(self.random() * len(clients))])

    def written(self, source: SimSocket) -> None:
        """Sometimes the connection is lost while the bytes are under way."""
        if self.flip(self.world.stream_faults.reset_after_write):
            self.world.after(int(self.random() * 5), lambda: self._reset(source))

    def _reset(self, one: SimSocket) -> None:
        """Lose a connection. Each side learns of it at its own time."""
        if one.pipes is None or one.pipes[0].is_lost:
            return
        self.world.tally["stream: reset"] += 1
        other = one.pipes[0].sink
        self._lose(one)
        self._tell(one)
        self._tell(other)

    def reset_by(self, closed: SimSocket) -> None:
        """A side has closed its socket, and has not read everything: the other side is told."""
        if closed.pipes is not None and not closed.pipes[0].is_lost:
            other = closed.pipes[0].sink
            self._lose(closed)
            self._tell(other)

    def vanished(self, gone: SimSocket) -> None:
        """The machine of a side has lost its power: nobody tells the other side, until it tries to find out."""
        if gone.pipes is not None and not gone.pipes[0].is_lost:
            self.world.tally["stream: vanished"] += 1
            other = gone.pipes[0].sink
            self._lose(gone)
            self.world.after(_KEEPALIVE_MS, lambda: other.fail(errno.ETIMEDOUT))

    def _lose(self, one: SimSocket) -> None:
        assert one.pipes is not None
        self._connected.pop(one, None)
        self._connected.pop(one.pipes[0].sink, None)
        for pipe in one.pipes:
            pipe.lose()

    def _tell(self, side: SimSocket) -> None:
        random = self.random
        if self.flip(self.world.stream_faults.half_open):
            self.world.tally["stream: half-open"] += 1
            delay_ms = _KEEPALIVE_MS if random() < 0.5 else int(random() * 300)
        else:
            delay_ms = 1 + int(random() * 5)
        self.world.after(delay_ms, lambda: side.fail(errno.ECONNRESET))
