"""The workers of one process: take messages, run commands for them concurrently, then ack or nack the messages.

The main thread takes messages. Each command has a thread that waits for it. A signal is handled by the main thread: it
takes no more messages, lets the running commands end, and returns the rest.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemq.cli.messages.message_command import KILL_AFTER_S, MessageCommand
from oncemq.protocol.errors import LeaseLost, Undecodable
from oncemq.terminal import count_of, duration_text, note, signals_handled, warn

if TYPE_CHECKING:
    from oncemq.client.worker.sync import SharedSubscription
    from oncemq.client.worker.task import Task

_RETRY_S_MAX = 300.0
_DOUBLINGS_MAX = 30
_POLL_S = 0.2


class JobOptions(NamedTuple):
    """The command, and how it is run."""

    command: tuple[str, ...]
    jobs: int = 1
    #: Maximum run time of a command. None: no limit.
    timeout_s: float | None = None
    #: Delay after the first failure.
    retry_s: float = 1.0
    #: Time that commands have to end when the pool stops. None: no limit.
    grace_s: float | None = None

    def delay_s(self, tries: int) -> float:
        """Return the delay before a message is redelivered after a failure.

        >>> [JobOptions(("true",), retry_s=1).delay_s(tries) for tries in (1, 2, 3, 99)]
        [1.0, 2.0, 4.0, 300.0]
        """
        return min(self.retry_s * 2.0 ** min(tries - 1, _DOUBLINGS_MAX), max(self.retry_s, _RETRY_S_MAX))


class WorkSummary:
    """Counts of what happened to the messages."""

    def __init__(self) -> None:
        self.runs = 0
        self.done = 0
        self.failed = 0
        #: Failed, and dead-lettered.
        self.dead = 0
        #: Returned to the broker without a result.
        self.returned = 0
        #: Done after the lease had expired: another worker may have done them, too.
        self.late = 0
        #: Offsets that failed and did not succeed later.
        self.undone: set[int] = set()

    def entry(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {name: value for name, value in vars(self).items() if name != "undone"} | {"undone": len(self.undone)}

    def text(self) -> str:
        """
        >>> WorkSummary().text()
        '0 done, 0 failed.'
        """
        parts = [f"{self.done:,} done", f"{self.failed:,} failed"]
        parts += [f"{self.dead:,} of them dead-lettered"] if self.dead else []
        parts += [f"{self.returned:,} returned"] if self.returned else []
        parts += [f"{self.late:,} too late"] if self.late else []
        return ", ".join(parts) + "."


class _SignalReceived(BaseException):
    """A signal arrived while the main thread was waiting for a message."""


class WorkerPool:
    """Takes messages, runs commands, and acks or nacks."""

    def __init__(self, shared: SharedSubscription, options: JobOptions) -> None:
        self.summary = WorkSummary()
        #: The first signal that arrived.
        self.signal: int | None = None
        self._signals = 0
        self._is_waiting = False
        self._shared = shared
        self._options = options
        self._change = threading.Condition()
        self._running: dict[Task, MessageCommand | None] = {}
        #: Commands are being killed: their exit codes say nothing about their messages.
        self._is_killing = False
        #: An error outside of a command. It ends the work.
        self._error: Exception | None = None

    def work(self, count: int | None = None, wait_s: float | None = None) -> None:
        """Work until `count` commands have run, or no message arrived for `wait_s`, or a signal arrived."""
        with signals_handled(self._on_signal), ThreadPoolExecutor(self._options.jobs) as threads:
            try:
                for task in self._tasks(count, wait_s):
                    with self._change:
                        self._running[task] = None
                    threads.submit(self._process, task)
            finally:
                self._finish()
        if self._error is not None:
            raise self._error
        try:
            self._shared.flush()
        except LeaseLost as error:
            self._count_late(error)

    # The main thread takes messages.

    def _tasks(self, count: int | None, wait_s: float | None) -> Iterator[Task]:
        since_s = time.monotonic()
        while self._wait_for_free_job() and (count is None or self.summary.runs < count):
            task = self._take(None if wait_s is None else min(_POLL_S, wait_s))
            if task is not None:
                self.summary.runs += 1
                yield task
            if task is not None or self._running:
                since_s = time.monotonic()
            elif wait_s is not None and time.monotonic() >= since_s + wait_s:
                return

    def _wait_for_free_job(self) -> bool:
        """Wait until another command can be started. Returns False if the pool is stopping."""
        while not self._is_stopping() and len(self._running) >= self._options.jobs:
            with self._change:
                self._change.wait(_POLL_S)
        return not self._is_stopping()

    def _is_stopping(self) -> bool:
        return self.signal is not None or self._error is not None

    def _take(self, timeout_s: float | None) -> Task | None:
        try:
            self._is_waiting = True
            return self._shared.take(timeout_s) if self.signal is None else None
        except _SignalReceived:
            return None
        except LeaseLost as error:
            self._count_late(error)
            return None
        except Undecodable as error:
            # It is delivered again, and becomes a dead letter after its last try.
            warn(f"{error.text}.")
            return None
        finally:
            self._is_waiting = False

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self._signals += 1
        if self._is_waiting:
            # Raise only once: the cleanup after it must not be interrupted.
            self._is_waiting = False
            raise _SignalReceived

    # The end.

    def _finish(self) -> None:
        """Wait for the running commands within the grace period, then kill them."""
        begin_s = time.monotonic()
        if self.signal is not None and self._running:
            note(f"Waiting for {count_of(len(self._running), 'command')} to end; a second signal kills them.")
        while self._running and not self._is_grace_over(begin_s):
            with self._change:
                self._change.wait(_POLL_S)
        if self._running:
            self._is_killing = True
            self._kill_all()

    def _is_grace_over(self, begin_s: float) -> bool:
        grace_s = self._options.grace_s
        return self._signals > 1 or (grace_s is not None and time.monotonic() >= begin_s + grace_s)

    def _kill_all(self) -> None:
        until_s = time.monotonic() + KILL_AFTER_S
        self._signal_all(signal.SIGTERM)
        while self._running:
            with self._change:
                self._change.wait(_POLL_S)
            if time.monotonic() >= until_s:
                self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for command in list(self._running.values()):
            if command is not None:
                command.signal(number)

    # One message, in a thread of its own.

    def _process(self, task: Task) -> None:
        try:
            failure = self._run_command(task)
            with self._change:
                self._settle(task, failure)
        except Exception as error:
            self._error = self._error or error
        finally:
            with self._change:
                del self._running[task]
                self._change.notify_all()

    def _run_command(self, task: Task) -> str:
        """Run the command. Returns why it failed, or an empty text."""
        options = self._options
        if self._is_killing:
            return "not started"
        try:
            command = MessageCommand(options.command, task.message, task.tries, prefixed=options.jobs > 1)
        except OSError as error:
            return f"can't be started: {error.strerror or error}"
        self._running[task] = command
        code = command.wait(options.timeout_s)
        if code is None:
            return f"killed after {duration_text((options.timeout_s or 0) * 1000)}"
        return "" if code == 0 else f"exit code {code}" if code > 0 else f"killed by signal {-code}"

    def _settle(self, task: Task, failure: str) -> None:
        if not failure:
            self._ack(task)
        elif self._is_killing:
            # The command was killed by us: the message is returned when the subscription is closed.
            self.summary.returned += 1
        else:
            self.summary.failed += 1
            self.summary.undone.add(task.offset)
            self._nack(task, failure)

    def _ack(self, task: Task) -> None:
        try:
            task.ack()
        except LeaseLost as error:
            self._count_late(error)
            return
        self.summary.done += 1
        self.summary.undone.discard(task.offset)

    def _nack(self, task: Task, failure: str) -> None:
        sharing = self._shared.sharing
        if sharing.dead_topic and task.tries >= sharing.tries_max:
            self.summary.dead += 1
            task.reject(failure)
            note(f"offset {task.offset}: {failure}; dead-lettered to {sharing.dead_topic} after try {task.tries}.")
            return
        delay_s = self._options.delay_s(task.tries)
        task.nack(delay_s)
        when = f"in {duration_text(delay_s * 1000)}" if delay_s else "at once"
        note(f"offset {task.offset}: {failure}; it is redelivered {when}.")

    def _count_late(self, error: LeaseLost) -> None:
        self.summary.late += 1
        warn(f"{error.text}: the message may be processed twice.")
