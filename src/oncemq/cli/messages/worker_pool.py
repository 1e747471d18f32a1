"""Workers of one process: take messages, run commands for them, so many at a time, and settle what became of them.

The main thread takes; each command has a thread that waits for it. A signal is noticed by the main thread: it takes
nothing more, lets the running commands end, and gives back the rest.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemq.cli.messages.message_command import KILL_AFTER_S, Run
from oncemq.cli.support.output import count_of, duration_text, note, warn
from oncemq.protocol.errors import LeaseLost

if TYPE_CHECKING:
    from oncemq.client.worker.sync import SharedSubscription
    from oncemq.client.worker.task import Task

_RETRY_S_MAX = 300.0
_DOUBLINGS_MAX = 30
_LOOK_EVERY_S = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terms(NamedTuple):
    """What the work is, and how it is done."""

    command: tuple[str, ...]
    jobs: int = 1
    #: A command may take so long; None: as long as it likes.
    timeout_s: float | None = None
    #: After the first failure.
    retry_s: float = 1.0
    #: At the end commands have so long; None: as long as they like.
    grace_s: float | None = None

    def delay_s(self, tries: int) -> float:
        """How long after a failure a message is delivered again.

        >>> [Terms(("true",), retry_s=1).delay_s(tries) for tries in (1, 2, 3, 99)]
        [1.0, 2.0, 4.0, 300.0]
        """
        return min(self.retry_s * 2.0 ** min(tries - 1, _DOUBLINGS_MAX), max(self.retry_s, _RETRY_S_MAX))


class Tally:
    """What became of the messages."""

    def __init__(self) -> None:
        self.runs = 0
        self.done = 0
        self.failed = 0
        #: Failed, and given up.
        self.dead = 0
        #: Given back unfinished.
        self.returned = 0
        #: Done, but too late: somebody else may have done it, too.
        self.late = 0
        #: Offsets that failed, and were not done later on.
        self.undone: set[int] = set()

    def entry(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "undone"} | {"undone": len(self.undone)}

    def text(self) -> str:
        """
        >>> Tally().text()
        '0 done, 0 failed.'
        """
        parts = [f"{self.done:,} done", f"{self.failed:,} failed"]
        parts += [f"{self.dead:,} of them to the dead letters"] if self.dead else []
        parts += [f"{self.returned:,} given back"] if self.returned else []
        parts += [f"{self.late:,} too late"] if self.late else []
        return ", ".join(parts) + "."


class _Stop(BaseException):
    """A signal came while a message was waited for."""


class Crew:
    """Takes, runs, settles."""

    def __init__(self, shared: SharedSubscription, terms: Terms) -> None:
        self.tally = Tally()
        #: The first one that came.
        self.signal: int | None = None
        self._signals = 0
        self._is_waiting = False
        self._shared = shared
        self._terms = terms
        self._change = threading.Condition()
        self._runs: dict[Task, Run | None] = {}
        #: Commands are being killed: how they end says nothing of their messages.
        self._is_over = False
        #: What went wrong beside a command, and ends the work.
        self._error: Exception | None = None

    def work(self, count: int | None = None, wait_s: float | None = None) -> None:
        """Until so many messages were worked on, or nothing came for so long, or a signal."""
        with self._heeding_signals(), ThreadPoolExecutor(self._terms.jobs) as threads:
            try:
                for task in self._tasks(count, wait_s):
                    with self._change:
                        self._runs[task] = None
                    threads.submit(self._work_on, task)
            finally:
                self._finish()
        if self._error is not None:
            raise self._error
        try:
            self._shared.flush()
        except LeaseLost as error:
            self._note_late(error)

    # Taking.

    def _tasks(self, count: int | None, wait_s: float | None) -> Iterator[Task]:
        since_s = time.monotonic()
        while self._has_a_free_hand() and (count is None or self.tally.runs < count):
            task = self._take(None if wait_s is None else min(_LOOK_EVERY_S, wait_s))
            if task is not None:
                self.tally.runs += 1
                yield task
            if task is not None or self._runs:
                since_s = time.monotonic()
            elif wait_s is not None and time.monotonic() >= since_s + wait_s:
                return

    def _has_a_free_hand(self) -> bool:
        """Waits for one. False: it is time to end."""
        while not self._is_ending() and len(self._runs) >= self._terms.jobs:
            with self._change:
                self._change.wait(_LOOK_EVERY_S)
        return not self._is_ending()

    def _is_ending(self) -> bool:
        return self.signal is not None or self._error is not None

    def _take(self, timeout_s: float | None) -> Task | None:
        try:
            self._is_waiting = True
            return self._shared.take(timeout_s) if self.signal is None else None
        except _Stop:
            return None
        except LeaseLost as error:
            self._note_late(error)
            return None
        finally:
            self._is_waiting = False

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        former = [signal.signal(number, self._on_signal) for number in _SIGNALS]
        try:
            yield
        finally:
            for number, handler in zip(_SIGNALS, former, strict=True):
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self._signals += 1
        if self._is_waiting:
            # Once: what is done on the way out is not interrupted.
            self._is_waiting = False
            raise _Stop

    # The end.

    def _finish(self) -> None:
        """Wait for the commands that run, within grace; then they are killed."""
        begin_s = time.monotonic()
        if self.signal is not None and self._runs:
            note(f"Waiting for {count_of(len(self._runs), 'command')} to end; once more kills them.")
        while self._runs and not self._is_grace_over(begin_s):
            with self._change:
                self._change.wait(_LOOK_EVERY_S)
        if self._runs:
            self._is_over = True
            self._kill_all()

    def _is_grace_over(self, begin_s: float) -> bool:
        grace_s = self._terms.grace_s
        return self._signals > 1 or (grace_s is not None and time.monotonic() >= begin_s + grace_s)

    def _kill_all(self) -> None:
        until_s = time.monotonic() + KILL_AFTER_S
        self._signal_all(signal.SIGTERM)
        while self._runs:
            with self._change:
                self._change.wait(_LOOK_EVERY_S)
            if time.monotonic() >= until_s:
                self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for run in list(self._runs.values()):
            if run is not None:
                run.signal(number)

    # One message. From here on in its own thread.

    def _work_on(self, task: Task) -> None:
        try:
            failure = self._failure_of(task)
            with self._change:
                self._settle(task, failure)
        except Exception as error:
            self._error = self._error or error
        finally:
            with self._change:
                del self._runs[task]
                self._change.notify_all()

    def _failure_of(self, task: Task) -> str:
        """Why the command failed; empty: it did not."""
        terms = self._terms
        if self._is_over:
            return "not begun"
        try:
            run = Run(terms.command, task.message, task.tries, prefixed=terms.jobs > 1)
        except OSError as error:
            return f"can't be started: {error.strerror or error}"
        self._runs[task] = run
        code = run.wait(terms.timeout_s)
        if code is None:
            return f"killed after {duration_text((terms.timeout_s or 0) * 1000)}"
        return "" if code == 0 else f"exit code {code}" if code > 0 else f"killed by signal {-code}"

    def _settle(self, task: Task, failure: str) -> None:
        if not failure:
            self._ack(task)
        elif self._is_over:
            # Not its fault: it is given back when we leave.
            self.tally.returned += 1
        else:
            self.tally.failed += 1
            self.tally.undone.add(task.offset)
            self._fail(task, failure)

    def _ack(self, task: Task) -> None:
        try:
            task.ack()
        except LeaseLost as error:
            self._note_late(error)
            return
        self.tally.done += 1
        self.tally.undone.discard(task.offset)

    def _fail(self, task: Task, failure: str) -> None:
        sharing = self._shared.sharing
        if sharing.dead_topic and task.tries >= sharing.tries_max:
            self.tally.dead += 1
            task.reject(failure)
            note(f"offset {task.offset}: {failure}; it goes to {sharing.dead_topic} after try {task.tries}.")
            return
        delay_s = self._terms.delay_s(task.tries)
        task.nack(delay_s)
        when = f"in {duration_text(delay_s * 1000)}" if delay_s else "at once"
        note(f"offset {task.offset}: {failure}; it comes again {when}.")

    def _note_late(self, error: LeaseLost) -> None:
        self.tally.late += 1
        warn(f"{error.text}: it may be done twice.")
