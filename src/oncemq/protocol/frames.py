"""Requests and replies as frames: those of a ZeroMQ message, or of a message of the stream transport (stream.py).

    request   header | payload | payload | …      payloads of the commands, in the order of the commands
    reply     header | payload | payload | …      payloads of the replies, in the order of the replies

    header    msgpack [version, request id, [command or reply, …]]

A reply has one entry for each command of its request, in the same order. The client chooses the request id; the
broker returns it unchanged and does not interpret it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from oncemq.protocol import errors, limits
from oncemq.protocol.commands import Command, payloads_of
from oncemq.protocol.replies import GetAnyReply, GetReply, NotNow, PutReply, Refusal, Reply, TakeReply
from oncemq.protocol.text_hint import hint_for_text
from oncemq.protocol.version import WIRE_VERSION

#: A frame as sockets return or accept it.
Frame = bytes | memoryview


class Request(msgspec.Struct, array_like=True, frozen=True):
    version: int
    request_id: int
    commands: tuple[Command, ...]


class Response(msgspec.Struct, array_like=True, frozen=True):
    version: int
    request_id: int
    replies: tuple[Reply, ...]


class _Undecoded(msgspec.Struct, array_like=True, frozen=True):
    """A request whose commands are only counted."""

    version: int
    request_id: int
    commands: tuple[msgspec.Raw, ...]


class _Opening(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The part of a header that has the same format in every version."""

    version: int
    request_id: int


_RequestT = TypeVar("_RequestT", Request, _Undecoded)

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_undecoded = msgspec.msgpack.Decoder(_Undecoded).decode
_decode_response = msgspec.msgpack.Decoder(Response).decode
_decode_stored = msgspec.msgpack.Decoder(tuple[int, int, tuple[PutReply]]).decode
_decode_opening = msgspec.msgpack.Decoder(_Opening).decode


def encode_request(request_id: int, commands: Sequence[Command], payloads: Sequence[Frame] = ()) -> list[Frame]:
    return [_encode((WIRE_VERSION, request_id, commands)), *payloads]


def encode_response(
    request_id: int, replies: Sequence[Reply | msgspec.Raw], payloads: Sequence[Frame] = ()
) -> list[Frame]:
    """Encode a response. A reply can be encoded already (`encode_reply`)."""
    header = _encode((WIRE_VERSION, request_id, replies))
    return [header, *payloads] if payloads else [header]


def encode_reply(reply: Reply) -> bytes:
    """Encode one reply, for `encode_response`."""
    return _encode(reply)


def encode_replies(reply: Reply, count: int) -> list[msgspec.Raw]:
    """Encode the same reply to several commands."""
    return [msgspec.Raw(_encode(reply))] * count


def decode_request(frames: Sequence[Frame]) -> tuple[Request, list[tuple[Frame, ...]]]:
    """Decode a request and the payloads of each command. Raises Malformed, VersionUnsupported or TooLarge."""
    request = _decode_header(frames, _decode_request)
    return request, _match_payloads(request.commands, frames)


def _decode_header(frames: Sequence[Frame], decode: Callable[[Frame], _RequestT]) -> _RequestT:
    if not frames or len(frames) > limits.REQUEST_FRAMES_MAX:
        raise errors.Malformed(f"the request has {len(frames)} frames; the range is 1 to {limits.REQUEST_FRAMES_MAX}")
    if len(frames[0]) > limits.REQUEST_HEADER_BYTES_MAX:
        raise errors.TooLarge(f"the header of the request has more than {limits.REQUEST_HEADER_BYTES_MAX} bytes")
    try:
        request = decode(frames[0])
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        _check_version(opening_of(frames)[0])
        raise errors.Malformed(f"the header of the request could not be decoded: {error}") from None
    if request.version != WIRE_VERSION:
        _check_version(request.version)
    if not 1 <= len(request.commands) <= limits.COMMANDS_PER_REQUEST_MAX:
        text = f"the request has {len(request.commands)} commands; the range is 1 to {limits.COMMANDS_PER_REQUEST_MAX}"
        raise errors.Malformed(text)
    return request


