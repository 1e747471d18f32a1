"""What the gateway keeps for each user between requests, so that nothing of one user is seen by another.

A user may have several callers: one for each credential. Their commands differ in the caller's name; the state is that
of the user, so that a client which changes its token continues where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from oncemq.gateways.link import Link

#: Users whose state is kept while they have no request in progress. The state of the user who was here last is kept.
USERS_MAX = 1_000
#: The same for the callers of one user.
_CALLERS_MAX = 64


class UserState(Protocol):
    def for_link(self, link: Link) -> Any:
        """Return the same state, which uses another caller's link."""


class MakeState(Protocol):
    def __call__(self, link: Link) -> UserState:
        """Return the state of a user, which has this link."""


class _User:
    def __init__(self, state: UserState) -> None:
        self.state = state
        #: Link and state of each caller.
        self.callers: dict[str, tuple[Link, Any]] = {}
        self.requests = 0


class Callers:
    """Belongs to one event loop."""

    def __init__(self, link: Link, make_state: MakeState) -> None:
        self._link = link
        self._make_state = make_state
        #: The user who was used last at the end.
        self._users: dict[str, _User] = {}

    def __len__(self) -> int:
        return len(self._users)

    @contextmanager
    def use(self, caller: str) -> Iterator[tuple[Link, Any]]:
        """Return the link and the state of a caller, for one request."""
        name = caller.partition("/")[0]
        user = self._users.pop(name, None)
        if user is None:
            link = self._link.for_caller(caller)
            user = _User(self._make_state(link))
            user.callers[caller] = link, user.state
        self._users[name] = user
        user.requests += 1
        try:
            yield self._find(user, caller)
        finally:
            user.requests -= 1
            self._forget_idle()

    def _find(self, user: _User, caller: str) -> tuple[Link, Any]:
        found = user.callers.pop(caller, None)
        if found is None:
            link = self._link.for_caller(caller)
            found = link, user.state.for_link(link)
        user.callers[caller] = found
        if len(user.callers) > _CALLERS_MAX:
            del user.callers[next(iter(user.callers))]
        return found

    def _forget_idle(self) -> None:
        if len(self._users) <= USERS_MAX:
            return
        for name, user in self._users.items():
            # Locks in the state of a user with requests in progress are in use.
            if not user.requests:
                del self._users[name]
                return
