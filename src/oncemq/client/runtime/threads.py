"""Runs flows for threads.

One lock guards the core, the batches and the socket. A thread that runs a flow holds the lock. When its flow waits, it
sends and receives what there is (`pump`). If its reply has not arrived, it waits for the network without the lock:
the first such thread waits on the transport (the *poller*), the others wait until something has arrived. So a single
put costs one round trip and no thread switch.

A signal handler may raise after any call, also after the one that releases the lock. So the lock knows its owner.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from oncemq.client.core.commands.pending import Pending
from oncemq.client.core.core import Core
from oncemq.client.runtime.caller import THREAD
from oncemq.client.runtime.driver import Driver, now_ms
from oncemq.client.runtime.flow import Flow, Outside, Until, Wait
from oncemq.client.runtime.transport import Transport
from oncemq.protocol import errors
from oncemq.protocol.commands import Put
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import PutReply, expect

T = TypeVar("T")

#: No wait is longer than this without a check.
_WAIT_MS_MAX = 10_000.0


class ThreadDriver(Driver):
    """Runs flows for threads, each under the lock. Flows call its other methods with the lock held."""

    receives_alone = False
    caller = THREAD

    def __init__(self, core: Core, transport: Transport) -> None:
        super().__init__(core, transport)
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)
        self._poller: int | None = None
        self._followers = 0
        self._whole = _Whole(self)

    def run(self, flow: Flow[T]) -> T:
        """Run a flow and return its result. A flow that needs another one uses `yield from`.

        Raises RuntimeError if this thread already runs a flow of this client, as in a signal handler."""
        self._check_not_inside()
        with self.lock:
            try:
                wait = flow.send(None)
                while True:
                    try:
                        value = self._wait_for(wait)
                    except BaseException as error:
                        self._regain_lock()
                        # The flow waits, so the exception is raised in the flow.
                        wait = flow.throw(error)
                    else:
                        wait = flow.send(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                # After an interrupt between two steps, a traceback may keep the flow alive.
                flow.close()

    def run_put(self, operation: Put, payload: Frame) -> PutReply | None:
        """Send one put and return its reply, without a flow, if nothing else is under way. None: nothing was sent, use
        a flow. A caller that is interrupted gives the put up."""
        self._check_not_inside()
        with self.lock:
            if self._poller is not None or self.stopped is not None:
                return None
            pending = self._send_alone(operation, payload)
            if pending is None:
                return None
            try:
                if self.transport.is_waited_for:
                    self._wait_once(self.core.options.timeout_ms)
                    if self.stopped is None:
                        self._receive_one()
                if not pending.done:
                    self._drive(lambda: pending.done, None, pending)
            except BaseException:
                self._regain_lock()
                self.give_up(pending, errors.ClientClosed("the caller gave up"))
                raise
        return expect(pending.result(), PutReply)

    def _send_alone(self, operation: Put, payload: Frame) -> Pending | None:
        core, at_ms = self.core, now_ms()
        frames = None if self.transport.is_renewed else core.alone(operation, payload, at_ms)
        if frames is None:
            return None
        with self._whole:
            # If an embedded broker has failed, nothing was sent, and the core has noted nothing.
            self.transport.send(frames)
            return core.sent_alone(operation, payload, frames, at_ms)

    def _receive_one(self) -> None:
        """Receive one answer, if there is one."""
        with self._whole:
            frames = self.transport.receive()
            if frames is not None:
                self.core.receive(now_ms(), frames)
        if frames is not None:
            self.wake_waiters()

    def _check_not_inside(self) -> None:
        if self._has_lock():
            raise RuntimeError(
                "this thread is inside another call of this client; a signal handler can't use the client"
                " that it interrupts"
            )

    def _has_lock(self) -> bool:
        is_owned: bool = self.lock._is_owned()  # type: ignore[attr-defined]
        return is_owned

    def _regain_lock(self) -> None:
        """Acquire the lock again after it was released. `run` repeats an attempt that was interrupted."""
        if not self._has_lock():
            self.lock.acquire()
        if self._followers and self._poller is None:
            # One of them has to become the poller.
            self._settled.notify_all()

    def pump(self, pending: Pending | None = None) -> None:
        with self._whole:
            super().pump(pending)

    def stop_half_changed(self) -> None:
        """The core's state may be half changed. To continue with it could lose or repeat a command."""
        if self.stopped is None:
            self.stop(errors.ClientClosed("an exception interrupted this client while it worked; connect again"))

    def run_now(self, flow: Flow[T]) -> T:
        """Run a flow from plain code. Threads may wait here; an event loop may not."""
        return self.run(flow)

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
        """Wait until it is done. Returns False if `until_ms` passed first."""
        while True:
            # Everything that has arrived is received before each wait: the descriptor signals only what is new.
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
        """Return how long to wait now; negative if the caller's time is over."""
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
            # First, even without the lock: from here on this thread is not inside the transport.
            self._poller = None
            self._regain_lock()

    def wake_waiters(self) -> None:
        if self._followers:
            self._settled.notify_all()
        if self._poller is not None and self._poller != threading.get_ident():
            self.transport.wake()

    def stop(self, reason: errors.OnceMQError) -> None:
        self.stopped = reason
        self._settled.notify_all()
        self.transport.wake()
        self._wait_for_poller()
        self.transport.close()

    def _wait_for_poller(self) -> None:
        """Wait until no other thread is inside the transport."""
        while self._poller is not None:
            self._followers += 1
            self._settled.wait(0.1)
            self._followers -= 1

    def after_fork(self) -> None:
        # The lock may be held by a thread that does not exist in the child.
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)
        self._poller = None
        super().after_fork()


class _Whole:
    """A block that changes the core as a whole: an exception that is not an error of ours ends the client."""

    def __init__(self, driver: ThreadDriver) -> None:
        self._driver = driver

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, errors.OnceMQError):
            self._driver.stop_half_changed()
