"""Named points at which a process is killed: before or after the n-th call of a function.

Only forked processes of tests are changed. The product does not know about it.
"""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from oncemq.broker.network.listeners import Listeners
from oncemq.client.core.commands.inflight import InflightWindow
from oncemq.client.core.core import Core
from oncemq.client.core.handshake import Handshake
from oncemq.client.outbox.file import OutboxFile
from oncemq.client.outbox.storage import Storage
from oncemq.client.runtime.stream import StreamTransport
from oncemq.client.runtime.zmq_transport import ZmqTransport
from oncemq.client.transaction import Transaction
from oncemq.journal.files.journal import FileJournal


class Step(msgspec.Struct, frozen=True):
    """A function of the product, with its name in reports. Several of the same name are one step: a process uses one of
    them."""

    name: str
    owner: type
    attribute: str
    #: A process calls it only once.
    is_once: bool = False

    @property
    def points(self) -> tuple[str, str]:
        return f"before {self.name}", f"after {self.name}"


CLIENT = (
    Step("submit", InflightWindow, "add"),
    Step("send", StreamTransport, "send"),
    Step("send", ZmqTransport, "send"),
    Step("receive", Core, "receive"),
    Step("session", Handshake, "_open", is_once=True),
)
OUTBOX = (
    Step("creating the outbox", Storage, "_prepare", is_once=True),
    Step("taking the outbox over", Storage, "_take_over", is_once=True),
    Step("append", OutboxFile, "append"),
    Step("connecting the outbox", OutboxFile, "connected", is_once=True),
    Step("complete", OutboxFile, "complete"),
    Step("outbox's commit", Storage, "_transaction"),
)
TRANSACTION = (Step("transaction's end", Transaction, "__exit__"),)
BROKER = (
    Step("append", FileJournal, "append"),
    Step("sync", FileJournal, "sync"),
    Step("send", Listeners, "send"),
)


def points_of(*steps: Step) -> tuple[str, ...]:
    return tuple(dict.fromkeys(point for step in steps for point in step.points))


class KillPoint:
    """The point at which a process dies, or is only stopped. Its parent sees in shared memory whether it got there."""

    def __init__(self, point: str = "", countdown: int = 1, signal_number: int = signal.SIGKILL) -> None:
        self.point = point
        self._countdown = countdown
        self._signal_number = signal_number
        self._mark = mmap.mmap(-1, 1)

    @property
    def was_reached(self) -> bool:
        return self._mark[0] == 1

    def reach(self, point: str) -> None:
        """Called when this process is at a point: send the signal if it is the one."""
        if point != self.point:
            return
        self._countdown -= 1
        if self._countdown == 0:
            self._mark[0] = 1
            os.kill(os.getpid(), self._signal_number)

    def arm(self, steps: Sequence[Step]) -> None:
        """Wrap the functions in this process."""
        for step in steps:
            if self.point in step.points:
                found = getattr(step.owner, step.attribute)
                wrap = self._around_block if step.attribute == "_transaction" else self._around_call
                setattr(step.owner, step.attribute, wrap(step, found))

    def _around_call(self, step: Step, function: Callable[..., Any]) -> Callable[..., Any]:
        before, after = step.points

        def watched(*args: Any, **options: Any) -> Any:
            self.reach(before)
            result = function(*args, **options)
            self.reach(after)
            return result

        return watched

    def _around_block(
        self, step: Step, block: Callable[..., AbstractContextManager[Any]]
    ) -> Callable[..., AbstractContextManager[Any]]:
        """Wrap a context manager. Its end is the step: there the database commits. Reading does not count."""
        before, after = step.points

        @contextmanager
        def watched(storage: Storage, kind: str) -> Iterator[Any]:
            is_writing = kind == "IMMEDIATE"
            with block(storage, kind) as found:
                yield found
                if is_writing:
                    self.reach(before)
            if is_writing:
                self.reach(after)

        return watched
