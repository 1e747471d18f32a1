"""Requests and replies as ZeroMQ frames.

    request   header | payload | payload | …      those of the commands that carry any, in their order
    reply     header | payload | payload | …      those of the replies that bring messages, in their order

    header    msgpack [version, request id, [command or reply, …]]

A reply has as many entries as its request has commands, in the same order. The request id is the client's
own; the broker gives it back and does not look at it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncemq.protocol import errors, limits
from oncemq.protocol.commands import Command, payloads_of
from oncemq.protocol.replies import GetAnyReply, GetReply, NotNow, Refusal, Reply, TakeReply
from oncemq.protocol.version import WIRE_VERSION

#: A frame as pyzmq gives or takes it.
Frame = bytes | memoryview


class Request(msgspec.Struct, array_like=True, frozen=True):
    version: int
    request_id: int
    commands: tuple[Command, ...]


class Response(msgspec.Struct, array_like=True, frozen=True):
    version: int
    request_id: int
    replies: tuple[Reply, ...]


class _Opening(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What can be read of a header whatever its version."""

    version: int
    request_id: int


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_response = msgspec.msgpack.Decoder(Response).decode
_decode_opening = msgspec.msgpack.Decoder(_Opening).decode


def encode_request(request_id: int, commands: Sequence[Command], payloads: Sequence[Frame] = ()) -> list[Frame]:
    return [_encode((WIRE_VERSION, request_id, commands)), *payloads]


def encode_response(request_id: int, replies: Sequence[Reply], payloads: Sequence[Frame] = ()) -> list[Frame]:
    return [_encode((WIRE_VERSION, request_id, replies)), *payloads]


def decode_request(frames: Sequence[Frame]) -> tuple[Request, list[tuple[Frame, ...]]]:
    """A request, and for each command its payloads. Raises Malformed, VersionUnsupported, TooLarge."""
    if not frames or len(frames) > limits.REQUEST_FRAMES_MAX:
        raise errors.Malformed(f"a request of {len(frames)} frames")
    if len(frames[0]) > limits.REQUEST_HEADER_BYTES_MAX:
        raise errors.TooLarge("a request's header")
    try:
        request = _decode_request(frames[0])
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        _check_version(opening_of(frames)[0])
        raise errors.Malformed(f"a request's header: {error}") from None
    _check_version(request.version)
    if not 1 <= len(request.commands) <= limits.COMMANDS_PER_REQUEST_MAX:
        raise errors.Malformed(f"a request of {len(request.commands)} commands")
    return request, _match_payloads(request.commands, frames)


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
                raise errors.Malformed(f"a payload of {len(frame)} bytes where {envelope.size} were announced")
        payloads.append(found)
        used += len(found)
    if used != len(frames):
        raise errors.Malformed("a payload frame belongs to no command")
    return payloads


def opening_of(frames: Sequence[Frame]) -> tuple[int, int]:
    """(version, request id) as far as they can be read; zeros where not."""
    try:
        opening = _decode_opening(frames[0])
    except (msgspec.MsgspecError, RecursionError, ValueError, IndexError):
        return 0, 0
    return opening.version, opening.request_id


def _check_version(version: int) -> None:
    if version not in (0, WIRE_VERSION):
        raise errors.VersionUnsupported(f"protocol version {version}; this side speaks {WIRE_VERSION}")


def encode_refusal(frames: Sequence[Frame], error: errors.OnceMQError) -> list[Frame]:
    """The answer to a request that could not be read: one refusal, whatever it held."""
    return encode_response(opening_of(frames)[1], [Refusal(error.code, error.text)])


def encode_not_now(frames: Sequence[Frame], error: errors.NotNow) -> list[Frame]:
    """The same answer to every command of a request, whatever it holds."""
    try:
        request, _ = decode_request(frames)
    except errors.Refused as refused:
        return encode_refusal(frames, refused)
    return encode_response(request.request_id, [NotNow(error.code, error.text)] * len(request.commands))


def decode_response(frames: Sequence[Frame]) -> tuple[Response, list[list[Frame]]]:
    """A response, and for each reply its payloads. Raises Malformed, VersionUnsupported."""
    if not frames:
        raise errors.Malformed("a reply of no frames")
    try:
        response = _decode_response(frames[0])
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        _check_version(opening_of(frames)[0])
        raise errors.Malformed(f"a reply's header: {error}") from None
    _check_version(response.version)
    payloads: list[list[Frame]] = []
    used = 1
    for reply in response.replies:
        count = _payload_count(reply)
        if count < 0:
            raise errors.Malformed("a reply announces fewer than no payloads")
        payloads.append(list(frames[used : used + count]))
        used += count
    if used != len(frames):
        raise errors.Malformed("a reply's payload frames don't fit its header")
    return response, payloads


def _payload_count(reply: Reply) -> int:
    if isinstance(reply, GetReply):
        return len(reply.batches)
    if isinstance(reply, TakeReply):
        return reply.payloads
    if isinstance(reply, GetAnyReply):
        return sum(len(part.batches) for part in reply.parts)
    return 0