def _match_payloads(commands: Sequence[Command], frames: Sequence[Frame]) -> list[tuple[Frame, ...]]:
    payloads: list[tuple[Frame, ...]] = []
    used = 1
    for command in commands:
        envelopes = payloads_of(command)
        if not envelopes:
            payloads.append(())
            continue
        found = tuple(frames[used : used + len(envelopes)])
        if len(found) < len(envelopes):
            raise errors.Malformed("a payload frame is missing")
        for frame, envelope in zip(found, envelopes, strict=True):
            if len(frame) != envelope.size:
                raise errors.Malformed(f"a payload has {len(frame)} bytes, its envelope says {envelope.size}")
        payloads.append(found)
        used += len(found)
    if used != len(frames):
        raise errors.Malformed("there are more payload frames than envelopes")
    return payloads


def opening_of(frames: Sequence[Frame]) -> tuple[int, int]:
    """Return (version, request id), or zeros if they cannot be decoded."""
    try:
        opening = _decode_opening(frames[0])
    except (msgspec.MsgspecError, RecursionError, ValueError, IndexError):
        return 0, 0
    return opening.version, opening.request_id


def _check_version(version: int) -> None:
    if version not in (0, WIRE_VERSION):
        raise errors.VersionUnsupported(
            f"protocol version {version} is not supported; this side supports version {WIRE_VERSION}"
        )


def encode_refusal(frames: Sequence[Frame], error: errors.OnceMQError) -> list[Frame]:
    """Encode the reply to a request that could not be decoded: a single refusal, or a hint in plain text for a request
    of the text protocol."""
    hint = hint_for_text(frames)
    if hint is not None:
        return hint
    return encode_response(opening_of(frames)[1], [Refusal(error.code, error.text)])


def encode_not_now(frames: Sequence[Frame], error: errors.NotNow) -> list[Frame]:
    """Encode a reply that answers every command of a request with the same error. The commands are not decoded: they
    are many if a broker has to refuse them."""
    try:
        request = _decode_header(frames, _decode_undecoded)
    except errors.Refused as refused:
        return encode_refusal(frames, refused)
    return encode_response(request.request_id, encode_replies(NotNow(error.code, error.text), len(request.commands)))


def decode_response(frames: Sequence[Frame]) -> tuple[Response, list[list[Frame]]]:
    """Decode a response and the payloads of each reply. Raises Malformed or VersionUnsupported."""
    if not frames:
        raise errors.Malformed("the reply has no frames")
    try:
        response = _decode_response(frames[0])
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        _check_version(opening_of(frames)[0])
        raise errors.Malformed(f"the header of the reply could not be decoded: {error}") from None
    _check_version(response.version)
    payloads: list[list[Frame]] = []
    used = 1
    for reply in response.replies:
        count = _payload_count(reply)
        if count < 0:
            raise errors.Malformed("the reply has a negative number of payloads")
        payloads.append(list(frames[used : used + count]))
        used += count
    if used != len(frames):
        raise errors.Malformed("the number of payload frames does not match the header of the reply")
    return response, payloads


def decode_stored(frames: Sequence[Frame], request_ids: Sequence[int]) -> PutReply | None:
    """Decode the response to a single put, which was sent in one request. None: this is something else."""
    if len(frames) != 1 or len(request_ids) != 1:
        return None
    try:
        version, request_id, [reply] = _decode_stored(frames[0])
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return reply if version == WIRE_VERSION and request_id == request_ids[0] else None


def _payload_count(reply: Reply) -> int:
    if isinstance(reply, GetReply):
        return len(reply.batches)
    if isinstance(reply, TakeReply):
        return reply.payloads
    if isinstance(reply, GetAnyReply):
        return sum(len(part.batches) for part in reply.parts)
    return 0
