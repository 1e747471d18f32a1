"""Runs flows on an event loop, without threads and without a task of its own.

The loop watches the transport's descriptor, and a timer is set to the core's next deadline; both call `pump`. A flow
that waits is a task that waits for a future. A reply, a timeout or the client's end resolves the future. Tasks that
wait in the same iteration of the loop share one pump, so that their commands share requests, and a sync at the broker.

An embedded broker has no descriptor. It runs within each pump, and every few milliseconds while a task waits. The loop
waits for its disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from oncemq.client.core.commands.pending import Pending, again
from oncemq.client.core.core import Core
from oncemq.client.runtime.caller import Caller
from oncemq.client.runtime.driver import Driver, now_ms
from oncemq.client.runtime.flow import Flow, Outside, Until, Wait, WouldWait
from oncemq.client.runtime.transport import SLICE_MS, WatchedTransport
from oncemq.protocol import errors

log = logging.getLogger("oncemq.client")

T = TypeVar("T")

TASK = Caller("task", lambda: id(asyncio.current_task()))

_NEVER = float("inf")
#: Pause after an unexpected failure.
_RETRY_S = 0.25


class EventLoopDriver(Driver):
    """Runs flows on an event loop."""

    receives_alone = True
    caller = TASK
    transport: WatchedTransport

    def __init__(self, core: Core, transport: WatchedTransport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(core, transport)
        self.loop = loop
        #: What the loop watches; None: nothing.
        self._descriptor: int | None = None
        self._is_writing = False
        transport.before_close = self._unwatch
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = _NEVER
        self._is_pump_due = False
        #: The futures that tasks wait for, and their conditions; None: a reply resolves the future.
        self._waiting: dict[asyncio.Future[None], Callable[[], bool] | None] = {}
        self._conditions = 0
        self._watch()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow and return its result. A task that is cancelled meanwhile raises CancelledError in the flow."""
        try:
            wait = flow.send(None)
            while True:
                try:
                    value = await self._wait_for(wait)
                except BaseException as error:
                    wait = flow.throw(error)
                else:
                    wait = flow.send(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def run_now(self, flow: Flow[T]) -> T:
        """Run a flow from plain code, which can't wait on an event loop. A flow that has to wait gets WouldWait."""
        try:
            wait = flow.send(None)
            self.pump()
            while isinstance(wait, Until) and wait.is_done():
                wait = flow.send(True)
            flow.throw(WouldWait())
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("a flow continued to wait")

    async def _wait_for(self, wait: Wait) -> Any:
        if isinstance(wait, Outside):
            # Before the call, not after it: a task that is cancelled meanwhile loses no result.
            await asyncio.sleep(0)
            return wait.function()
        until = wait if isinstance(wait, Until) else Until(wait)
        # Once more, if another task has changed the condition again before this one could run.
        while not until.is_done():
            if until.until_ms is not None and until.until_ms <= now_ms():
                self.pump()
                return until.is_done()
            self.check_usable()
            await self._wait_once(until)
        return True

    async def _wait_once(self, until: Until) -> None:
        future: asyncio.Future[None] = self.loop.create_future()
        waiters = _waiters_of(until.what) if isinstance(until.what, Pending) else None
        if waiters is not None:
            waiters.futures.append(future)
        self._waiting[future] = None if waiters is not None else until.is_done
        self._conditions += waiters is None
        timer = self._wake_at(until.until_ms, future)
        self.pump_soon()
        try:
            await future
        finally:
            del self._waiting[future]
            self._conditions -= waiters is None
            if waiters is not None and not until.is_done():
                waiters.futures.remove(future)
            if timer is not None:
                timer.cancel()

    def _wake_at(self, until_ms: float | None, future: asyncio.Future[None]) -> asyncio.TimerHandle | None:
        if until_ms is None:
            return None
        return self.loop.call_later((until_ms - now_ms()) / 1000, _wake, future)

    def pump(self, pending: Pending | None = None) -> None:  # noqa: ARG002 - the descriptor signals only what is new
        try:
            super().pump()
        except Exception as error:
            self._fail(error)
            raise
        self._watch()
        self._set_timer()

    def pump_soon(self) -> None:
        """Pump in this iteration of the loop, after other tasks have added their commands."""
        if not self._is_pump_due:
            self._is_pump_due = True
            self.loop.call_soon(self._pump_logged)

    def _pump_logged(self) -> None:
        self._is_pump_due = False
        if self.stopped is not None:
            return
        try:
            self.pump()
        except errors.OnceMQError as error:
            # Every task that waits has got this error, and the next caller will get it.
            log.debug("%s", error)
        except Exception:
            # Every task that waits has got this error. Requests in flight still need their deadlines.
            log.exception("the client failed while it sent or received; it continues")
            self.loop.call_later(_RETRY_S, self.pump_soon)

    def _pump_on_time(self) -> None:
        self._timer = None
        self._pump_logged()

    def _set_timer(self) -> None:
        """Pump at the next deadline. A timer that fires too early does no harm, and is cheaper than moving it."""
        due_ms = min(self.core.next_deadline_ms(), self.transport.retry_ms)
        if self.transport.descriptor is None and not self.core.is_idle:
            due_ms = min(due_ms, now_ms() + SLICE_MS)
        if due_ms == _NEVER or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self.loop.call_later(max(0.0, due_ms - now_ms()) / 1000, self._pump_on_time)

    def wake_waiters(self) -> None:
        if self._conditions:
            for future, is_true in list(self._waiting.items()):
                if is_true is not None and is_true():
                    _wake(future)

    def _fail(self, error: Exception) -> None:
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(again(error) if isinstance(error, errors.OnceMQError) else error)

    def _watch(self) -> None:
        """Watch the transport's present descriptor, for what the transport wants."""
        descriptor, is_writing = self.transport.descriptor, self.transport.wants_write
        if descriptor is None or descriptor < 0:
            return
        try:
            if self._descriptor is None:
                self.loop.add_reader(descriptor, self._pump_logged)
                self._descriptor = descriptor
            if is_writing != self._is_writing:
                if is_writing:
                    self.loop.add_writer(descriptor, self._pump_logged)
                else:
                    self.loop.remove_writer(descriptor)
                self._is_writing = is_writing
        except NotImplementedError:
            raise errors.SettingInvalid(
                f"{type(self.loop).__name__} can't watch sockets (no add_reader), which is the default on Windows;"
                " run your program with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)"
            ) from None

    def _unwatch(self) -> None:
        if self._descriptor is not None:
            self.loop.remove_reader(self._descriptor)
            if self._is_writing:
                self.loop.remove_writer(self._descriptor)
            self._descriptor, self._is_writing = None, False

    def _reconnect(self) -> None:
        self._unwatch()
        super()._reconnect()
        self._watch()

    def stop(self, reason: errors.OnceMQError) -> None:
        self.stopped = reason
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future in self._waiting:
            _wake(future)
        self.transport.close()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Waiters:
    """The futures that wait for one pending. Replaces its `on_done`, and calls that first."""

    __slots__ = ("former", "futures")

    def __init__(self, former: Callable[[Pending], None] | None) -> None:
        self.former = former
        self.futures: list[asyncio.Future[None]] = []

    def __call__(self, pending: Pending) -> None:
        if self.former is not None:
            self.former(pending)
        for future in self.futures:
            _wake(future)


def _waiters_of(pending: Pending) -> _Waiters:
    if not isinstance(pending.on_done, _Waiters):
        pending.on_done = _Waiters(pending.on_done)
    return pending.on_done
