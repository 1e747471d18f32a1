"""The numbered commands of a session: their order, their numbers, and the window.

A command gets its number when it enters the window, in order of submission. A number that was assigned is used: by its
command or, if the caller gave that up, by a void. The broker accepts numbers only without gaps. Commands from an outbox
already have their numbers and are never given up; numbers that are missing between two of them are decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import isinf

from oncemq.client.core.commands.pending import PendingCommand
from oncemq.protocol import errors
from oncemq.protocol.commands import Void

#: Maximum bytes of payloads in flight. More makes nothing faster, and a broker that is busy disconnects a peer whose
#: unread requests exceed a limit.
INFLIGHT_BYTES_MAX = 24 * 1024 * 1024


class InflightWindow:
    """Commands in flight, and behind them the queue of those that wait for the window to move."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.next_number = 1
        #: number → command, in order of number: those that are not decided, as far as this client knows.
        self._inflight: dict[int, PendingCommand] = {}
        self._queue: deque[PendingCommand] = deque()
        #: number → size of its payloads when it was sent, and their sum
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        #: Something in flight must be sent again.
        self._must_resend = False
        #: How many commands were decided.
        self.decided_count = 0

    def __len__(self) -> int:
        return len(self._inflight) + len(self._queue)

    def __iter__(self) -> Iterator[PendingCommand]:
        yield from self._inflight.values()
        yield from self._queue

    @property
    def seen_below(self) -> int:
        """The lowest number whose answer has not been seen."""
        for number in self._inflight:
            return number
        return self._upcoming_number

    @property
    def _upcoming_number(self) -> int:
        """The number of the next command that leaves the queue."""
        return (self._queue[0].outbox_number if self._queue else 0) or self.next_number

    @property
    def payload_bytes(self) -> int:
        return sum(command.payload_bytes for command in self)

    @property
    def has_sendable(self) -> bool:
        """Whether there is something to send, if the connection allows it."""
        return self._must_resend or (bool(self._queue) and self._has_room())

    @property
    def has_callers(self) -> bool:
        """Whether a caller waits for something here, or an outbox does."""
        return bool(self._queue) or any(
            command.pending is not None or command.outbox_number for command in self._inflight.values()
        )

    @property
    def is_in_doubt(self) -> bool:
        """Whether a caller waits for something that was sent and not answered."""
        return any(command.pending is not None for command in self._inflight.values())

    def __bool__(self) -> bool:
        return bool(self._inflight or self._queue)

    def add(self, command: PendingCommand) -> None:
        self._queue.append(command)

    def start(self, command: PendingCommand, size: int) -> None:
        """Number a command at once. There must be no other here."""
        command.number = number = self.next_number
        self.next_number = number + 1
        self._inflight[number] = command
        self._sizes[number] = size
        self._bytes += size

    def get(self, number: int) -> PendingCommand | None:
        command = self._inflight.get(number)
        if command is None and number >= self._upcoming_number:
            # An earlier process sent it. This one has not sent it yet.
            return next((command for command in self._queue if command.outbox_number == number), None)
        return command

    def take(self) -> Iterator[PendingCommand]:
        """Commands to send now, in order of number; those from the queue get their numbers."""
        if self._must_resend:
            self._must_resend = False
            for command in self._inflight.values():
                if command.must_send:
                    yield command
        while self._queue and self._has_room():
            number = self._upcoming_number
            command = self._queue.popleft()
            command.number = number
            self.next_number = number + 1
            self._inflight[number] = command
            self._sizes[number] = size = command.payload_bytes
            self._bytes += size
            yield command

    def _has_room(self) -> bool:
        """Whether the next command of the queue fits. A single one always does."""
        if self._upcoming_number - self.seen_below >= self.size:
            return False
        return not self._bytes or self._bytes + self._queue[0].payload_bytes <= INFLIGHT_BYTES_MAX

    def complete(self, command: PendingCommand) -> None:
        """Its answer has been seen."""
        if command.number:
            self._inflight.pop(command.number, None)
            self._bytes -= self._sizes.pop(command.number, 0)
        else:
            self._queue.remove(command)

    def resend(self, command: PendingCommand) -> None:
        command.must_send = self._must_resend = True

    def resend_from(self, number: int) -> None:
        """Send everything from this number on again."""
        for command in self._inflight.values():
            if command.number >= number:
                command.must_send = self._must_resend = True

    def void(self, command: PendingCommand) -> None:
        """The caller gave the command up: from now on only its number is sent."""
        command.body, command.payloads, command.pending = Void(), (), None
        self.resend(command)

    def requeue_all(self) -> list[PendingCommand]:
        """The numbers belonged to another session: queue what callers wait for again, in order, and return it."""
        requeued = [command for command in self._inflight.values() if command.pending is not None]
        self._inflight.clear()
        self._sizes.clear()
        self._bytes = 0
        self._must_resend = False
        for command in requeued:
            command.number = 0
            command.must_send = True
        self._queue.extendleft(reversed(requeued))
        return requeued

    def fail_callers(self, error: errors.OnceMQError, *, everyone: bool) -> None:
        """Fail callers with a time limit, or all callers. The commands continue without them."""
        failed = []
        for command in self:
            pending = command.pending
            if pending is not None and (everyone or not isinf(pending.give_up_ms)):
                command.pending = None
                failed.append(pending)
        for pending in failed:
            pending.fail(error)

    def give_up_all(self, error: errors.OnceMQError) -> None:
        """Fail everything for its caller. What was sent is void from now on."""
        pendings = [command.pending for command in self]
        self._queue.clear()
        for command in self._inflight.values():
            self.void(command)
        for pending in pendings:
            if pending is not None:
                pending.fail(error)
