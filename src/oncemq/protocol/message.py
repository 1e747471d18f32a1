"""A message, as consumers receive it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message as a consumer receives it.

    >>> message.value
    b'hello'
    """

    topic: str
    offset: int
    value: bytes
    key: bytes | None
    headers: Mapping[str, bytes]
    #: When a broker first stored the message, in milliseconds since 1970.
    timestamp_ms: int
    topic_id: int

    @property
    def idempotency_key(self) -> str:
        """A string that is the same for every delivery of this message and differs for every other message."""
        return f"{self.topic_id:x}-{self.offset}"

    @property
    def text(self) -> str:
        """The value, decoded as UTF-8."""
        return self.value.decode()
