"""The protocol on the wire matches the golden vectors, in both directions."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest

from oncemq.protocol.batch import batch_problem, decode_batch, encode_batch, key_hashes
from oncemq.protocol.commands import Command, Keyed, Numbered, Operation
from oncemq.protocol.frames import decode_request, decode_response, encode_request, encode_response
from oncemq.protocol.replies import Reply
from oncemq.protocol.stream import StreamReader, encode_opening
from tests.protocol.vectors import (
    BATCHES,
    KEY_HASHES,
    MESSAGES,
    OPENINGS,
    PATH,
    REPLIES,
    REQUESTS,
    TYPED_BATCHES,
    Batch,
    TypedBatch,
    frames_of,
    message_bytes,
    typed_payload,
)

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(PATH.read_text())


def _found(kind: str, what: str) -> tuple[int, dict[str, Any]]:
    """Return a vector and its index, which is its request id."""
    [found] = [(number, one) for number, one in enumerate(VECTORS[kind], 1) if one["what"] == what]
    return found


def _frames(vector: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(frame) for frame in vector["frames"]]


@pytest.mark.parametrize(("what", "commands", "payloads"), REQUESTS, ids=[one[0] for one in REQUESTS])
def test_a_request_has_the_bytes_that_were_written_down(
    what: str, commands: list[Command], payloads: list[bytes]
) -> None:
    number, vector = _found("requests", what)
    assert encode_request(number, commands, payloads) == _frames(vector)
    request, matched = decode_request(_frames(vector))
    assert (request.request_id, list(request.commands)) == (number, commands)
    assert [payload for part in matched for payload in part] == payloads


@pytest.mark.parametrize(("what", "replies", "payloads"), REPLIES, ids=[one[0] for one in REPLIES])
def test_a_reply_has_the_bytes_that_were_written_down(what: str, replies: list[Reply], payloads: list[bytes]) -> None:
    number, vector = _found("replies", what)
    assert encode_response(number, replies, payloads) == _frames(vector)
    response, matched = decode_response(_frames(vector))
    assert (response.request_id, list(response.replies)) == (number, replies)
    assert [payload for part in matched for payload in part] == payloads


@pytest.mark.parametrize("batch", BATCHES, ids=[batch[0] for batch in BATCHES])
def test_a_batch_has_the_bytes_that_were_written_down(batch: Batch) -> None:
    what, values, keys, headers = batch
    payload = bytes.fromhex(_found("batches", what)[1]["hex"])
    assert encode_batch(values, keys, headers) == payload
    messages = decode_batch(payload, "t", 1, 0, 0, 0, len(values))
    assert [message.value for message in messages] == values
    assert [message.key for message in messages] == list(keys or [None] * len(values))
    assert [message.headers for message in messages] == [entry or {} for entry in headers or [None] * len(values)]


@pytest.mark.parametrize("batch", TYPED_BATCHES, ids=[batch[0] for batch in TYPED_BATCHES])
def test_a_typed_batch_has_the_bytes_that_were_written_down(batch: TypedBatch) -> None:
    what, fields, version, rows, texts = batch
    payload = bytes.fromhex(_found("typed_batches", what)[1]["hex"])
    assert typed_payload(fields, version, rows) == payload
    assert batch_problem(payload, len(rows), version) is None
    assert [message.text for message in decode_batch(payload, "t", 1, 0, 0, 0, len(rows))] == list(texts)


def test_a_key_has_the_hash_that_was_written_down() -> None:
    written = [(one["key"], one["hash"]) for one in VECTORS["key_hashes"]]
    assert [(None if key is None else key.hex(), key_hashes([key]).hex()) for key in KEY_HASHES] == written


@pytest.mark.parametrize(("what", "properties"), OPENINGS, ids=[one[0] for one in OPENINGS])
def test_an_opening_has_the_bytes_that_were_written_down(what: str, properties: dict[str, object]) -> None:
    opening = bytes.fromhex(_found("openings", what)[1]["hex"])
    assert encode_opening(properties) == opening
    reader = StreamReader(2**20, 10, as_bytes=True)
    reader.feed(opening)
    assert reader.properties == properties


@pytest.mark.parametrize(("what", "kind", "name"), MESSAGES, ids=[one[0] for one in MESSAGES])
def test_a_message_of_the_stream_transport_has_the_bytes_that_were_written_down(
    what: str, kind: str, name: str
) -> None:
    vector = _found("messages", what)[1]
    assert message_bytes(frames_of(kind, name)) == bytes.fromhex(vector["hex"])
    assert frames_of(kind, name) == _frames(vector) == _frames(_found(kind, name)[1])
    reader = StreamReader(2**20, 10, as_bytes=True)
    reader.feed(encode_opening({}) + bytes.fromhex(vector["hex"]))
    assert reader.next() == _frames(vector)


def test_there_is_a_vector_for_every_command_operation_and_reply() -> None:
    commands = [command for _, found, _ in REQUESTS for command in found]
    operations = [command.operation for command in commands if isinstance(command, Numbered | Keyed)]
    assert {type(command) for command in commands} == set(typing.get_args(Command))
    assert {type(operation) for operation in operations} == set(typing.get_args(Operation))
    assert {type(reply) for _, found, _ in REPLIES for reply in found} == set(typing.get_args(Reply))


def test_every_vector_is_checked() -> None:
    assert {one["what"] for one in VECTORS["requests"]} == {what for what, _, _ in REQUESTS}
    assert {one["what"] for one in VECTORS["replies"]} == {what for what, _, _ in REPLIES}
    assert {one["what"] for one in VECTORS["batches"]} == {batch[0] for batch in BATCHES}
    assert {one["what"] for one in VECTORS["typed_batches"]} == {batch[0] for batch in TYPED_BATCHES}
    assert {one["what"] for one in VECTORS["openings"]} == {what for what, _ in OPENINGS}
    assert {one["what"] for one in VECTORS["messages"]} == {what for what, _, _ in MESSAGES}
