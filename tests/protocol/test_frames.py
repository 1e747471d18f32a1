"""Requests and replies as frames: both survive a round trip, and garbage raises Malformed."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncemq.protocol import errors, limits
from oncemq.protocol.commands import Command, Health
from oncemq.protocol.frames import decode_request, decode_response, encode_refusal, encode_request, encode_response
from oncemq.protocol.replies import GetAnyReply, GetReply, Refusal, Reply, TakeReply
from oncemq.protocol.version import WIRE_VERSION
from tests.protocol.strategies import commands, damaged, integers, replies, with_payloads

SETTINGS = settings(max_examples=200, deadline=None)


@SETTINGS
@given(integers, st.lists(commands, min_size=1, max_size=4), st.lists(st.binary(max_size=40), min_size=1, max_size=3))
def test_a_request_comes_out_as_it_went_in(request_id: int, found: list[Command], payloads: list[bytes]) -> None:
    fitted, frames = with_payloads(found, payloads)
    request, matched = decode_request(encode_request(request_id, fitted, frames))
    assert request.request_id == request_id
    assert list(request.commands) == fitted
    assert [payload for part in matched for payload in part] == frames


def payloads_in(reply: Reply) -> int:
    if isinstance(reply, GetReply):
        return len(reply.batches)
    if isinstance(reply, GetAnyReply):
        return sum(len(part.batches) for part in reply.parts)
    return reply.payloads if isinstance(reply, TakeReply) else 0


@SETTINGS
@given(integers, st.lists(replies, max_size=4))
def test_a_reply_comes_out_as_it_went_in(request_id: int, found: list[Reply]) -> None:
    batches = [payloads_in(reply) for reply in found]
    frames = [b"%d" % number for number in range(sum(batches))]
    response, payloads = decode_response(encode_response(request_id, found, frames))
    assert (response.request_id, list(response.replies)) == (request_id, found)
    assert [len(part) for part in payloads] == batches
    assert [payload for part in payloads for payload in part] == frames


@SETTINGS
@given(st.lists(st.binary(max_size=60), max_size=4))
def test_random_frames_are_refused(frames: list[bytes]) -> None:
    for decode in (decode_request, decode_response):
        with pytest.raises((errors.Malformed, errors.VersionUnsupported)):
            decode(frames)
    answer, _ = decode_response(encode_refusal(frames, errors.Malformed()))
    assert answer.replies == (Refusal("MALFORMED", errors.Malformed().text),)


@SETTINGS
@given(st.data(), commands)
def test_a_damaged_request_is_read_or_refused(data: st.DataObject, command: Command) -> None:
    fitted, payloads = with_payloads([command], [b"payload"])
    frames = data.draw(damaged(encode_request(7, fitted, payloads)))
    try:
        decode_request(frames)
    except (errors.Malformed, errors.VersionUnsupported, errors.TooLarge) as error:
        decode_response(encode_refusal(frames, error))


@SETTINGS
@given(st.data(), replies)
def test_a_damaged_reply_is_read_or_refused(data: st.DataObject, reply: Reply) -> None:
    payloads = [b"payload"] * payloads_in(reply)
    frames = data.draw(damaged(encode_response(7, [reply], payloads)))
    with contextlib.suppress(errors.Malformed, errors.VersionUnsupported):
        decode_response(frames)


def test_another_version_is_reported() -> None:
    frames = [msgspec.msgpack.encode((WIRE_VERSION + 1, 42, [["something", "new"]]))]
    with pytest.raises(errors.VersionUnsupported, match=str(WIRE_VERSION + 1)):
        decode_request(frames)
    answer, _ = decode_response(encode_refusal(frames, errors.VersionUnsupported()))
    assert answer.request_id == 42


def test_a_request_of_too_many_frames_commands_or_bytes_is_refused() -> None:
    header = encode_request(1, [Health()])[0]
    with pytest.raises(errors.Malformed):
        decode_request([header] * (limits.REQUEST_FRAMES_MAX + 1))
    with pytest.raises(errors.Malformed):
        decode_request(encode_request(1, [Health()] * (limits.COMMANDS_PER_REQUEST_MAX + 1)))
    with pytest.raises(errors.TooLarge):
        decode_request([bytes(limits.REQUEST_HEADER_BYTES_MAX + 1)])
    with pytest.raises(errors.Malformed):
        decode_request(encode_request(1, []))
