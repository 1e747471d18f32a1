"""A server for each caller. What a server remembers, such as its openings of subscriptions, is seen by nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oncemq.gateways.link import Link
from oncemq.gateways.text.server import TextServer

#: Callers that are remembered while they have no request in progress.
_CALLERS_MAX = 1_000


class TextServers:
    def __init__(self, link: Link) -> None:
        self._link = link
        #: By caller, the one that was used last at the end. There is one if there are no users.
        self._servers: dict[str, TextServer] = {}
        #: Requests in progress.
        self._users: dict[str, int] = {}

    @contextmanager
    def use(self, caller: str) -> Iterator[TextServer]:
        """Return the server of a caller, for one request."""
        server = self._servers.pop(caller, None) or TextServer(self._link.for_caller(caller))
        self._servers[caller] = server
        self._users[caller] = self._users.get(caller, 0) + 1
        try:
            yield server
        finally:
            self._users[caller] -= 1
            if not self._users[caller]:
                del self._users[caller]
            if len(self._servers) > _CALLERS_MAX:
                self._forget_one()

    def _forget_one(self) -> None:
        """A server with requests in progress has locks in use."""
        idle = next((caller for caller in self._servers if caller not in self._users), None)
        if idle is not None:
            del self._servers[idle]
