"""The batch codec: messages survive a round trip; garbage raises Malformed or Unsupported, and nothing else."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncemq.protocol import errors
from oncemq.protocol.batch import batch_problem, decode_batch, encode_batch, schema_version_of, split
from oncemq.protocol.message import Message
from oncemq.protocol.schema import Schema, parse_fields
from tests.protocol.strategies import batches

SETTINGS = settings(max_examples=200, deadline=None)
Batch = tuple[list[bytes], list[bytes | None] | None, list[dict[str, bytes] | None] | None]


def _messages(batch: Batch) -> list[Message]:
    values, keys, headers = batch
    return [
        Message("t", 100 + place, value, keys[place] if keys else None, (headers and headers[place]) or {}, 5, 9)
        for place, value in enumerate(values)
    ]


@SETTINGS
@given(batches())
def test_a_batch_comes_out_as_it_went_in(batch: Batch) -> None:
    payload = encode_batch(*batch)
    assert len(payload) % 8 == 0
    assert decode_batch(payload, "t", 9, 100, 5, 0, len(batch[0])) == _messages(batch)


@SETTINGS
@given(batches(), st.data())
def test_a_slice_of_a_batch_has_its_messages(batch: Batch, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(batch[0]) - 1))
    stop = data.draw(st.integers(start + 1, len(batch[0])))
    found = decode_batch(encode_batch(*batch), "t", 9, 100 + start, 5, start, stop)
    assert found == _messages(batch)[start:stop]


def _read(payload: bytes) -> None:
    """Read everything, so that damage is detected."""
    for message in decode_batch(payload, "t", 1, 0, 0, 0, split(payload).count):
        assert isinstance(message.value, bytes)


@SETTINGS
@given(st.binary(max_size=200))
def test_garbage_is_malformed_or_unsupported(payload: bytes) -> None:
    with contextlib.suppress(errors.Malformed, errors.Unsupported):
        _read(payload)


@SETTINGS
@given(st.binary(max_size=100), st.integers(0, 3), st.integers(0, 2**32 - 1), st.integers(0, 50), st.integers(0, 50))
def test_a_good_head_before_garbage_is_malformed(
    rest: bytes, flags: int, count: int, values_bytes: int, keys_bytes: int
) -> None:
    with contextlib.suppress(errors.Malformed):
        _read(struct.pack("<BBHIIIII", 1, flags, 0, count, values_bytes, keys_bytes, 0, 0) + rest)


@SETTINGS
@given(batches(), st.data())
def test_a_damaged_batch_is_read_or_refused(batch: Batch, data: st.DataObject) -> None:
    payload = bytearray(encode_batch(*batch))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del payload[data.draw(st.integers(0, len(payload))) :]
    with contextlib.suppress(errors.Malformed, errors.Unsupported):
        _read(bytes(payload))


@pytest.mark.parametrize("sizes", [[0], [1], [7], [100], [1023], [1024], [5000], [3, 100], [0, 2000, 1], [1, 0]])
@pytest.mark.parametrize(("start", "stop"), [(0, 2500), (0, 1), (1023, 2500), (1024, 1024), (17, 1999)])
def test_values_of_any_size_are_cut_where_they_end(sizes: list[int], start: int, stop: int) -> None:
    values = [bytes([index % 256]) * sizes[index % len(sizes)] for index in range(2500)]
    keys = [None if index % 3 == 0 else value for index, value in enumerate(values)]
    messages = decode_batch(encode_batch(values, keys), "t", 7, start, 0, start, stop)
    assert [message.offset for message in messages] == list(range(start, stop))
    assert [message.value for message in messages] == values[start:stop]
    assert [message.key for message in messages] == keys[start:stop]


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 3), (2, 1)])
def test_a_slice_outside_the_batch_is_malformed(start: int, stop: int) -> None:
    with pytest.raises(errors.Malformed):
        decode_batch(encode_batch([b"a", b"b"]), "t", 1, 0, 0, start, stop)


def test_copied_messages_keep_their_first_timestamp() -> None:
    payload = encode_batch([b"a", b"b", b"c"], None, [None, {"h": b"1"}, None], [10, 2**40, 30])
    messages = decode_batch(payload, "t", 1, 100, 77, 1, 3)
    assert [(m.offset, m.value, m.timestamp_ms) for m in messages] == [(101 - 1, b"b", 2**40), (101, b"c", 30)]
    assert messages[0].headers == {"h": b"1"}


def test_a_batch_with_unknown_sections_is_refused_as_unsupported() -> None:
    payload = bytearray(encode_batch([b"a", b"b"]))
    payload[1] |= 0x40
    with pytest.raises(errors.Unsupported, match="flags 0x40"):
        decode_batch(bytes(payload), "t", 1, 0, 0, 0, 2)


@SETTINGS
@given(batches(), st.integers(1, 2**32 - 1))
def test_a_batch_says_which_schema_its_values_match(batch: Batch, version: int) -> None:
    payload = encode_batch(*batch, None, version)
    count = len(batch[0])
    schema = Schema(parse_fields("id: int64"))
    found = decode_batch(payload, "t", 9, 100, 5, 0, count, {version: schema}.get)
    assert all((message.schema_version, message.schema) == (version, schema) for message in found)
    assert schema_version_of(payload) == version
    assert batch_problem(payload, count, version) is None
    problem = batch_problem(payload, count, 0)
    assert problem is not None
    assert f"schema version {version}" in problem.text
