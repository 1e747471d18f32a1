"""The keeper: what has to happen by itself, when nobody calls.

It sends batches that have lingered, takes in answers that nobody waits for, and attends to duties. For threads it is
a thread, begun when there is something to keep; it never ends before its client does. In asyncio it is a timer.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from oncemq.client.producer.batch_buffer import Stream
from oncemq.client.runtime.driver import Driver, now_ms
from oncemq.client.runtime.rpc import Calling
from oncemq.protocol import errors

log = logging.getLogger("oncemq.client")

#: The keeper looks around that often when there is nothing to do.
_REST_S = 0.25
_NEVER = float("inf")


class Duty(Protocol):
    """Something that falls due again and again, without a caller: extending a lease, for instance.

    `client._take_on(duty)`, and again whenever `due_ms` became earlier; `client._let_go(duty)` at the end. One that
    has asked the broker sets `due_ms` to a few milliseconds later until the answer is there: nobody else may look."""

    #: When it is due, on the driver's clock; infinite while it is not. Looked at without the lock.
    due_ms: float

    def attend(self) -> None:
        """It is due: see to it, and set `due_ms` anew. Under the lock; it may ask and submit, and must not wait."""


class Keeping(Calling):
    """The part of a producer that lets nothing lie for long."""

    def __init__(self, linger_ms: float) -> None:
        self._linger_ms = linger_ms
        self._streams: dict[str, Stream] = {}
        #: Some thread may still be about to append to one of these.
        self._former_streams: dict[str, Stream] = {}
        self._unanswered_batches = 0
        #: Replaced, never changed: the keeper looks at it without the lock.
        self._duties: tuple[Duty, ...] = ()

    def _freeze(self, stream: Stream) -> None:
        raise NotImplementedError

    def _wake_keeper(self) -> None:
        """There is something to keep, or it is due earlier than it was."""
        raise NotImplementedError

    def _stop_keeper(self) -> None:
        raise NotImplementedError

    def _take_on(self, duty: Duty) -> None:
        if duty not in self._duties:
            self._duties = (*self._duties, duty)
        self._wake_keeper()

    def _let_go(self, duty: Duty) -> None:
        self._duties = tuple(each for each in self._duties if each is not duty)

    def _waiting_streams(self) -> list[Stream]:
        # Lists first: the keeper looks at them without the lock.
        streams = [*list(self._former_streams.values()), *list(self._streams.values())]
        return [stream for stream in streams if stream.handles]

    def _lingering_streams(self) -> list[Stream]:
        at_ms = now_ms()
        waiting = self._waiting_streams()
        for stream in waiting:
            if stream.opened_ms == 0.0:
                # Nobody took their message for the first one: its time begins now.
                stream.opened_ms = at_ms
        return [stream for stream in waiting if stream.opened_ms <= at_ms - self._linger_ms]

    def _next_duty_ms(self) -> float:
        return min((duty.due_ms for duty in self._duties), default=_NEVER)

    def _keep_once(self) -> None:
        """Under the lock."""
        for stream in self._lingering_streams():
            self._freeze(stream)
        try:
            self._driver.pump()
            if self._attend_to_duties():
                self._driver.pump()
        except errors.OnceMQError as error:
            # An embedded broker failed; the next caller meets it too.
            log.warning("%s", error)

    def _attend_to_duties(self) -> bool:
        at_ms = now_ms()
        due = [duty for duty in self._duties if duty.due_ms <= at_ms]
        for duty in due:
            duty.attend()
        return bool(due)


class KeeperThread(Keeping):
    """The keeper of a client that threads use."""

    _driver: Driver

    def __init__(self, linger_ms: float) -> None:
        super().__init__(linger_ms)
        self._keeper: threading.Thread | None = None
        self._bell = threading.Event()
        self._keeper_rests = False

    def _wake_keeper(self) -> None:
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="oncemq-keeper", daemon=True)
            self._keeper.start()
        elif self._keeper_rests:
            self._bell.set()

    def _stop_keeper(self) -> None:
        self._bell.set()

    def _take_on(self, duty: Duty) -> None:
        super()._take_on(duty)
        self._bell.set()

    def _keep(self) -> None:
        """Looks without the lock, and takes it only where something was left lying: a busy caller that fills
        and sends its batches itself is not disturbed."""
        while self._driver.stopped is None:
            try:
                self._look_around()
            except Exception:
                # Whatever it was: without the keeper, messages would lie for ever.
                log.exception("the keeper met an error, and goes on")
                self._bell.clear()
                self._bell.wait(_REST_S)

    def _look_around(self) -> None:
        # Said before it is looked at: who opens a batch meanwhile either is seen, or rings.
        self._keeper_rests = True
        self._keeper_rests = not self._unanswered_batches and not self._waiting_streams()
        rest_s = _REST_S if self._keeper_rests else max(self._linger_ms, 1.0) / 1000
        due_s = max(self._next_duty_ms() - now_ms(), 1.0) / 1000
        self._bell.wait(min(rest_s, due_s))
        self._keeper_rests = False
        self._bell.clear()
        if self._is_something_lying():
            with self._driver.lock:
                if self._driver.stopped is None:
                    self._keep_once()

    def _is_something_lying(self) -> bool:
        at_ms = now_ms()
        if self._unanswered_batches and self._driver.pumped_ms <= at_ms - self._linger_ms:
            return True
        return self._next_duty_ms() <= at_ms or bool(self._lingering_streams())
