"""Where a shell's words go. What a terminal and a pipe do with them, plain.py and prompt.py know."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from oncemq.protocol.message import Message


class Screen(Protocol):
    def say(self, text: str) -> None:
        """An answer to the user."""

    def trouble(self, text: str, advice: str = "") -> None:
        """Something went wrong. Any thread may say so."""

    def held(self) -> AbstractContextManager[object]:
        """Inside, messages wait: an answer comes before what it brings about."""

    def message(self, message: Message) -> None:
        """When this returns, it was shown: it may be acked. From any thread."""
