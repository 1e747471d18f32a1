"""Moves bytes between a core and a transport: what the drivers of both clients share.

`ThreadDriver` (threads.py) runs flows for threads, `EventLoopDriver` (event_loop.py) for asyncio. Neither has a thread
of its own: the caller that waits for a reply looks after the socket.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, ClassVar, TypeVar

from oncemq.client.core.commands.pending import Pending, again
from oncemq.client.runtime.caller import Caller
from oncemq.protocol import errors

if TYPE_CHECKING:
    from oncemq.client.core.core import Core
    from oncemq.client.runtime.flow import Flow
    from oncemq.client.runtime.transport import Transport

T = TypeVar("T")

log = logging.getLogger("oncemq.client")

#: While the broker does not answer, this is logged again after this time.
_LOG_AGAIN_MS = 60_000.0


def now_ms() -> float:
    """The driver's clock."""
    return time.monotonic() * 1000


class Driver(ABC):
    """Moves bytes between a core and a transport. Flows use this much of their driver."""

    #: Replies are received although no caller waits.
    receives_alone: ClassVar[bool]
    #: How its callers are told apart.
    caller: ClassVar[Caller]

    def __init__(self, core: Core, transport: Transport) -> None:
        self.core = core
        self.transport = transport
        #: Why nothing works any more: closed, or forked.
        self.stopped: errors.OnceMQError | None = None
        #: When the last `pump` began.
        self.pumped_ms = 0.0
        self._dropped: deque[Pending] = deque()
        self._logged_ms = -_LOG_AGAIN_MS

    def check_usable(self) -> None:
        """Raises ClientClosed or ForkedError if the driver was stopped."""
        if self.stopped is not None:
            raise again(self.stopped)

    def pump(self, pending: Pending | None = None) -> None:
        """Send what is to be sent, receive what has arrived, check what is overdue. Does not wait.

        What arrives after the reply to `pending` is left for the next time."""
        self.check_usable()
        core, transport = self.core, self.transport
        self.pumped_ms = at_ms = now_ms()
        has_received = False
        while self._dropped:
            core.give_up(self._dropped.popleft(), errors.ClientClosed("the caller does not want this reply any more"))
        while True:
            if transport.is_renewed:
                # Before anything is sent: the new connection begins with a hello.
                transport.is_renewed = False
                core.connection_lost(at_ms)
                has_received = True
            for request in core.outgoing(at_ms):
                transport.send(request)
            frames = transport.receive()
            while frames is not None:
                has_received = True
                core.receive(at_ms, frames)
                frames = None if pending is not None and pending.done else transport.receive()
            if transport.refusal is not None:
                self._refuse(at_ms, transport.refusal)
                has_received = True
            if transport.is_renewed or core.has_outgoing(at_ms):
                continue
            if not core.is_check_due(at_ms) or not core.check(at_ms, transport.wire_bytes()):
                if transport.refusal is None:
                    break
                continue
            self._log_no_answer(at_ms)
            self._reconnect()
            has_received = True
        if has_received:
            self.wake_waiters()

    def give_up(self, pending: Pending, error: errors.OnceMQError) -> None:
        """Fail a command that no caller waits for any more. Its number becomes void."""
        self.core.give_up(pending, error)
        self.wake_waiters()

    def drop(self, pending: Pending) -> None:
        """Give up a command with the next pump. May be called from anywhere, even from a finalizer."""
        self._dropped.append(pending)

    @abstractmethod
    def run_now(self, flow: Flow[T]) -> T:
        """Run a flow from plain code. Raises WouldWait in the flow if it has to wait and the driver can't."""

    @abstractmethod
    def wake_waiters(self) -> None:
        """Something changed that other callers may wait for."""

    @abstractmethod
    def stop(self, reason: errors.OnceMQError) -> None:
        """Close the transport. Every wait ends, and every later call raises `reason`."""

    def after_fork(self) -> None:
        """Refuse every call: this is a forked child."""
        self.stopped = errors.ForkedError("this client belongs to the parent process; connect again in the child")

    def error_for_callers(self, refusal: errors.OnceMQError) -> errors.OnceMQError:
        """Return what callers get if the broker refuses the connection."""
        return refusal

    def _refuse(self, at_ms: float, refusal: errors.OnceMQError) -> None:
        """Fail every caller. What is in an outbox may have none."""
        self.transport.refusal = None
        self.core.refused(at_ms, self.error_for_callers(refusal))
        if self.core.has_outbox:
            log.log(logging.WARNING if self._must_log(at_ms) else logging.DEBUG, "%s", refusal.text)

    def _log_no_answer(self, at_ms: float) -> None:
        level = logging.INFO if self._must_log(at_ms) else logging.DEBUG
        log.log(level, "no answer from %s; trying again", self.core.options.where)

    def _must_log(self, at_ms: float) -> bool:
        is_due = at_ms >= self._logged_ms + _LOG_AGAIN_MS
        if is_due:
            self._logged_ms = at_ms
        return is_due

    def _reconnect(self) -> None:
        self.transport.reconnect()
