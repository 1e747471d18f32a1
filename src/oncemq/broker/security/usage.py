"""What a user is using at the moment, for its quotas."""

from __future__ import annotations


class Usage:
    __slots__ = ("_allowance", "_at_ms", "connections", "in_flight_bytes", "stored_bytes", "stored_until_ms")

    def __init__(self) -> None:
        self.connections = 0
        #: Of requests that have arrived and were not decided yet.
        self.in_flight_bytes = 0
        #: What its topics store, as of the last count and with what was put since; and when it is counted again.
        self.stored_bytes = 0
        self.stored_until_ms = 0
        #: Messages that it may still put.
        self._allowance = 0.0
        self._at_ms = -1

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if it is forgotten."""
        return not self.connections and not self.in_flight_bytes

    def may_put(self, now_ms: int, per_s: int) -> bool:
        """Return whether the rate allows another put. A single put of many messages is allowed and has to be made up
        for afterwards."""
        if self._at_ms < 0:
            self._allowance = float(per_s)
        else:
            self._allowance = min(per_s, self._allowance + (now_ms - self._at_ms) * per_s / 1000)
        self._at_ms = now_ms
        return self._allowance > 0

    def count_put(self, messages: int) -> None:
        self._allowance -= messages
