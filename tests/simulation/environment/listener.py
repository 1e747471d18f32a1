"""The broker's network at one address: packets, and the real listener of the stream transport on simulated sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from oncemq.broker.network import Arrival
from oncemq.broker.network.listeners import Listeners
from oncemq.config.settings import ServeSettings
from oncemq.net.stream.listener import PEER_PREFIX, StreamListener
from oncemq.protocol.frames import Frame
from tests.simulation.checks.requests import RequestCheck
from tests.simulation.environment.internet import Internet
from tests.simulation.environment.machine import Machine
from tests.simulation.environment.sockets import SimSocket
from tests.simulation.environment.world import Violation, World


def stream_urls(number: int) -> tuple[str, str]:
    """Return the addresses at which a broker listens for streams."""
    return f"oncemq://broker{number}:1", f"oncemq://broker{number}:2"


class Listener:
    """The broker's side of one address."""

    def __init__(
        self, world: World, internet: Internet, number: int, reply: Callable[[bytes, list[Frame]], None]
    ) -> None:
        self._world = world
        self._internet = internet
        self._urls = stream_urls(number)
        self._reply = reply
        self.inbox: list[Arrival] = []
        self._requests = RequestCheck()
        #: While the process is running.
        self._machine: Machine | None = None
        self._streams: Listeners | None = None
        #: Called when something arrives. Returns False if no broker is running.
        self.arrived: Callable[[], bool] = lambda: False
        self._gone: Callable[[bytes], None] = lambda _: None
        #: Who the peers are logged in as.
        self.callers: dict[bytes, str] = {}
        #: Called before a packet is sent.
        self.sending: Callable[[], None] = lambda: None

    # The process.

    def start(self) -> None:
        """The process starts."""
        faults = self._world.stream_faults
        if not faults.share or self._streams is not None:
            return
        self._machine = Machine(self._internet, self._wake)
        settings = ServeSettings(
            listen=self._urls,
            batch_bytes_max=self._world.faults.limits.batch_bytes_max,
            connections_max=faults.connections_max,
            peer_bytes_max=1,
            peers_bytes_max=1,
            write_timeout_ms=400,
        )
        self._streams = Listeners(settings, system=self._machine)
        self._streams.when_gone(self._gone)
        # A new process begins with the same names of peers.
        self.callers = {peer: caller for peer, caller in self.callers.items() if not peer.startswith(PEER_PREFIX)}

    def reset(self, *, is_silent: bool = False) -> None:
        """The process has ended: what it received is lost. `is_silent`: by a power loss, which no peer is told."""
        self.inbox.clear()
        self._requests = RequestCheck()
        machine, streams = self._machine, self._streams
        self._machine = self._streams = None
        if machine is None or streams is None:
            return
        self._count(streams)
        if not is_silent:
            streams.close()
            if machine.open_count:
                raise Violation(f"the broker has closed its listeners, and {machine.open_count} descriptors are open")
        machine.end(is_silent=is_silent)

    def _count(self, streams: Listeners) -> None:
        for name, count in streams.counters.counts.items():
            self._world.tally[f"stream: {name}"] += count

    def _wake(self) -> None:
        self.arrived()

    # The network interface of the broker.

    def take(self, wait_ms: int) -> list[Arrival]:
        arrivals, self.inbox = self.inbox, []
        streams, machine = self._streams, self._machine
        if streams is not None and machine is not None:
            arrivals += streams.take(wait_ms)
            _check_accounts(streams._stream)
            self._log_in(streams._stream, arrivals)
            if streams._left or machine.is_ready:
                # The next look does not wait.
                self.arrived()
        for peer, frames in arrivals:
            self._requests.took(peer, frames, self._world.now_ms)
        return arrivals

    def _log_in(self, stream: StreamListener, arrivals: Sequence[Arrival]) -> None:
        """Find out who has sent something, as a handshake would. What is left unknown has no connection any more."""
        for peer, _ in arrivals:
            connection = stream._by_peer.get(peer)
            if connection is not None and peer not in self.callers:
                pipes = cast(SimSocket, connection.socket).pipes
                assert pipes is not None
                self.callers[peer] = pipes[0].sink.machine.caller

    def when_gone(self, call: Callable[[bytes], None]) -> None:
        def gone(peer: bytes) -> None:
            self._requests.dropped(peer)
            call(peer)

        self._gone = gone
        if self._streams is not None:
            self._streams.when_gone(gone)

    def caller_of(self, peer: bytes) -> str:
        return self.callers.get(peer, "")

    def drop_invalid(self) -> None: ...

    def is_reading(self, peer: bytes) -> bool:
        if not peer.startswith(PEER_PREFIX):
            return True
        is_reading = self._streams is not None and self._streams.is_reading(peer)
        if not is_reading:
            self._requests.dropped(peer)
        return is_reading

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        self.sending()
        self._requests.answers(peer, frames)
        if not peer.startswith(PEER_PREFIX):
            self._reply(peer, list(frames))
        elif self._streams is not None:
            self._streams.send(peer, frames)

    def check_answered(self) -> None:
        self._requests.check_answered(self._world.now_ms)


def _check_accounts(stream: StreamListener) -> None:
    """Check that what is counted belongs to open connections."""
    for connection in (*stream._unopened, *stream._incomplete, *stream._unread):
        if connection.is_ended:
            raise Violation("a connection has ended, and the broker still counts its bytes")
    buffered = sum(stream._incomplete.values()) + sum(each.outgoing_bytes for each in stream._unread)
    if buffered != stream.buffered_bytes:
        raise Violation(f"the broker counts {stream.buffered_bytes} bytes of its peers, and has {buffered}")
