"""How many requests are answered at the same time. Each kind has places of its own: requests that wait for messages
can't keep others out, and the gateway can be monitored while it is busy."""

from __future__ import annotations

from oncemq.gateways.http.framework.endpoint import Endpoint
from oncemq.protocol import errors

_MONITORING_MAX = 16


class Places:
    __slots__ = ("_count_max", "_what", "taken")

    def __init__(self, count_max: int, what: str) -> None:
        self.taken = 0
        self._count_max = count_max
        self._what = what

    def enter(self) -> None:
        """Raises Overloaded."""
        if self.taken >= self._count_max:
            raise errors.Overloaded(f"the limit of {self._count_max} {self._what} is reached")
        self.taken += 1

    def leave(self) -> None:
        self.taken -= 1


class Admission:
    def __init__(self, requests_max: int) -> None:
        self._answering = Places(requests_max, "concurrent requests")
        self._waiting = Places(requests_max, "requests that wait for messages")
        self._monitoring = Places(_MONITORING_MAX, "concurrent requests for monitoring")

    def places_for(self, endpoint: Endpoint, *, waits: bool) -> Places:
        if endpoint.is_monitoring:
            return self._monitoring
        return self._waiting if waits or endpoint.is_stream else self._answering

    @property
    def taken(self) -> int:
        return self._answering.taken + self._waiting.taken + self._monitoring.taken
