"""The numbered commands of a session: their order, their numbers, and the window.

A command gets its number when it enters the window, in order of submission. A number once given is used,
by its command or, when that was given up, by a void: the broker takes numbers without gaps. What comes from an
outbox has its number already, and is never given up: those that are missing between two of them are decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import isinf

from oncemq.client.core.pending import Entry
from oncemq.protocol import errors
from oncemq.protocol.commands import Void


class Flight:
    def __init__(self, window: int) -> None:
        self.window = window
        self.next_number = 1
        #: number → entry, in order of number; undecided as far as this side knows.
        self._entries: dict[int, Entry] = {}
        self._queue: deque[Entry] = deque()
        self._unsent = False

    def __len__(self) -> int:
        return len(self._entries) + len(self._queue)

    def __iter__(self) -> Iterator[Entry]:
        yield from self._entries.values()
        yield from self._queue

    @property
    def seen_below(self) -> int:
        """The lowest number whose answer has not been seen."""
        for number in self._entries:
            return number
        return self._upcoming_number

    @property
    def _upcoming_number(self) -> int:
        """Of the next entry that is taken from the queue."""
        return (self._queue[0].kept_number if self._queue else 0) or self.next_number

    @property
    def payload_bytes(self) -> int:
        return sum(entry.payload_bytes for entry in self)

    @property
    def has_work(self) -> bool:
        """Something could be sent now, if nothing else stands in the way."""
        return self._unsent or (bool(self._queue) and self._has_room())

    @property
    def has_callers(self) -> bool:
        """Somebody waits for something of this, or an outbox does."""
        return bool(self._queue) or any(
            entry.pending is not None or entry.kept_number for entry in self._entries.values()
        )

    @property
    def is_in_doubt(self) -> bool:
        """Something was sent and not answered, and somebody waits for it."""
        return any(entry.pending is not None for entry in self._entries.values())

    def add(self, entry: Entry) -> None:
        self._queue.append(entry)

    def get(self, number: int) -> Entry | None:
        entry = self._entries.get(number)
        if entry is None and number >= self._upcoming_number:
            # An earlier process sent it; this one has not yet.
            return next((entry for entry in self._queue if entry.kept_number == number), None)
        return entry

    def take(self) -> Iterator[Entry]:
        """Entries to send now, in order of number; those from the queue get their numbers."""
        if self._unsent:
            self._unsent = False
            for entry in self._entries.values():
                if entry.must_send:
                    yield entry
        while self._queue and self._has_room():
            number = self._upcoming_number
            entry = self._queue.popleft()
            entry.number = number
            self.next_number = number + 1
            self._entries[entry.number] = entry
            yield entry

    def _has_room(self) -> bool:
        return self._upcoming_number - self.seen_below < self.window

    def settle(self, entry: Entry) -> None:
        if entry.number:
            self._entries.pop(entry.number, None)
        else:
            self._queue.remove(entry)

    def go_back(self, number: int) -> None:
        """Everything from this number on is to be sent again."""
        for entry in self._entries.values():
            if entry.number >= number:
                entry.must_send = self._unsent = True

    def send_again(self, entry: Entry) -> None:
        entry.must_send = self._unsent = True

    def void(self, entry: Entry) -> None:
        """Its caller gave it up: from now on only its number is sent."""
        entry.body, entry.payloads, entry.pending = Void(), (), None
        self.send_again(entry)

    def drop(self, entry: Entry) -> bool:
        """Take back what has no number yet. False where it has one."""
        if entry.number:
            return False
        self._queue.remove(entry)
        return True

    def begin_anew(self) -> list[Entry]:
        """The numbers were another session's: what somebody waits for is queued again, in order, and returned."""
        former = [entry for entry in self._entries.values() if entry.pending is not None]
        self._entries.clear()
        self._unsent = False
        for entry in former:
            entry.number = 0
            entry.must_send = True
        self._queue.extendleft(reversed(former))
        return former

    def let_go(self, error: errors.OnceMQError, *, everyone: bool) -> None:
        """Callers whose patience is over, or all, are told; what they wait for goes on without them."""
        callers = []
        for entry in self:
            pending = entry.pending
            if pending is not None and (everyone or not isinf(pending.give_up_ms)):
                entry.pending = None
                callers.append(pending)
        for pending in callers:
            pending.fail(error)

    def give_up(self, error: errors.OnceMQError) -> None:
        """Everything fails for its caller; what was sent is void from now on."""
        given_up = [entry.pending for entry in self._entries.values()]
        given_up += [entry.pending for entry in self._queue]
        self._queue.clear()
        for entry in self._entries.values():
            self.void(entry)
        for pending in given_up:
            if pending is not None:
                pending.fail(error)
