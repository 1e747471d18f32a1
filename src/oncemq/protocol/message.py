"""A message, as consumers receive it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.schema.model import Schema

#: Where the columns of a message stand beside those of its value, their names start with this.
COLUMN_PREFIX = "message_"
T = TypeVar("T")


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

    def decode(self, as_type: type[T]) -> T:
        """Return the value as an object: of a dataclass, a msgspec Struct, a pydantic model, a TypedDict or `dict`.

        The value is JSON, unless `schema` says otherwise. `client.decode` looks the schema up first, which values in
        Avro and Protobuf need. Raises SchemaMismatch.

        >>> message.decode(Order).price
        Decimal('9.50')
        """
        # Most consumers don't decode: their start is faster without it.
        from oncemq.protocol.schema.values.objects import decode_value

        try:
            return decode_value(self.value, self.schema, as_type)
        except errors.SchemaMismatch as error:
            raise errors.SchemaMismatch(f"offset {self.offset} of '{self.topic}': {error.text}") from None
