"""Who looks after the socket: whoever waits for an answer. There is no thread for it on the hot path.

One lock guards core, batches and socket. A thread that needs an answer takes the lock, sends and receives
what there is (`pump`), and if its answer is not there yet, waits for the network without the lock: the first
one does (the *poller*), the others wait until something was settled. So a single put costs one round trip
and no change of threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from oncemq import errors
from oncemq.client.core import Core
from oncemq.client.pending import Pending, again
from oncemq.client.transport import Transport
from oncemq.engine.commands import Command

log = logging.getLogger("oncemq.client")

#: Nothing is waited for longer than this without looking around.
_WAIT_MS_MAX = 10_000.0


def now_ms() -> float:
    return time.monotonic() * 1000


class Driver:
    """Moves bytes between a core and a transport. Methods that end in `_locked` want the lock held."""

    def __init__(self, core: Core, transport: Transport) -> None:
        self.core = core
        self.transport = transport
        self.lock = threading.Lock()
        #: Why nothing works any more: closed, or forked.
        self.stopped: errors.OnceMQError | None = None
        self._settled = threading.Condition(self.lock)
        #: When somebody last looked after the socket.
        self.pumped_ms = 0.0
        self._poller: int | None = None
        self._followers = 0

    def ask(self, command: Command) -> Pending:
        """A command that may be repeated, and its answer."""
        with self.lock:
            self.check_usable()
            pending = self.core.ask(command)
            self.wait_locked(pending)
        return pending

    def check_usable(self) -> None:
        if self.stopped is not None:
            raise again(self.stopped)

    # Driving.

    def pump_locked(self, pending: Pending | None = None) -> None:
        """Send what is to be sent, take in what has arrived, look after what is overdue. Does not wait.

        What arrives after the answer to `pending` is left for the next time."""
        self.check_usable()
        core, transport = self.core, self.transport
        self.pumped_ms = at_ms = now_ms()
        has_received = False
        while True:
            for request in core.outgoing(at_ms):
                transport.send(request)
            frames = transport.receive()
            while frames is not None:
                has_received = True
                core.receive(at_ms, frames)
                frames = None if pending is not None and pending.done else transport.receive()
            if core.has_outgoing(at_ms):
                continue
            if not core.check(at_ms):
                break
            log.info("no answer from %s; trying again", core.options.where)
            transport.reconnect()
            has_received = True
        if has_received:
            self.tell_others_locked()

    def tell_others_locked(self) -> None:
        """Something was settled that other threads may wait for."""
        if self._followers:
            self._settled.notify_all()
        if self._poller is not None and self._poller != threading.get_ident():
            self.transport.wake()

    def wait_locked(self, pending: Pending, until_ms: float | None = None) -> bool:
        """Drive until it is done. False: the time was over first."""
        return self._drive(lambda: pending.done, until_ms, pending)

    def wait_until_locked(self, is_done: Callable[[], bool], until_ms: float | None = None) -> bool:
        return self._drive(is_done, until_ms, None)

    def _drive(self, is_done: Callable[[], bool], until_ms: float | None, pending: Pending | None) -> bool:
        while True:
            # Before each wait everything that has arrived is taken in: the network tells only of what is new.
            if self.stopped is None:
                self.pump_locked(pending)
            if is_done():
                return True
            self.check_usable()
            limit_ms = self._limit_ms(until_ms)
            if limit_ms < 0:
                return False
            self._wait_once(limit_ms)

    def _limit_ms(self, until_ms: float | None) -> float:
        """How long to wait now; negative when the caller's time is over."""
        at_ms = now_ms()
        if until_ms is not None and at_ms >= until_ms:
            return -1.0
        deadline_ms = min(self.core.next_deadline_ms(), at_ms + _WAIT_MS_MAX)
        if until_ms is not None:
            deadline_ms = min(deadline_ms, until_ms)
        return max(0.0, deadline_ms - at_ms)

    def _wait_once(self, limit_ms: float) -> None:
        if self._poller is not None:
            self._followers += 1
            try:
                self._settled.wait(limit_ms / 1000)
            finally:
                self._followers -= 1
            return
        self._poller = threading.get_ident()
        self.lock.release()
        try:
            self.transport.wait(limit_ms)
        finally:
            self.lock.acquire()
            self._poller = None
            if self._followers:
                # One of them has to take the place.
                self._settled.notify_all()

    def stop_locked(self, reason: errors.OnceMQError) -> None:
        """Nothing works from now on; whoever waits is told."""
        self.stopped = reason
        self._settled.notify_all()
        self.transport.wake()

    def wait_for_poller_locked(self) -> None:
        """Until no other thread is inside the transport."""
        while self._poller is not None:
            self._followers += 1
            self._settled.wait(0.1)
            self._followers -= 1

    def after_fork(self) -> None:
        """In a forked child: the lock may be held by a thread that does not exist here."""
        self.lock = threading.Lock()
        self._settled = threading.Condition(self.lock)
        self._poller = None
        self.stopped = errors.ForkedError("this client belongs to the parent process; connect again in the child")
