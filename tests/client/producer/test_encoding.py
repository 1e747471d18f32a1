"""From what a caller puts to batches."""

from __future__ import annotations

from random import Random

import pytest

from oncemq.client.producer.encoding import NO_CLAIM, Value, all_as_bytes, are_bytes, many_messages
from oncemq.protocol.batch import checksum, decode_batch


def _batches(values: list[Value], limits: tuple[int, int]) -> list[list[bytes]]:
    messages = many_messages("orders", iter(values), None, None, False, None, None)
    found = []
    for put, payload in messages.batches(lambda chunk: (all_as_bytes(chunk), NO_CLAIM), limits):  # type: ignore[arg-type]
        assert put.envelope.checksum == checksum(payload)
        found.append([each.value for each in decode_batch(payload, "orders", 1, 0, 0, 0, put.envelope.count)])
    return found


@pytest.mark.parametrize("seed", range(20))
def test_all_values_are_put_once_and_in_order_whatever_their_sizes(seed: int) -> None:
    random = Random(seed)
    largest = random.choice((0, 1, 50, 5000))
    values = [random.randbytes(random.randint(0, largest)) for _ in range(random.randint(0, 700))]
    batches = _batches(list(values), (100, 1000))
    assert [value for batch in batches for value in batch] == values
    assert all(len(batch) <= 100 for batch in batches)
    # A value that is larger than a batch should be has a batch of its own.
    assert all(sum(map(len, batch)) <= 2000 or len(batch) == 1 for batch in batches)


def test_a_few_large_values_behind_small_ones_are_divided() -> None:
    values = [b"small"] * 40 + [b"L" * 900] * 40
    batches = _batches(list(values), (100, 1000))
    assert [value for batch in batches for value in batch] == values
    assert max(sum(map(len, batch)) for batch in batches) <= 2000


def test_text_and_buffers_are_encoded_among_bytes() -> None:
    values: list[Value] = [b"a", "ä", bytearray(b"c"), memoryview(b"d")]
    assert _batches(values, (100, 1000)) == [[b"a", "ä".encode(), b"c", b"d"]]


def test_only_a_sequence_of_nothing_but_bytes_needs_no_encoding() -> None:
    class Kind(bytes):
        """Bytes that are more than bytes."""

    assert are_bytes([])
    assert are_bytes([b"a", b""])
    assert not are_bytes([b"a", "b"])
    assert not are_bytes([b"a", Kind(b"b")])
    assert type(all_as_bytes([Kind(b"b")])[0]) is bytes
