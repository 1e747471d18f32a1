"""What a listener asks about a new connection: who is it?"""

from __future__ import annotations

from typing import Protocol


class Gate(Protocol):
    def admit(self, kind: str, credential: str, address: str) -> str:
        """Return the caller of a credential that a new connection has presented, and count the connection for its user.
        "" = there are no users. Raises Unauthenticated, RateLimited or QuotaReached.

        `kind` is TOKEN, CURVE or NO_CREDENTIAL (protocol/commands), or CERTIFICATE (auth/users.py)."""

    def left(self, caller: str) -> None:
        """A connection that was admitted has ended."""

    def is_valid(self, caller: str) -> bool:
        """Whether a caller's credential still exists."""
