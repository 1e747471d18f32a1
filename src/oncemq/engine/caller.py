"""For whom a command is decided."""

from __future__ import annotations

from typing import Protocol


class Caller(Protocol):
    """A user who was authenticated and may do what the command says. Without users, there is no caller."""

    #: Owns what the command creates.
    user: str
    #: Sees what belongs to others.
    is_viewer: bool

    def sees(self, topic: str) -> bool:
        """Return whether the user may know that a topic exists, or which topics match a pattern."""

    def seal(self, number: int) -> str:
        """Return a number as a text that nobody else can make."""

    def unseal(self, text: str) -> int | None:
        """Return the number in a text of `seal`; None if it is not one of this user."""
