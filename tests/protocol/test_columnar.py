"""Typed batches: rows come out as they went in, damage raises Malformed, and hostile batches are refused quickly."""

from __future__ import annotations

import contextlib
import random
import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncemq.protocol import errors
from oncemq.protocol.batch import TYPED, batch_problem, decode_batch, decode_stored, split
from oncemq.protocol.columnar import TEXT_BYTES_MAX, describe, parse_description
from oncemq.protocol.schema import parse_fields
from tests.protocol.vectors import TYPED_BATCHES, typed_payload

PAYLOADS = [(typed_payload(*batch[1:4]), len(batch[3])) for batch in TYPED_BATCHES]


def _padded(raw: bytes) -> bytes:
    return raw + b"\0" * (-len(raw) % 8)


def _batch(description: object, count: int, buffers: list[bytes]) -> bytes:
    raw = description if isinstance(description, bytes) else msgspec.msgpack.encode(description)
    table = struct.pack(f"<{len(buffers)}I", *map(len, buffers))
    head = struct.pack("<II", len(raw), len(buffers))
    values = head + _padded(raw) + _padded(table) + b"".join(map(_padded, buffers))
    return struct.pack("<BBHIIIII", TYPED, 0, 0, count, len(values), 0, 0, 0) + values


def test_a_description_comes_out_as_it_went_in() -> None:
    fields = parse_fields("a: int8, b: decimal(38,0), c: list<map<int64, struct<x: binary, y: list<time>>>>")
    assert parse_description(describe(fields)) == fields


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PAYLOADS), st.integers(0, 2**32), st.integers(1, 4))
def test_damage_is_malformed_and_nothing_else(whole: tuple[bytes, int], seed: int, flips: int) -> None:
    payload, count = bytearray(whole[0]), whole[1]
    chance = random.Random(seed)
    for _ in range(flips):
        payload[chance.randrange(len(payload))] = chance.randrange(256)
    with contextlib.suppress(errors.Malformed, errors.Unsupported):
        raw = bytes(payload)
        batch_problem(raw, count)
        for message in decode_batch(raw, "t", 1, 0, 0, 0, split(raw).count):
            msgspec.json.decode(message.value)


@pytest.mark.parametrize(
    ("description", "buffers", "reason"),
    [
        (b"\xc1", [], "can't be decoded"),
        (b"\x91" * 10_000, [], "can't be decoded"),
        ([], [], "no columns"),
        ([["a", "int65"]], [], "unknown type"),
        ([["a", ["decimal", 39, 0]]], [], "unknown type"),
        ([["a", "int8"], ["a", "int8"]], [b"", b"x", b"", b"x"], "same name"),
        ([["a", "int64"]], [b"", b"short"], "5 bytes instead of 8"),
        ([["a", "int8"]], [b"too long a bitmap", b"x"], "the bitmap"),
        ([["a", "string"]], [b"", struct.pack("<ii", 0, 100), b"x"], "1 bytes instead of 100"),
        ([["a", "string"]], [b"", struct.pack("<ii", 0, -1), b""], "end below"),
        ([["a", "string"]], [b"", struct.pack("<ii", 1, 1), b"x"], "start at 0"),
        ([["a", ["list", "int8"]]], [b"", struct.pack("<ii", 0, 2**31 - 1), b"", b""], "bytes instead of"),
        ([["a", "int8"]], [b"", b"x", b"more"], "do not have 3 buffers"),
        ([["a", ["map", "bool", "int8"]]], [b"", struct.pack("<ii", 0, 1), b"", b"x", b"", b"x"], "unknown type"),
        ([["a", ["map", "int8", "int8"]]], [b"", struct.pack("<ii", 0, 1), b"\0", b"x", b"", b"x"], "not be null"),
        ([[f"s{n}", ["struct", [[f"{m}", "int8"] for m in range(1_500)]]] for n in range(2)], [], "more than 2000"),
    ],
)
def test_a_hostile_batch_is_refused_with_its_reason(description: object, buffers: list[bytes], reason: str) -> None:
    problem = batch_problem(_batch(description, 1, buffers), 1)
    assert problem is not None
    assert reason in problem.text


def test_types_that_are_nested_too_deep_are_refused() -> None:
    kind: object = "int8"
    for _ in range(40):
        kind = ["list", kind]
    problem = batch_problem(_batch([["a", kind]], 1, []), 1)
    assert problem is not None
    assert "levels deep" in problem.text


def test_a_small_batch_that_would_become_huge_as_json_is_refused() -> None:
    name, count = "n" * 200, TEXT_BYTES_MAX // 200
    problem = batch_problem(_batch([[name, "bool"]], count, [b"", b"\0" * ((count + 7) // 8)]), count)
    assert problem is not None
    assert "too much space" in problem.text


def test_a_value_that_its_type_does_not_have_can_be_skipped_alone() -> None:
    far = struct.pack("<qqq", 0, 2**62, 0)
    payload = _batch([["at", "timestamp"]], 3, [b"", far])
    assert batch_problem(payload, 3) is None
    assert decode_stored(payload, "t", 1, 10, 0, 0, 1, 3)[0].text == '{"at":"1970-01-01T00:00:00Z"}'
    with pytest.raises(errors.Undecodable, match=r"offset 11 of 't' can't be decoded.*seek the subscription to 12"):
        decode_stored(payload, "t", 1, 11, 0, 1, 1, 2)
    assert decode_stored(payload, "t", 1, 12, 0, 2, 1, 1)[0].text == '{"at":"1970-01-01T00:00:00Z"}'


@pytest.mark.parametrize(
    ("kind", "buffers"),
    [
        ("timestamp", [struct.pack("<q", 2**62)]),
        ("string", [struct.pack("<ii", 0, 1), b"\xff"]),
        (["decimal", 5, 2], [(10**30).to_bytes(16, "little")]),
    ],
)
def test_what_a_null_has_as_bytes_means_nothing(kind: object, buffers: list[bytes]) -> None:
    payload = _batch([["at", kind]], 1, [b"\0", *buffers])
    assert decode_batch(payload, "t", 1, 0, 0, 0, 1)[0].value == b'{"at":null}'


def test_a_decimal_with_more_digits_than_its_type_is_malformed() -> None:
    for number in (100_000, -100_000):
        payload = _batch([["price", ["decimal", 5, 2]]], 1, [b"", number.to_bytes(16, "little", signed=True)])
        with pytest.raises(errors.Malformed, match="more digits"):
            split(payload)
    payload = _batch([["price", ["decimal", 5, 2]]], 1, [b"", (99_999).to_bytes(16, "little")])
    assert decode_batch(payload, "t", 1, 0, 0, 0, 1)[0].value == b'{"price":"999.99"}'
