"""FetchedBatches batches as Arrow columns, and rows as payloads: the same messages, either way."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from oncemq.arrow.columns import TYPES, FetchedBatches, record_batch
from oncemq.arrow.idempotency_keys import idempotency_keys
from oncemq.arrow.payloads import build_payloads, message_columns
from oncemq.protocol import errors
from oncemq.protocol.batch import decode_batch, encode_batch, key_hashes
from oncemq.protocol.message import Message
from oncemq.protocol.replies import BatchHead

TOPIC_ID = 0xABC


def some_messages(count: int, *, long_headers: bool = False) -> tuple[list[bytes], list[bytes | None], list[Any]]:
    chance = random.Random(7)
    name = "x" * 40 if long_headers else "trace"
    values = [chance.randbytes(chance.randrange(50)) for _ in range(count)]
    keys = [b"key-%d" % (index % 7) if index % 3 else None for index in range(count)]
    headers = [{"kind": b"order", name: b"%d" % (index % 5)} if index % 2 else None for index in range(count)]
    return values, keys, headers


def as_row(message: Message) -> dict[str, object]:
    return {
        "topic": message.topic,
        "offset": message.offset,
        "key": message.key,
        "value": message.value,
        "headers": list(message.headers.items()) or None,
        "timestamp": message.timestamp_ms * 1000,
        "idempotency_key": message.idempotency_key,
        "schema_version": message.schema_version,
    }


def rows_in(batch: Any) -> list[dict[str, object]]:
    columns = [
        column.cast(pa.int64()) if name == "timestamp" else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return list(pa.record_batch(columns, names=batch.schema.names).to_pylist())


@pytest.mark.parametrize("times", [False, True])
def test_columns_hold_what_messages_hold(times: bool) -> None:
    values, keys, headers = some_messages(1000)
    times_ms = [1_000_000 + 10 * index for index in range(1000)] if times else None
    first = encode_batch(values, keys, headers, times_ms)
    second = encode_batch([b"plain", b"values"], schema_version=3)
    heads = [BatchHead(995, 20, 5, 77, 0), BatchHead(1015, 2, 0, 78, 0)]
    messages = decode_batch(first, "orders", TOPIC_ID, 995, 77, 5, 25)
    messages += decode_batch(second, "orders", TOPIC_ID, 1015, 78, 0, 2)
    batch = record_batch(
        FetchedBatches("orders", TOPIC_ID, list(zip(heads, [first, second], strict=True))), tuple(TYPES)
    )
    batch.validate(full=True)
    assert batch.schema == pa.schema(list(TYPES.items()))
    assert rows_in(batch) == [as_row(message) for message in messages]


def test_only_the_chosen_columns_are_made() -> None:
    stored = FetchedBatches("orders", TOPIC_ID, [(BatchHead(0, 1, 0, 5, 0), encode_batch([b"one"]))])
    assert rows_in(record_batch(stored, ["value", "offset"])) == [{"value": b"one", "offset": 0}]


def test_idempotency_keys_are_those_of_messages_whatever_their_number_of_digits() -> None:
    runs = [(0, 2500), (9_990, 20), (999_995, 10), (5, 1), (10**15 - 3, 6)]
    expected = [f"{TOPIC_ID:x}-{offset}" for first, count in runs for offset in range(first, first + count)]
    assert idempotency_keys(TOPIC_ID, runs).to_pylist() == expected


@pytest.mark.parametrize("at", [24, 28, 24 + 4 * 3])
def test_offsets_that_don_t_fit_are_refused_before_arrow_trusts_them(at: int) -> None:
    payload = bytearray(encode_batch([b"one", b"two", b"three"]))
    payload[at : at + 4] = (99).to_bytes(4, "little")
    stored = FetchedBatches("orders", TOPIC_ID, [(BatchHead(0, 3, 0, 5, 0), bytes(payload))])
    with pytest.raises(errors.Malformed):
        record_batch(stored, ["value"])


@pytest.mark.parametrize("long_headers", [False, True])
def test_rows_become_the_payloads_that_a_client_would_make(long_headers: bool) -> None:
    values, keys, headers = some_messages(3000, long_headers=long_headers)
    times_ms = [5_000 + index for index in range(3000)]
    batch = pa.record_batch(
        {
            "value": pa.array(values, pa.binary()),
            "key": pa.array(keys, pa.binary()),
            "headers": pa.array([entry and list(entry.items()) for entry in headers], TYPES["headers"]),
            "timestamp": pa.array([time * 1000 for time in times_ms], pa.int64()).cast(TYPES["timestamp"]),
        }
    )
    # Not from its beginning: Spark's batches may be slices too.
    first = 13
    parts = list(build_payloads(message_columns(batch.slice(first), keeps_times=True), 10_000))
    assert len(parts) > 5
    for part in parts:
        stop = first + part.rows
        expected = encode_batch(values[first:stop], keys[first:stop], headers[first:stop], times_ms[first:stop])
        assert part.payload == expected
        assert part.key_hashes == key_hashes(keys[first:stop])
        first = stop
    assert first == 3000


def test_text_is_stored_as_utf_8_and_empty_maps_are_no_headers() -> None:
    batch = pa.record_batch(
        {
            "value": ["grün", ""],
            "key": pa.array([None, "k"]),
            "headers": pa.array([[], None], pa.map_(pa.string(), pa.string())),
        }
    )
    (part,) = build_payloads(message_columns(batch, keeps_times=False), 1000)
    assert part.payload == encode_batch(["grün".encode(), b""], [None, b"k"])


def test_headers_of_text_are_packed_too() -> None:
    headers = pa.array([[("a", "1"), ("b", "ü" * 200)]], pa.map_(pa.string(), pa.string()))
    batch = pa.record_batch({"value": [b"v"], "headers": headers})
    (part,) = build_payloads(message_columns(batch, keeps_times=False), 1000)
    assert part.payload == encode_batch([b"v"], None, [{"a": b"1", "b": ("ü" * 200).encode()}])


def test_a_row_larger_than_a_batch_goes_alone() -> None:
    batch = pa.record_batch({"value": [b"a" * 10, b"b" * 5000, b"c" * 10]})
    parts = list(build_payloads(message_columns(batch, keeps_times=False), 100))
    assert [part.rows for part in parts] == [1, 1, 1]


def test_a_row_without_a_value_is_refused_with_what_to_do() -> None:
    batch = pa.record_batch({"value": pa.array([b"a", None], pa.binary())})
    with pytest.raises(errors.Malformed, match=r"null in 1 of 2 rows.*coalesce"):
        message_columns(batch, keeps_times=False)


def test_a_header_without_a_value_is_refused() -> None:
    batch = pa.record_batch({"value": [b"a"], "headers": pa.array([[("name", None)]], TYPES["headers"])})
    with pytest.raises(errors.Malformed, match="header"):
        message_columns(batch, keeps_times=False)
