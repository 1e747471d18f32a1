"""A message, as consumers receive it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from oncemq.protocol.schema.model import Schema

#: Where the columns of a message stand beside those of its value, their names start with this.
COLUMN_PREFIX = "message_"


class Message(msgspec.Struct, frozen=True, gc=False, repr_omit_defaults=True):
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
    #: The version of the topic's schema that the value matches; 0 = the topic had none when the message was put.
    schema_version: int = 0
    #: The schema of that version, if the consumer has looked it up.
    schema: Schema | None = None

    @property
    def idempotency_key(self) -> str:
        """A string that is the same for every delivery of this message and differs for every other message."""
        return f"{self.topic_id:x}-{self.offset}"

    @property
    def text(self) -> str:
        """The value, decoded as UTF-8."""
        return self.value.decode()
