"""The forms in which callers get messages: JSON, one JSON object per line, or one message as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET, UnsetType

from oncemq.gateways.batches import verified_payload
from oncemq.gateways.http.framework.endpoint import BYTES, JSON, NDJSON, SYNONYMS
from oncemq.gateways.http.framework.fields import struct_from
from oncemq.protocol import errors
from oncemq.protocol.batch import decode_stored
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import GetReply, TaskHead


class MessageView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message. A value that is not UTF-8 text is in base64, under the other name."""

    offset: int
    #: When it was stored, in milliseconds since 1970.
    time_ms: int
    #: The same at every delivery, and different from that of any other message.
    idempotency_key: str
    value: str | UnsetType = UNSET
    value_base64: bytes | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: bytes | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    headers_base64: dict[str, bytes] | UnsetType = UNSET


class TaskView(MessageView, frozen=True, omit_defaults=True, kw_only=True):
    """A message that is leased."""

    #: The number of deliveries, including this one.
    tries: int
    #: Why this message can't be decoded. It has no value. Ack it to skip it.
    error: str | UnsetType = UNSET


def view_of(message: Message) -> MessageView:
    """Return a message as it appears in JSON."""
    value, value_base64 = _text_or_bytes(message.value)
    key, key_base64 = _text_or_bytes(message.key)
    headers, headers_base64 = _headers(message)
    return MessageView(
        message.offset,
        message.timestamp_ms,
        message.idempotency_key,
        value,
        value_base64,
        key,
        key_base64,
        headers,
        headers_base64,
    )


def task_of(message: Message, tries: int) -> TaskView:
    """Return a leased message as it appears in JSON."""
    return struct_from(TaskView, view_of(message), tries=tries, error=UNSET)


def undecodable_tasks(topic: str, topic_id: int, head: TaskHead, error: str) -> list[TaskView]:
    """Return leased messages that can't be decoded."""
    messages = [
        Message(topic, offset, b"", None, {}, head.time_ms, topic_id)
        for offset in range(head.first_offset, head.first_offset + head.count)
    ]
    return [
        TaskView(each.offset, head.time_ms, each.idempotency_key, tries=head.tries, error=error) for each in messages
    ]


def _text_or_bytes(value: bytes | None) -> tuple[str | UnsetType, bytes | UnsetType]:
    if value is None:
        return UNSET, UNSET
    try:
        return value.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, value


def _headers(message: Message) -> tuple[dict[str, str] | UnsetType, dict[str, bytes] | UnsetType]:
    if not message.headers:
        return UNSET, UNSET
    texts: dict[str, str] = {}
    others: dict[str, bytes] = {}
    for name, value in message.headers.items():
        text, _ = _text_or_bytes(value)
        if isinstance(text, str):
            texts[name] = text
        else:
            others[name] = value
    return texts or UNSET, others or UNSET


def decode_messages(topic: str, reply: GetReply, payloads: Sequence[Frame], limit: int) -> tuple[list[Message], bool]:
    """Return the first messages of a reply, and whether it holds more. Raises DamagedInTransit, and Undecodable if the
    first ones can't be decoded."""
    messages: list[Message] = []
    for head, frame in zip(reply.batches, payloads, strict=True):
        if len(messages) >= limit:
            return messages, True
        count = min(head.count, limit - len(messages))
        payload = verified_payload(topic, head.first_offset, frame, head.checksum)
        try:
            messages += decode_stored(
                payload, topic, reply.topic_id, head.first_offset, head.time_ms, head.skip, count, head.count
            )
        except errors.Undecodable:
            if messages:
                return messages, True
            raise
        if count < head.count:
            return messages, True
    return messages, False


_encode_lines = msgspec.json.Encoder().encode_lines


def lines_of(messages: Iterable[Message]) -> bytes:
    """Return one JSON object per line."""
    return _encode_lines([view_of(message) for message in messages])


def raw_headers(message: Message) -> list[tuple[bytes, bytes]]:
    """Return the HTTP headers of a message whose value is the whole body. Key and headers are percent-encoded."""
    headers = [
        (b"oncemq-offset", b"%d" % message.offset),
        (b"oncemq-time", b"%d" % message.timestamp_ms),
        (b"oncemq-idempotency-key", message.idempotency_key.encode()),
    ]
    if message.key is not None:
        headers.append((b"oncemq-key", quote(message.key).encode()))
    if message.headers:
        headers.append((b"oncemq-headers", urlencode(message.headers).encode()))
    return headers


def accepted_media(accept: bytes | None) -> str:
    """Return the media type that the caller prefers; JSON by default."""
    if accept is None or accept in (b"*/*", b"application/json"):
        return JSON
    best, best_quality = JSON, 0.0
    for part in accept.decode("latin-1").lower().split(","):
        media, _, rest = part.strip().partition(";")
        media = JSON if media.strip() in ("*/*", "application/*") else SYNONYMS.get(media.strip(), media.strip())
        quality = _quality(rest)
        if media in (JSON, NDJSON, BYTES) and quality > best_quality:
            best, best_quality = media, quality
    return best


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
