"""Where a shell's output goes. plain.py implements it for a pipe, prompt.py for a terminal."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from oncemq.protocol.message import Message


class Display(Protocol):
    def say(self, text: str) -> None:
        """Show an answer to the user."""

    def error(self, text: str, advice: str = "") -> None:
        """Show an error. Any thread may call this."""

    def messages_held(self) -> AbstractContextManager[object]:
        """Inside, no messages are shown: the answer to a command comes before the messages that it causes."""

    def message(self, message: Message) -> None:
        """Show a message. When this returns, it was shown and may be acked. Any thread may call this."""
