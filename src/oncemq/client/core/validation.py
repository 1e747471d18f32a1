"""Checks whether a command can be sent, before it gets a number or shares a request.

A command that can't be encoded, or that the broker could not read, fails here, for its own caller only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.commands import Command, Operation, Put, envelopes_of
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import HEADERS_BYTES_MAX, REQUEST_FRAMES_MAX
from oncemq.protocol.message import Message

_encode = msgspec.msgpack.Encoder().encode
_decode_operation = msgspec.msgpack.Decoder(Operation).decode
_decode_command = msgspec.msgpack.Decoder(Command).decode

#: Where msgspec found a mistake: the index in the array, whose first element is the tag.
_FIELD_INDEX = re.compile(r" - at `\$\[(\d+)\].*`$")


def check_name(name: object, what: str) -> None:
    """Raises TypeError if the name is not text, and NameInvalid if it can't be UTF-8."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be str, not {type(name).__name__}")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise errors.NameInvalid(f"{what} {name!r} is not UTF-8: {error.reason}") from None


def check_headers(headers: Mapping[str, bytes]) -> None:
    """Check the headers of one message. Raises TooLarge."""
    size = sum(map(len, headers.values())) + sum(len(name.encode()) for name in headers)
    if size > HEADERS_BYTES_MAX:
        raise errors.TooLarge(f"the headers have {size} bytes; the limit is {HEADERS_BYTES_MAX} per message")


def offset_of(message: object, topic_id: int) -> int:
    """Return the offset of a message of this topic, or the offset itself.

    Raises TypeError, ValueError or OffsetOutOfRange."""
    if isinstance(message, Message):
        if message.topic_id != topic_id:
            raise ValueError(f"the message belongs to another topic, '{message.topic}' with id {message.topic_id}")
        return message.offset
    if not isinstance(message, int) or isinstance(message, bool):
        raise TypeError(f"expected a Message or an offset, not {type(message).__name__}")
    if message < 0:
        raise errors.OffsetOutOfRange(f"offset {message} is negative; offsets start at 0")
    return message


def check_operation(operation: Operation) -> None:
    """Raises TypeError, NameInvalid or Malformed."""
    if type(operation) is Put:
        # A fast path for batches: their envelopes are made by this client.
        check_name(operation.topic, "a topic's name")
        return
    _check(operation, _decode_operation)


def check_payloads(operation: Operation, payloads: Sequence[Frame]) -> None:
    """Raises Malformed or TooLarge: the broker would refuse a request with such payloads, and all commands in it."""
    envelopes = envelopes_of(operation)
    if len(envelopes) != len(payloads):
        raise errors.Malformed(f"{type(operation).__name__}: {len(payloads)} payloads for {len(envelopes)} envelopes")
    for envelope, payload in zip(envelopes, payloads, strict=True):
        if envelope.size != len(payload):
            raise errors.Malformed(f"a payload of {len(payload)} bytes; its envelope says {envelope.size}")
    if len(payloads) >= REQUEST_FRAMES_MAX:
        raise errors.TooLarge(f"{len(payloads)} batches in one operation; the limit is {REQUEST_FRAMES_MAX - 1}")


def too_large(operation: Operation, payloads: Sequence[Frame], bytes_max: int) -> errors.TooLarge | None:
    """The error for payloads that the broker would not accept; `bytes_max` 0 means that its limit is not known."""
    size = sum(map(len, payloads))
    if not 0 < bytes_max < size:
        return None
    if len(payloads) > 1:
        return errors.TooLarge(f"the transaction has {size} bytes; this broker accepts at most {bytes_max}")
    what = "message" if sum(envelope.count for envelope in envelopes_of(operation)) == 1 else "batch"
    return errors.TooLarge(f"a {what} of {size} bytes; this broker accepts at most {bytes_max}")


def check_command(command: Command) -> None:
    """Raises TypeError, NameInvalid or Malformed."""
    _check(command, _decode_command)


def _check(command: Any, decode: Any) -> None:
    name = type(command).__name__
    try:
        decode(_encode(command))
    except UnicodeEncodeError as error:
        raise errors.NameInvalid(f"{name}: {error.object!r} is not UTF-8: {error.reason}") from None
    except OverflowError:
        raise errors.Malformed(f"{name}: a number is larger than 64 bits") from None
    except msgspec.ValidationError as error:
        raise TypeError(f"{name}: {_name_field(command, str(error))}") from None
    except msgspec.MsgspecError as error:
        raise errors.Malformed(f"{name}: {error}") from None
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def _name_field(command: Any, text: str) -> str:
    """Replace the index of a field by its name."""
    found = _FIELD_INDEX.search(text)
    if found is None:
        return text
    field = command.__struct_fields__[int(found[1]) - 1]
    return f"{field}: {text[: found.start()]}"
