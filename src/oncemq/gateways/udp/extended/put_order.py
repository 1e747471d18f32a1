"""Restores the order of one publisher's puts. It does no I/O.

Datagrams may be late, duplicated or lost. Consecutive puts from the next number on go to the broker together, as a run;
later ones wait for the missing ones; decided ones are answered again. The broker remembers all outcomes: if this object
is lost, the session's hello returns them.
"""

from __future__ import annotations

from collections.abc import Iterable

from oncemq.gateways.udp.extended.packets import Answer, Put

#: Maximum number of bytes that wait for a missing put.
WAITING_BYTES_MAX = 256 * 1024


class WaitingBytes:
    """The bytes that wait for missing puts, of all publishers together."""

    def __init__(self, bytes_max: int) -> None:
        self.total = 0
        self.bytes_max = bytes_max


class PutOrder:
    def __init__(
        self, window: int, last_number: int, answers: Iterable[Answer] = (), waiting_bytes: WaitingBytes | None = None
    ) -> None:
        self._window = window
        self._all_bytes = waiting_bytes or WaitingBytes(WAITING_BYTES_MAX)
        #: The first number without a known outcome.
        self.next_number = last_number + 1
        self._answers = {answer.number: answer for answer in answers}
        self._waiting: dict[int, Put] = {}
        self._bytes = 0
        self._is_running = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, put: Put) -> Answer | None:
        """Receive a put. Returns its answer if it is known. Otherwise the answer comes later, or the put was dropped
        and the publisher repeats it."""
        if put.number < self.next_number:
            return self._answers.get(put.number)
        # The first copy is kept: during a run, it is the one that was sent.
        is_new = put.number < self.next_number + self._window and put.number not in self._waiting
        if is_new and (put.number == self.next_number or self._has_capacity()):
            self._waiting[put.number] = put
            self._count(len(put.content))
        return None

    def _has_capacity(self) -> bool:
        return self._bytes < WAITING_BYTES_MAX and self._all_bytes.total < self._all_bytes.bytes_max

    def _count(self, size: int) -> None:
        self._bytes += size
        self._all_bytes.total += size

    def drop_waiting(self) -> None:
        """The publisher is no longer served. It repeats what has no outcome."""
        for number in list(self._waiting):
            self._drop(number)

    @property
    def has_run(self) -> bool:
        """The next put is here, and no run is in progress."""
        return not self._is_running and self.next_number in self._waiting

    def begin_run(self) -> list[Put]:
        """Return the puts that go to the broker now, in order. Until `end_run` no other run begins."""
        if self._is_running:
            return []
        run: list[Put] = []
        while (put := self._waiting.get(self.next_number + len(run))) is not None:
            run.append(put)
        self._is_running = bool(run)
        return run

    def note_answer(self, answer: Answer) -> None:
        """The next number has its outcome."""
        assert answer.number == self.next_number
        self._drop(answer.number)
        self._answers[answer.number] = answer
        self._answers.pop(answer.number - self._window, None)
        self.next_number += 1

    def end_run(self, run: Iterable[Put]) -> None:
        """End a run. The publisher may repeat those of its puts that have no outcome."""
        for put in run:
            if put.number >= self.next_number:
                self._drop(put.number)
        self._is_running = False

    def _drop(self, number: int) -> None:
        put = self._waiting.pop(number, None)
        if put is not None:
            self._count(-len(put.content))
