"""Where a client's addresses lead to. A name may lead to several places, and a name server may take its time."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence

from oncemq.config.addresses import stream_place
from oncemq.net.lookup import KnownNames, Lookup, Name
from oncemq.net.system import System

#: How long an attempt to connect waits for a name server.
_LOOKUP_WAIT_S = 0.005


class Targets:
    """The places of the current address that were not tried, then those of the next address, and so on in turns."""

    def __init__(self, urls: Sequence[str], system: System) -> None:
        self._urls = list(urls)
        self._next_url = 0
        self._system = system
        #: The current address.
        self.url = ""
        self._found: deque[Name] = deque()
        #: Lookups of names that were not answered, by address, and the one that the next attempt waits for.
        self._lookups: dict[str, Lookup | KnownNames] = {}
        self._lookup: Lookup | KnownNames | None = None

    def __len__(self) -> int:
        """The places of the current address that are left."""
        return len(self._found)

    @property
    def url_count(self) -> int:
        return len(self._urls)

    @property
    def is_looking_up(self) -> bool:
        """Whether the current attempt waits for a name server."""
        return self._lookup is not None

    def begin(self) -> None:
        """An attempt begins: move to the next address if all places of the current one were tried."""
        if not self._found:
            self.url = self._urls[self._next_url % len(self._urls)]
            self._next_url += 1

    def take(self) -> Name | None:
        """Return the next place of the current address; None while a name server has not answered. Raises OSError."""
        if not self._found and not self._find():
            return None
        return self._found.popleft()

    def _find(self) -> bool:
        url, place = self.url, stream_place(self.url)
        if isinstance(place, str):
            self._found.append((socket.AF_UNIX, place))
            return True
        self._lookup = self._lookups.get(url) or self._system.look_up(*place)
        self._lookups[url] = self._lookup
        is_done = True
        try:
            found = self._lookup.result(_LOOKUP_WAIT_S)
            is_done = found is not None
        finally:
            if is_done:
                self._lookup = None
                del self._lookups[url]
        self._found.extend(found or ())
        return is_done

    def end(self) -> None:
        """The attempt has ended. A lookup that was not answered goes on, for the next attempt with this address."""
        self._lookup = None

    def leave(self) -> None:
        """Do not try the other places of the current address."""
        self._found.clear()

    def repeat(self) -> None:
        """Try the current address once more, with all its places."""
        self._found.clear()
        self._next_url -= 1
