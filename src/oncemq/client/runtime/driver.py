"""Who looks after the socket: whoever waits for an answer. There is no thread for it on the hot path.

`Pump` moves bytes, and is the part that the blocking and the asyncio driver share. `Driver` runs flows for threads:
one lock guards core, batches and socket. A thread that runs a flow holds the lock. When its flow waits, it sends
and receives what there is (`pump`), and if its answer is not there yet, waits for the network without the lock: the
first one does (the *poller*), the others wait until something was settled. So a single put costs one round trip
and no change of threads.

A signal handler may raise after any call, also after the one that gives the lock away: so the lock knows who has it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from oncemq.client.core.core import Core
from oncemq.client.core.pending import Pending, again
from oncemq.client.runtime.flow import Flow, Outside, Until, Wait
from oncemq.client.runtime.transport import Transport
from oncemq.protocol import errors

log = logging.getLogger("oncemq.client")

T = TypeVar("T")

#: Nothing is waited for longer than this without looking around.
_WAIT_MS_MAX = 10_000.0
#: A broker that stays away is logged so often.
_SAY_AGAIN_MS = 60_000.0


def now_ms() -> float:
    return time.monotonic() * 1000


class Pump:
    """Moves bytes between a core and a transport. What flows need of their driver."""

    def __init__(self, core: Core, transport: Transport) -> None:
        self.core = core
        self.transport = transport
        #: Why nothing works any more: closed, or forked.
        self.stopped: errors.OnceMQError | None = None
        #: When somebody last looked after the socket.
        self.pumped_ms = 0.0
        self._dropped: deque[Pending] = deque()
        #: When it was last said that the broker is away.
        self._said_away_ms = -_SAY_AGAIN_MS

    def check_usable(self) -> None:
        if self.stopped is not None:
            raise again(self.stopped)

    def pump(self, pending: Pending | None = None) -> None:
        """Send what is to be sent, take in what has arrived, look after what is overdue. Does not wait.

        What arrives after the answer to `pending` is left for the next time."""
        self.check_usable()
        core, transport = self.core, self.transport
        self.pumped_ms = at_ms = now_ms()
        has_received = False
        while self._dropped:
            core.give_up(self._dropped.popleft(), errors.ClientClosed("nobody wants this answer"))
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
            self._say_away(at_ms)
            self._reconnect()
            has_received = True
        if has_received:
            self._tell_others()

    def give_up(self, pending: Pending, error: errors.OnceMQError) -> None:
        """Nobody waits for this any longer: it fails with this error, and its number becomes void."""
        self.core.give_up(pending, error)
        self._tell_others()

    def drop(self, pending: Pending) -> None:
        """The same with the next pump. From anywhere, even from a finalizer that interrupts a flow."""
        self._dropped.append(pending)

    def stop(self, reason: errors.OnceMQError) -> None:
        """Nothing works from now on; whoever waits is told. The transport is closed."""
        raise NotImplementedError

    def after_fork(self) -> None:
        """In a forked child."""
        self.stopped = errors.ForkedError("this client belongs to the parent process; connect again in the child")

    def _say_away(self, at_ms: float) -> None:
        is_due = at_ms >= self._said_away_ms + _SAY_AGAIN_MS
        if is_due:
            self._said_away_ms = at_ms
        log.log(logging.INFO if is_due else logging.DEBUG, "no answer from %s; trying again", self.core.options.where)

    def _reconnect(self) -> None:
        self.transport.reconnect()

    def _tell_others(self) -> None:
        """Something was settled that others may wait for."""


class Driver(Pump):
    """Runs flows for threads, each under the lock. All that flows call of it wants the lock held."""

    def __init__(self, core: Core, transport: Transport) -> None:
        super().__init__(core, transport)
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)
        self._poller: int | None = None
        self._followers = 0

    def run(self, flow: Flow[T]) -> T:
        """A flow's result. Not from within a flow: that one uses `yield from`."""
        if self._has_lock():
            raise RuntimeError("this client is in the midst of another call of this thread; is this a signal handler?")
        with self.lock:
            try:
                wait = flow.send(None)
                while True:
                    try:
                        value = self._wait_for(wait)
                    except BaseException as error:
                        self._regain_lock()
                        # It is the flow that waits, so it is the flow that meets this.
                        wait = flow.throw(error)
                    else:
                        wait = flow.send(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                # Who was interrupted between two steps may keep the flow alive, in a traceback.
                flow.close()

    def _has_lock(self) -> bool:
        is_owned: bool = self.lock._is_owned()  # type: ignore[attr-defined]
        return is_owned

    def _regain_lock(self) -> None:
        """After it was given away; an interrupted attempt is repeated by `run`."""
        if not self._has_lock():
            self.lock.acquire()
        if self._followers and self._poller is None:
            # One of them has to take the place.
            self._settled.notify_all()

    def pump(self, pending: Pending | None = None) -> None:
        is_whole = False
        try:
            super().pump(pending)
            is_whole = True
        except errors.OnceMQError:
            is_whole = True
            raise
        finally:
            if not is_whole and self.stopped is None:
                # What the core knows may be torn; to go on with it could lose or double something.
                self.stop(errors.ClientClosed("this client was struck by an exception while it worked; connect again"))

    # Waiting.

    def _wait_for(self, wait: Wait) -> Any:
        if isinstance(wait, Pending):
            return self._drive(lambda: wait.done, None, wait)
        if isinstance(wait, Until):
            pending = wait.what if isinstance(wait.what, Pending) else None
            return self._drive(wait.is_done, wait.until_ms, pending)
        assert isinstance(wait, Outside)
        try:
            self.lock.release()
            return wait.function()
        finally:
            self._regain_lock()

    def _drive(self, is_done: Callable[[], bool], until_ms: float | None, pending: Pending | None) -> bool:
        """Until it is done. False: the time was over first."""
        while True:
            # Before each wait everything that has arrived is taken in: the network tells only of what is new.
            if self.stopped is None:
                self.pump(pending)
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
        me = threading.get_ident()
        try:
            self._poller = me
            self.lock.release()
            self.transport.wait(limit_ms)
        finally:
            # First of all, even without the lock: from here on this thread is not inside the transport.
            self._poller = None
            self._regain_lock()

    def _tell_others(self) -> None:
        if self._followers:
            self._settled.notify_all()
        if self._poller is not None and self._poller != threading.get_ident():
            self.transport.wake()

    # The end.

    def stop(self, reason: errors.OnceMQError) -> None:
        self.stopped = reason
        self._settled.notify_all()
        self.transport.wake()
        self._wait_for_poller()
        self.transport.close()

    def _wait_for_poller(self) -> None:
        """Until no other thread is inside the transport."""
        while self._poller is not None:
            self._followers += 1
            self._settled.wait(0.1)
            self._followers -= 1

    def after_fork(self) -> None:
        """The lock may be held by a thread that does not exist here."""
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)
        self._poller = None
        super().after_fork()
