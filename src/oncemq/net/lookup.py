"""Finds out what a host and a port lead to, without making the caller wait for a name server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

#: The family of a socket, and what it is bound or connected to.
Name = tuple[int, Any]


class Lookup:
    """A lookup in a thread of its own, which ends when the name server has answered or the system gives up."""

    def __init__(self, find: Callable[[], list[Name]]) -> None:
        self._find = find
        self._found: list[Name] = []
        self._error: OSError | None = None
        self._is_done = threading.Event()
        threading.Thread(target=self._run, name="oncemq-lookup", daemon=True).start()

    def _run(self) -> None:
        try:
            self._found = self._find()
        except OSError as error:
            self._error = error
        finally:
            self._is_done.set()

    def result(self, wait_s: float) -> list[Name] | None:
        """Wait for at most this long. None: there is no answer yet. Raises OSError."""
        if not self._is_done.wait(wait_s):
            return None
        if self._error is not None:
            raise self._error
        return self._found


class KnownNames:
    """The result of a lookup that needs no name server."""

    def __init__(self, found: list[Name]) -> None:
        self._found = found

    def result(self, _wait_s: float) -> list[Name] | None:
        return self._found
