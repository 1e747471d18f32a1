"""What a get brought: checked, buffered, decoded in order."""

from __future__ import annotations

import pytest

from oncemq.client.consumer.fetch_buffer import FetchBuffer
from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.replies import BatchHead, GetReply


def reply_of(*batches: tuple[int, list[bytes], int], end_offset: int = 100) -> tuple[GetReply, list[bytes]]:
    """Batches as (first offset of the whole, values, messages to skip)."""
    heads, payloads, position = [], [], 0
    for first_offset, values, skip in batches:
        payload = encode_batch(values)
        count = len(values) - skip
        heads.append(BatchHead(first_offset + skip, count, skip, 5, checksum(payload)))
        payloads.append(payload)
        position = first_offset + len(values)
    return GetReply(9, position, end_offset, 0, tuple(heads)), payloads


def test_small_batches_are_decoded_together_and_in_order() -> None:
    buffer = FetchBuffer("t", 1)
    buffer.take(*reply_of((0, [b"0", b"1", b"2"], 1), (3, [b"3"], 0)))
    assert [(message.offset, message.value) for message in buffer.decode()] == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert not buffer
    assert (buffer.position, buffer.topic_id, buffer.buffered_bytes) == (4, 9, 0)
    assert not buffer.is_caught_up


def test_large_batches_are_decoded_one_by_one() -> None:
    buffer = FetchBuffer("t", 0)
    buffer.take(*reply_of((0, [b"x"] * 300, 0), (300, [b"y"] * 300, 0), end_offset=600))
    assert len(buffer.decode()) == 300
    assert buffer
    assert len(buffer.decode()) == 300
    assert buffer.is_caught_up


def test_a_damaged_payload_is_fetched_again_with_what_follows_it() -> None:
    buffer = FetchBuffer("t", 0)
    reply, payloads = reply_of((0, [b"good"], 0), (1, [b"damaged"], 0), (2, [b"behind"], 0))
    buffer.take(reply, [payloads[0], payloads[1][:-8] + b"flipped!", payloads[2]])
    assert buffer.position == 1
    assert [message.value for message in buffer.decode()] == [b"good"]
    buffer.take(*reply_of((1, [b"damaged"], 0), (2, [b"behind"], 0)))
    assert [message.value for message in buffer.decode()] == [b"damaged", b"behind"]


def test_damage_that_does_not_go_away_is_an_error() -> None:
    buffer = FetchBuffer("t", 0)
    reply, _ = reply_of((0, [b"x"], 0))
    buffer.take(reply, [encode_batch([b"y"])])
    buffer.take(reply, [encode_batch([b"y"])])
    with pytest.raises(errors.DamagedInTransit, match="offset 0"):
        buffer.take(reply, [encode_batch([b"y"])])


def undecodable(*batches: tuple[int, list[bytes], int], bad: int) -> tuple[GetReply, list[bytes]]:
    """The same, with one payload that arrived as it was sent and can't be decoded."""
    reply, payloads = reply_of(*batches)
    payloads[bad] = b"\x09" + payloads[bad][1:]
    heads = list(reply.batches)
    head = heads[bad]
    heads[bad] = BatchHead(head.first_offset, head.count, head.skip, head.time_ms, checksum(payloads[bad]))
    return GetReply(9, reply.next_position, reply.end_offset, 0, tuple(heads)), payloads


def test_a_batch_that_can_not_be_decoded_takes_no_other_with_it() -> None:
    buffer = FetchBuffer("t", 0)
    buffer.take(*undecodable((0, [b"0"], 0), (1, [b"1", b"2"], 0), (3, [b"3"], 0), bad=1))
    assert [message.offset for message in buffer.decode()] == [0]
    for _ in range(2):
        with pytest.raises(errors.Unsupported, match="offsets 1 to 2 of 't' can't be decoded"):
            buffer.decode()
    buffer.skip_to(3)
    assert [message.value for message in buffer.decode()] == [b"3"]
    assert buffer.buffered_bytes == 0


def test_messages_below_a_position_can_be_skipped() -> None:
    buffer = FetchBuffer("t", 0)
    buffer.take(*reply_of((0, [b"0", b"1"], 0), (2, [b"2", b"3", b"4"], 1), (5, [b"5"], 0)))
    buffer.skip_to(4)
    assert [(message.offset, message.value) for message in buffer.decode()] == [(4, b"4"), (5, b"5")]
    assert (buffer.position, buffer.buffered_bytes) == (6, 0)
    buffer.skip_to(50)
    assert buffer.position == 50


def test_what_is_cleared_is_forgotten() -> None:
    buffer = FetchBuffer("t", 0)
    buffer.take(*reply_of((0, [b"x"], 0)))
    buffer.clear()
    assert not buffer
    assert buffer.buffered_bytes == 0
