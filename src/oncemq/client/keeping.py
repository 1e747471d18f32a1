"""The keeper: a thread, begun with the first `put_nowait`, that sends batches which have lingered and takes in
answers when nobody else does. It never ends before its client does."""

from __future__ import annotations

import logging
import threading

from oncemq import errors
from oncemq.client.batching import Stream
from oncemq.client.driver import Driver, now_ms

log = logging.getLogger("oncemq.client")

#: The keeper looks around that often when there is nothing to do.
_REST_S = 0.25


class Keeping:
    """The part of a producer that lets nothing lie for long."""

    def __init__(self, driver: Driver, linger_ms: float) -> None:
        self._driver = driver
        self._lock = driver.lock
        self._linger_ms = linger_ms
        self._streams: dict[str, Stream] = {}
        #: Some thread may still be about to append to one of these.
        self._former_streams: dict[str, Stream] = {}
        self._unanswered_batches = 0
        self._keeper: threading.Thread | None = None
        self._bell = threading.Event()
        self._keeper_rests = False

    def _freeze(self, stream: Stream) -> None:
        raise NotImplementedError

    def _waiting_streams(self) -> list[Stream]:
        # Lists first: the keeper looks at them without the lock.
        streams = [*list(self._former_streams.values()), *list(self._streams.values())]
        return [stream for stream in streams if stream.handles]

    def _wake_keeper(self) -> None:
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="oncemq-keeper", daemon=True)
            self._keeper.start()
        elif self._keeper_rests:
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
        self._bell.wait(_REST_S if self._keeper_rests else max(self._linger_ms, 1.0) / 1000)
        self._keeper_rests = False
        self._bell.clear()
        if self._is_something_lying():
            with self._lock:
                if self._driver.stopped is None:
                    self._keep_once()

    def _is_something_lying(self) -> bool:
        due_ms = now_ms() - self._linger_ms
        if self._unanswered_batches and self._driver.pumped_ms <= due_ms:
            return True
        return bool(self._lingering_streams())

    def _lingering_streams(self) -> list[Stream]:
        at_ms = now_ms()
        waiting = self._waiting_streams()
        for stream in waiting:
            if stream.opened_ms == 0.0:
                # Nobody took their message for the first one: its time begins now.
                stream.opened_ms = at_ms
        return [stream for stream in waiting if stream.opened_ms <= at_ms - self._linger_ms]

    def _keep_once(self) -> None:
        self._freeze_lingering()
        try:
            self._driver.pump_locked()
        except errors.OnceMQError as error:
            # An embedded broker failed; the next caller meets it too.
            log.warning("%s", error)

    def _freeze_lingering(self) -> None:
        for stream in self._lingering_streams():
            self._freeze(stream)
