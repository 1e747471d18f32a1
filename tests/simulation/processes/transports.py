"""How a simulated process reaches the broker: by packets, or by the real stream transport on simulated sockets.

The real driver of the client uses either of them. Everything that it sends and receives is observed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol, TypeVar

from oncemq.client.core.commands.wire import WireBytes
from oncemq.client.core.core import Core
from oncemq.client.credentials import Credentials
from oncemq.client.runtime.driver import Driver
from oncemq.client.runtime.flow import Flow
from oncemq.client.runtime.stream import StreamTransport
from oncemq.client.runtime.transport import Transport
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from tests.simulation.environment.listener import stream_urls
from tests.simulation.environment.machine import Machine
from tests.simulation.environment.network import SimNetwork
from tests.simulation.environment.world import Violation, World

T = TypeVar("T")


class Owner(Protocol):
    """The process that uses a connection."""

    world: World
    bytes_per_ms: int

    @property
    def caller(self) -> str:
        """Who it is, for packets; empty if there are no users."""

    @property
    def token(self) -> str:
        """What its stream connections show; empty if there are no users."""

    def wake(self) -> None:
        """Something has arrived, or can be sent."""

    def sleep(self, duration_ms: float) -> None:
        """Let time pass, until it is woken at most. Only a process that blocks does this."""


class SimTransport(Transport, Protocol):
    """What a simulated process needs of a transport, in addition to what drivers need."""

    #: When the process must be woken at the latest.
    retry_ms: float

    @property
    def is_ready(self) -> bool:
        """Whether the process must be woken at once."""

    def cut_off(self, duration_ms: int) -> None: ...

    def crash(self, *, is_silent: bool) -> None:
        """The process has ended. `is_silent`: by a power loss, which the broker is not told."""


class PacketTransport:
    is_renewed = False
    refusal: errors.OnceMQError | None = None
    is_waited_for = True
    is_ready = False
    retry_ms = inf

    def __init__(self, network: SimNetwork, owner: Owner, turn: int) -> None:
        """Connect to the address with index `turn`."""
        self._network = network
        self._owner = owner
        self._turn = turn
        self._arrived: deque[list[Frame]] = deque()
        self._peer = b""
        self._connect()

    def _connect(self) -> None:
        self._network.disconnect(self._peer)
        self._arrived.clear()
        self._peer = self._network.connect(self._arrive, self._turn, self._owner.bytes_per_ms, self._owner.caller)
        self._turn += 1

    def _arrive(self, frames: list[Frame]) -> None:
        self._arrived.append(frames)
        self._owner.wake()

    def send(self, frames: Sequence[Frame]) -> None:
        self._network.request(self._peer, list(frames))

    def receive(self) -> Sequence[Frame] | None:
        return self._arrived.popleft() if self._arrived else None

    def wait(self, timeout_ms: float) -> None:
        if not self._arrived and timeout_ms > 0:
            self._owner.sleep(timeout_ms)

    def wake(self) -> None: ...

    def wire_bytes(self) -> WireBytes:
        return self._network.wire_bytes(self._peer)

    def reconnect(self) -> None:
        self._connect()

    def cut_off(self, duration_ms: int) -> None:
        self._network.cut_off(self._peer, duration_ms)

    def crash(self, *, is_silent: bool) -> None:
        self.close()

    def close(self) -> None:
        self._network.disconnect(self._peer)


class SimStreamTransport(StreamTransport):
    """The real transport, on a machine of its own."""

    def __init__(self, network: SimNetwork, owner: Owner, turn: int) -> None:
        internet = network.internet
        self._world = owner.world
        self._machine = Machine(
            internet, owner.wake, owner.sleep, owner.bytes_per_ms, has_old_names=internet.random() < 0.2
        )
        count = len(network.listeners)
        urls = [stream_urls((turn + number) % count)[internet.random() < 0.5] for number in range(count)]
        super().__init__(urls, self._machine, credentials=Credentials(token=owner.token))

    @property
    def is_ready(self) -> bool:
        return self._machine.is_ready

    def cut_off(self, duration_ms: int) -> None:
        self._machine.cut_off_until_ms = self._world.now_ms + duration_ms
        self._world.tally["stream: partition"] += 1

    def crash(self, *, is_silent: bool) -> None:
        if not is_silent:
            self.close()
            if self._machine.open_count:
                raise Violation(f"a client was closed, and {self._machine.open_count} descriptors are open")
        self._machine.end(is_silent=is_silent)


class ObservedTransport:
    """Passes everything that is sent and received to observers."""

    def __init__(
        self,
        inner: SimTransport,
        world: World,
        send: Callable[[list[Frame]], None],
        received: Callable[[Sequence[Frame]], None],
    ) -> None:
        """`send` gets what is to be sent, and sends it."""
        self._inner = inner
        self._world = world
        self._send = send
        self._received = received
        self.is_waited_for = inner.is_waited_for

    @property
    def is_renewed(self) -> bool:
        return self._inner.is_renewed

    @is_renewed.setter
    def is_renewed(self, is_renewed: bool) -> None:
        self._world.tally["stream: renewed"] += 1
        self._inner.is_renewed = is_renewed

    @property
    def refusal(self) -> errors.OnceMQError | None:
        return self._inner.refusal

    @refusal.setter
    def refusal(self, refusal: errors.OnceMQError | None) -> None:
        self._inner.refusal = refusal

    def send(self, frames: Sequence[Frame]) -> None:
        self._send(list(frames))

    def receive(self) -> Sequence[Frame] | None:
        frames = self._inner.receive()
        if frames is not None:
            self._received(frames)
        return frames

    def wait(self, timeout_ms: float) -> None:
        self._inner.wait(timeout_ms)

    def wake(self) -> None:
        self._inner.wake()

    def wire_bytes(self) -> WireBytes | None:
        return self._inner.wire_bytes()

    def reconnect(self) -> None:
        self._world.tally["client: reconnect"] += 1
        self._inner.reconnect()

    def close(self) -> None:
        """The process does this, when it ends."""


class SimDriver(Driver):
    """Drives a core in virtual time, and runs no flows."""

    receives_alone = True

    def __init__(self, core: Core, transport: Transport) -> None:
        super().__init__(core, transport)

    def run_now(self, flow: Flow[T]) -> T:
        raise NotImplementedError

    def wake_waiters(self) -> None: ...

    def stop(self, reason: errors.OnceMQError) -> None:
        raise NotImplementedError
