"""The operating system of a simulated machine, as far as the stream transport needs it: descriptors and polls."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import cast

from oncemq.net.lookup import KnownNames, Name
from oncemq.net.poller import Poller
from oncemq.net.system import System
from tests.simulation.environment.internet import Internet
from tests.simulation.environment.sockets import SimSocket, Waker

#: The first descriptor that a connection may have.
_FIRST_DESCRIPTOR = 3
_FAILED = select.POLLERR | select.POLLHUP | select.POLLIN


class Machine(System):
    """One process on one machine."""

    def __init__(
        self,
        internet: Internet,
        wake: Callable[[], None],
        sleep: Callable[[float], None] | None = None,
        bytes_per_ms: int = 0,
        *,
        has_old_names: bool = False,
    ) -> None:
        """`wake` is called, later, when something that a poll watches has become ready. `sleep` lets time pass, until
        then at most. With `has_old_names`, names lead to two addresses, and nobody listens at the first one."""
        self.internet = internet
        self.sleep = sleep
        self.bytes_per_ms = bytes_per_ms
        self.cut_off_until_ms = 0
        self.is_running = True
        self._wake = wake
        self._is_wake_due = False
        self._sockets: dict[int, SimSocket | Waker] = {}
        #: The newest one: nobody waits for an older one.
        self._poll: SimPoll | None = None
        self._has_old_names = has_old_names

    # System.

    def now_s(self) -> float:
        return self.internet.world.now_ms / 1000

    def open_socket(self, family: int) -> socket.socket:
        opened = SimSocket(self, family)
        opened.descriptor = self.add(opened)
        return cast(socket.socket, opened)

    def socketpair(self) -> tuple[socket.socket, socket.socket]:
        waker, woken = Waker(self), Waker(self)
        waker.other = woken
        return cast(socket.socket, waker), cast(socket.socket, woken)

    def look_up(self, host: str, port: int) -> KnownNames:
        if self.internet.flip(0.2):
            self.internet.world.tally["stream: slow name server"] += 1
            return _SlowLookup(self.names(host, port), int(self.internet.random() * 20))
        return KnownNames(self.names(host, port))

    def names(self, host: str, port: int, flags: int = 0) -> list[Name]:
        names: list[Name] = [(socket.AF_INET, (host, port))]
        return [(socket.AF_INET, ("nowhere", port)), *names] if self._has_old_names else names

    def poll(self) -> SimPoll:
        self._poll = SimPoll(self)
        return self._poll

    def poller(self) -> Poller:
        return cast(Poller, self.poll())

    # Descriptors.

    def add(self, opened: SimSocket | Waker) -> int:
        """Assign the lowest descriptor that is free, as systems do."""
        descriptor = _FIRST_DESCRIPTOR
        while descriptor in self._sockets:
            descriptor += 1
        self._sockets[descriptor] = opened
        return descriptor

    def remove(self, descriptor: int) -> None:
        self._sockets.pop(descriptor, None)
        if self._poll is not None:
            self._poll.closed(descriptor)

    def events_of(self, descriptor: int, wanted: int) -> int:
        """Return what a descriptor is ready for."""
        found = self._sockets[descriptor]
        if found.has_failed:
            return _FAILED | (wanted & select.POLLOUT)
        events = select.POLLIN if found.is_readable else 0
        if found.is_writable:
            events |= select.POLLOUT
        return events & wanted

    def changed(self, descriptor: int) -> None:
        if self._poll is not None:
            self._poll.changed(descriptor)

    @property
    def is_ready(self) -> bool:
        return self._poll is not None and self._poll.is_ready

    @property
    def open_count(self) -> int:
        return len(self._sockets)

    # The process.

    def wake_soon(self) -> None:
        if not self._is_wake_due and self.is_running:
            self._is_wake_due = True
            self.internet.world.after(0, self._wake_now)

    def _wake_now(self) -> None:
        self._is_wake_due = False
        if self.is_running:
            self._wake()

    def end(self, *, is_silent: bool) -> None:
        """The process has ended. If it is the machine that has lost its power, nobody is told."""
        self.is_running = False
        self._poll = None
        for opened in list(self._sockets.values()):
            if is_silent and isinstance(opened, SimSocket):
                for gone in (opened, *(opened.backlog or ())):
                    self.internet.vanished(gone)
            opened.close()


class _SlowLookup(KnownNames):
    """Answers when it was asked several times."""

    def __init__(self, found: list[Name], refusals: int) -> None:
        super().__init__(found)
        self._refusals = refusals

    def result(self, _wait_s: float) -> list[Name] | None:
        self._refusals -= 1
        return super().result(_wait_s) if self._refusals < 0 else None


class SimPoll:
    """Has the methods of `select.poll` and of the broker's poller. Level-triggered."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._wanted: dict[int, int] = {}
        #: Those that may be ready.
        self._candidates: dict[int, None] = {}

    def register(self, descriptor: int, events: int) -> None:
        if descriptor in self._wanted:
            raise FileExistsError(descriptor)
        self._wanted[descriptor] = events
        self.changed(descriptor)

    def modify(self, descriptor: int, events: int) -> None:
        if descriptor not in self._wanted:
            raise FileNotFoundError(descriptor)
        self._wanted[descriptor] = events
        self.changed(descriptor)

    def unregister(self, descriptor: int) -> None:
        if descriptor not in self._wanted:
            raise FileNotFoundError(descriptor)
        self.closed(descriptor)

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        ready = self._ready()
        if not ready and timeout_ms > 0 and self._machine.sleep is not None:
            self._machine.sleep(timeout_ms)
            ready = self._ready()
        return ready

    watch = register
    change = modify
    ignore = unregister
    wait = poll

    def close(self) -> None: ...

    def closed(self, descriptor: int) -> None:
        self._wanted.pop(descriptor, None)
        self._candidates.pop(descriptor, None)

    def changed(self, descriptor: int) -> None:
        wanted = self._wanted.get(descriptor)
        if wanted is not None and self._machine.events_of(descriptor, wanted):
            self._candidates[descriptor] = None
            self._machine.wake_soon()

    def _ready(self) -> list[tuple[int, int]]:
        ready = []
        for descriptor in list(self._candidates):
            events = self._machine.events_of(descriptor, self._wanted[descriptor])
            if events:
                ready.append((descriptor, events))
            else:
                del self._candidates[descriptor]
        return ready

    @property
    def is_ready(self) -> bool:
        return bool(self._ready())
