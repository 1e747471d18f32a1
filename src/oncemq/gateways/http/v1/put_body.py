"""The messages of a put's body: a JSON object, lines of JSON, or the body as it is. Knows nothing of the broker."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, Raw, UnsetType

from oncemq.client.gateway_api import check_headers
from oncemq.gateways.http.framework.endpoint import FORM, JSON, NDJSON
from oncemq.gateways.http.framework.validation_errors import explain
from oncemq.protocol import errors

#: Maximum number of messages in one request.
MESSAGES_MAX = 100_000


# gc=False: JSON can't contain cycles, and the collector would spend most of the time on a hundred thousand messages.
class MessageBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A message. A value that is a JSON string is stored as its text, any other as its JSON; bytes are in base64."""

    value: Raw | UnsetType = UNSET
    value_base64: bytes | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: bytes | UnsetType = UNSET
    headers: dict[str, str] = {}
    headers_base64: dict[str, bytes] = {}


class PutBody(MessageBody, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """One message, or several `messages` that are stored together."""

    messages: list[MessageBody] | UnsetType = UNSET


class Batch(msgspec.Struct, frozen=True):
    """The messages of a request. `keys` and `headers` are as long as `values`, or None if no message has any."""

    values: list[bytes]
    keys: list[bytes | None] | None = None
    headers: list[Mapping[str, bytes] | None] | None = None

    @property
    def first(self) -> tuple[bytes, bytes | None, Mapping[str, bytes] | None]:
        """The first message: its value, its key and its headers."""
        return self.values[0], self.keys[0] if self.keys else None, self.headers[0] if self.headers else None


#: Media types that tools send by default or by mistake: the caller's intention is not certain.
_MISTAKEN = {
    FORM: "with curl, use --json '{\"value\": …}', or -H 'Content-Type: text/plain' for a message as it is",
    "text/json": f"use {JSON}, or text/plain to store the body as it is",
}

_decode_body = msgspec.json.Decoder(PutBody).decode
_decode_text = msgspec.json.Decoder(str).decode
_check_json = msgspec.json.Decoder(Raw).decode


def batch_of(body: bytes, media: str, key: bytes | None) -> Batch:
    """Return a request's messages. `key` is the key of all messages without one of their own. Raises Malformed,
    MediaUnsupported, TooLarge."""
    if media in _MISTAKEN:
        raise errors.MediaUnsupported(f"'{media}' is not accepted for messages: {_MISTAKEN[media]}")
    if not media and not body:
        raise errors.Malformed("the body is empty; an empty message needs a Content-Type")
    if media == JSON:
        return _gather(_messages(body), key)
    values = _values_of_lines(body) if media == NDJSON else [body]
    return Batch(values, None if key is None else [key] * len(values))


def _messages(body: bytes) -> list[MessageBody]:
    try:
        # Values are stored as they are, so that their encoding must be checked here.
        body.decode()
        decoded = _decode_body(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what = explain(str(error), PutBody) if body else "it is empty; it must be JSON"
        raise errors.Malformed(f"the body: {what}") from None
    if decoded.messages is UNSET:
        return [decoded]
    if decoded != PutBody(messages=decoded.messages):
        raise errors.Malformed("the body must have either `messages` or the fields of one message")
    if not decoded.messages:
        raise errors.Malformed("`messages` is empty")
    return decoded.messages


def _gather(messages: list[MessageBody], key: bytes | None) -> Batch:
    _check_count(len(messages))
    keys = [key_of(message, key) for message in messages]
    headers = [headers_of(message) for message in messages]
    return Batch(
        [value_of(message) for message in messages],
        keys if any(each is not None for each in keys) else None,
        headers if any(headers) else None,
    )


def value_of(message: MessageBody) -> bytes:
    """Return the bytes to store. Raises Malformed."""
    if (message.value is UNSET) == (message.value_base64 is UNSET):
        raise errors.Malformed("a message needs either `value` or `value_base64`")
    if not isinstance(message.value_base64, UnsetType):
        return message.value_base64
    assert not isinstance(message.value, UnsetType)
    raw = bytes(message.value)
    return _decode_text(raw).encode() if raw.startswith(b'"') else raw


def key_of(message: MessageBody, default: bytes | None = None) -> bytes | None:
    """Raises Malformed."""
    if message.key is not UNSET and message.key_base64 is not UNSET:
        raise errors.Malformed("a message may have either `key` or `key_base64`, not both")
    if isinstance(message.key, str):
        return message.key.encode()
    return default if isinstance(message.key_base64, UnsetType) else message.key_base64


def headers_of(message: MessageBody) -> Mapping[str, bytes] | None:
    """Raises TooLarge."""
    if not message.headers and not message.headers_base64:
        return None
    headers = {name: text.encode() for name, text in message.headers.items()} | message.headers_base64
    check_headers(headers)
    return headers


def _values_of_lines(body: bytes) -> list[bytes]:
    """Each line is a message as it is; only the last line may be empty. Raises Malformed with the line's number."""
    lines = body.removesuffix(b"\n").split(b"\n")
    _check_count(len(lines))
    return [_line(number, line) for number, line in enumerate(lines, 1)]


def _line(number: int, line: bytes) -> bytes:
    line = line.removesuffix(b"\r")
    try:
        line.decode()
        _check_json(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what = str(error) if line.strip() else "it is empty"
        raise errors.Malformed(f"line {number} is not JSON: {what}") from None
    return line


def _check_count(count: int) -> None:
    if count > MESSAGES_MAX:
        raise errors.TooLarge(f"there are {count} messages; a request may have at most {MESSAGES_MAX}")
