"""The broker's network at one address: packets, and the real listener of the stream transport on simulated sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oncemq.broker.network import Arrival
from oncemq.broker.network.listeners import Listeners
from oncemq.config.settings import ServeSettings
from oncemq.net.gate import Gate
from oncemq.net.stream.listener import PEER_PREFIX, StreamListener
from oncemq.protocol.frames import Frame
from tests.simulation.checks.requests import RequestCheck
from tests.simulation.environment.internet import Internet
from tests.simulation.environment.machine import Machine
from tests.simulation.environment.world import Violation, World


def stream_urls(number: int) -> tuple[str, str]:
    """Return the addresses at which a broker listens for streams."""
    # A token is sent without encryption only to addresses of the client's own machine.
    return f"oncemq://127.0.0.{number}:1", f"oncemq://127.0.0.{number}:2"


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
        #: Says who may connect, if there are users.
        self._gate: Gate | None = None
        #: Peers that send packets: who they are, and which of them were disconnected because they were not admitted.
        self.callers: dict[bytes, str] = {}
        self._dropped: set[bytes] = set()
        #: Called before a packet is sent.
        self.sending: Callable[[], None] = lambda: None

    # The process.

    def start(self, gate: Gate | None) -> None:
        """The process starts."""
        self._gate = gate
        self.drop_invalid()
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
        self._streams = Listeners(settings, system=self._machine, gate=gate)
        self._streams.when_gone(self._gone)

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
        arrivals = [(peer, frames) for peer, frames in self.inbox if self._is_admitted(peer)]
        self.inbox.clear()
        streams, machine = self._streams, self._machine
        if streams is not None and machine is not None:
            arrivals += streams.take(wait_ms)
            _check_accounts(streams._stream)
            if streams._left or machine.is_ready:
                # The next look does not wait.
                self.arrived()
        for peer, frames in arrivals:
            self._requests.took(peer, frames, self._world.now_ms)
        return arrivals

    def _is_admitted(self, peer: bytes) -> bool:
        """Return whether the packets of a peer arrive. If not, they never will: it must connect again."""
        if self._gate is not None and not self._gate.is_valid(self.callers[peer]):
            self._dropped.add(peer)
        return peer not in self._dropped

    def when_gone(self, call: Callable[[bytes], None]) -> None:
        def gone(peer: bytes) -> None:
            self._requests.dropped(peer)
            call(peer)

        self._gone = gone
        if self._streams is not None:
            self._streams.when_gone(gone)

    def caller_of(self, peer: bytes) -> str:
        if not peer.startswith(PEER_PREFIX):
            return self.callers[peer]
        return self._streams.caller_of(peer) if self._streams is not None else ""

    def drop_invalid(self) -> None:
        for peer in self.callers:
            self._is_admitted(peer)
        if self._streams is not None:
            self._streams.drop_invalid()

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
            if peer not in self._dropped:
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
