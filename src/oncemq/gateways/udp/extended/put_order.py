"""Puts of one publisher, put back into their order. Pure.

Datagrams come late, twice or never. What is next goes to the broker, as a run of as many as are there; what is beyond
waits for what is missing; what was decided is answered again. The broker remembers all of it: whoever forgets this
object learns it anew from the session's hello.
"""

from __future__ import annotations

from collections.abc import Iterable

from oncemq.gateways.udp.extended.packets import Answer, Put

#: What waits for something that is missing, at the most.
WAITING_BYTES_MAX = 256 * 1024


class Intake:
    def __init__(self, window: int, last_number: int, answers: Iterable[Answer] = ()) -> None:
        self._window = window
        #: The first number that is not decided, as far as known here.
        self.next_number = last_number + 1
        self._answers = {answer.number: answer for answer in answers}
        self._waiting: dict[int, Put] = {}
        self._bytes = 0
        self._is_running = False

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, put: Put) -> Answer | None:
        """The answer, where it is known. Else it will come, or the put was dropped and comes again."""
        if put.number < self.next_number:
            return self._answers.get(put.number)
        # While a run is under way the first copy stays: it is the one that was sent.
        is_new = put.number < self.next_number + self._window and put.number not in self._waiting
        if is_new and (put.number == self.next_number or self._bytes < WAITING_BYTES_MAX):
            self._waiting[put.number] = put
            self._bytes += len(put.content)
        return None

    @property
    def has_run(self) -> bool:
        """Something is there to go to the broker, and nothing is under way."""
        return not self._is_running and self.next_number in self._waiting

    def begin_run(self) -> list[Put]:
        """What goes to the broker now, in order. Until `end_run` there is no other one."""
        if self._is_running:
            return []
        run: list[Put] = []
        while (put := self._waiting.get(self.next_number + len(run))) is not None:
            run.append(put)
        self._is_running = bool(run)
        return run

    def decided(self, answer: Answer) -> None:
        """The next number has its verdict."""
        assert answer.number == self.next_number
        self._drop(answer.number)
        self._answers[answer.number] = answer
        self._answers.pop(answer.number - self._window, None)
        self.next_number += 1

    def end_run(self, run: Iterable[Put]) -> None:
        """What of it is not decided by now may be sent again, by the publisher."""
        for put in run:
            if put.number >= self.next_number:
                self._drop(put.number)
        self._is_running = False

    def _drop(self, number: int) -> None:
        put = self._waiting.pop(number, None)
        if put is not None:
            self._bytes -= len(put.content)
