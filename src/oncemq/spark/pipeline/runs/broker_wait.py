"""Waits for a broker that does not answer: at the start of a run, and when a query has failed because of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from oncemq.protocol import errors
from oncemq.spark.broker import Broker

#: The broker is away, or is about to be replaced: the same call may succeed later.
AWAY = (errors.BrokerAway, errors.Stopping, errors.Standby)

_PROBE_S = 1.0
_PAUSE_S = 0.2
_BACKOFF_S_MIN = 0.5
_BACKOFF_S_MAX = 10.0
#: While the broker is away, a notice is repeated at this interval.
_NOTICE_S = 300.0


def answers(broker: Broker, timeout_s: float = _PROBE_S) -> bool:
    """Whether the broker answers now."""
    try:
        with broker.connect(label="spark", timeout_s=timeout_s, tries=1, record="") as client:
            client.health()
    except AWAY:
        return False
    return True


class BrokerWait:
    """One outage after the other. `limit_s` is how long one may last; None = without limit.

    A run that makes progress calls `end`. Until then, attempts to continue are part of the same outage, with longer and
    longer pauses between them."""

    def __init__(
        self,
        broker: Broker,
        limit_s: float | None,
        notice: Callable[[str], None],
        is_stopping: Callable[[], bool],
        probe: Callable[[Broker], bool] = answers,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._broker = broker
        self._limit_s = limit_s
        self._notice = notice
        self._is_stopping = is_stopping
        self._probe = probe
        self._clock_s = clock_s
        self._sleep = sleep
        #: When the outage began; None = there is none.
        self._since_s: float | None = None
        self._since_text = ""
        #: When the next notice is due.
        self._notice_s = 0.0
        self._backoff_s = _BACKOFF_S_MIN

    @property
    def is_waiting(self) -> bool:
        return self._since_s is not None

    def begin(self, lasted_s: float = 0.0) -> None:
        """A call has failed because of the broker, after it had waited for it for this time."""
        if self._since_s is None:
            self._since_s = self._clock_s() - lasted_s
            self._since_text = datetime.fromtimestamp(time.time() - lasted_s).strftime("%Y-%m-%d %H:%M:%S")
        self._notice_s = self._clock_s()

    def end(self) -> None:
        """The run makes progress."""
        self._since_s = None
        self._backoff_s = _BACKOFF_S_MIN

    def wait(self) -> bool:
        """Return when the broker answers: True, or False if the run is to stop. Raises BrokerAway if that takes too
        long."""
        is_known = self._since_s is not None
        while True:
            if self._since_s is not None:
                self._tell()
                if not self._pause():
                    return False
            if self._probe(self._broker):
                if is_known:
                    self._notice(f"{self._broker} answers again; the pipeline continues")
                return True
            if self._since_s is None:
                self.begin(_PROBE_S)
            is_known = True

    def _tell(self) -> None:
        """Raises BrokerAway if the outage has reached its limit; else prints a notice when one is due."""
        assert self._since_s is not None
        since = f"{self._broker} is unreachable since {self._since_text}"
        if self._limit_s is not None and self._clock_s() - self._since_s >= self._limit_s:
            raise errors.BrokerAway(f"the broker at {since}, longer than the limit of {self._limit_s:g} s")
        if self._clock_s() >= self._notice_s:
            self._notice(f"the broker at {since}; the pipeline waits for it")
            self._notice_s = self._clock_s() + _NOTICE_S

    def _pause(self) -> bool:
        """Pause between two attempts. Returns whether the run continues. The pause ends early at the limit."""
        end_s = self._clock_s() + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, _BACKOFF_S_MAX)
        if self._limit_s is not None and self._since_s is not None:
            end_s = min(end_s, self._since_s + self._limit_s)
        while not self._is_stopping():
            left_s = end_s - self._clock_s()
            if left_s <= 0:
                return True
            self._sleep(min(_PAUSE_S, left_s))
        return False
