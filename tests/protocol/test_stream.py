"""The bytes of the stream transport: whatever way they are cut, messages arrive whole or the connection ends."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncemq.protocol.frames import Frame
from oncemq.protocol.stream import (
    MAGIC,
    PROPERTIES_BYTES_MAX,
    RECEIVE_BYTES,
    STREAM_VERSION,
    StreamBroken,
    StreamReader,
    encode_message,
    encode_opening,
)

MIB = 2**20
OPENING = encode_opening({"client": "a test"})
#: What an opening has before its properties.
HEAD_BYTES = 12
#: Around the sizes at which the codec changes its way: copied frames, joined frames, messages with their own buffer.
EDGES = (0, 1, 4095, 4096, 32 * 1024 - 1, 32 * 1024, 64 * 1024 - 13, 64 * 1024 - 12, 64 * 1024, 200_000)


def opened(bytes_max: int = MIB, frames_max: int = 1000, *, as_bytes: bool = True) -> StreamReader:
    """A reader that has received an opening."""
    reader = StreamReader(bytes_max, frames_max, as_bytes=as_bytes)
    reader.feed(OPENING)
    return reader


def receive(reader: StreamReader, data: bytes) -> None:
    """Pass bytes to a reader as a socket does: into its buffer while it has one."""
    while data:
        target = reader.target
        if target is None:
            reader.feed(data[:RECEIVE_BYTES])
            data = data[RECEIVE_BYTES:]
        else:
            part = data[: len(target)]
            target[: len(part)] = part
            reader.filled(len(part))
            data = data[len(part) :]


def taken(reader: StreamReader) -> list[list[Frame]]:
    messages = []
    while (frames := reader.next()) is not None:
        messages.append(frames)
    return messages


def joined(messages: Iterable[Sequence[Frame]]) -> bytes:
    return b"".join(b"".join(encode_message(frames)) for frames in messages)


def raw_message(size: int, *numbers: int, body: bytes = b"") -> bytes:
    """A message as its numbers say, right or wrong."""
    return struct.pack(f"<{1 + len(numbers)}I", size, *numbers) + body


# Encoding.


@pytest.mark.parametrize(
    ("frames", "encoded"),
    [
        ([b"ab"], "0a000000 01000000 02000000 6162"),
        ([b""], "08000000 01000000 00000000"),
        ([b"a", b"bc"], "0f000000 02000000 01000000 02000000 616263"),
        ([b"a", b"", b"c"], "12000000 03000000 01000000 00000000 01000000 6163"),
    ],
)
def test_a_message_is_its_size_its_number_of_frames_their_sizes_and_the_frames(
    frames: list[Frame], encoded: str
) -> None:
    assert b"".join(encode_message(frames)) == bytes.fromhex(encoded)


def test_an_opening_is_the_magic_the_version_a_zero_and_properties() -> None:
    properties = msgspec.msgpack.encode({"a": 1})
    assert encode_opening({"a": 1}) == b"ONCEMQ" + struct.pack("<BBI", 1, 0, len(properties)) + properties


def test_a_small_message_is_one_buffer_and_a_large_frame_is_not_copied() -> None:
    assert len(encode_message([b"header", b"x" * 1000, b""])) == 1
    large = bytes(100_000)
    assert encode_message([b"header", large])[2] is large


# Messages.


frames_of_any_size = st.binary(max_size=40) | st.sampled_from(EDGES).map(lambda size: b"\x5a" * size)
messages_of_any_size = st.lists(frames_of_any_size, min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(st.lists(messages_of_any_size, max_size=4), st.booleans(), st.data())
def test_messages_arrive_whole_and_in_order_however_their_bytes_are_cut(
    messages: list[list[bytes]], as_bytes: bool, data: st.DataObject
) -> None:
    sent = OPENING + joined(messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=12)))
    reader = StreamReader(2 * MIB, 1000, as_bytes=as_bytes)
    arrived: list[list[Frame]] = []
    for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        receive(reader, sent[begin:end])
        arrived += taken(reader)
    assert [[bytes(frame) for frame in frames] for frames in arrived] == messages
    assert reader.properties == {"client": "a test"}
    assert reader.incomplete_bytes == reader.reserved_bytes == 0


@pytest.mark.parametrize("as_bytes", [True, False])
def test_messages_arrive_whole_if_each_byte_comes_alone(as_bytes: bool) -> None:
    messages = [[b"a"], [b"", b"b"], [b"c" * 66_000, b"d" * 5000, b"e"], [b"f"]]
    reader = StreamReader(MIB, 1000, as_bytes=as_bytes)
    for byte in OPENING + joined(messages):
        receive(reader, bytes((byte,)))
    assert taken(reader) == messages


@pytest.mark.parametrize("count", [1, 2, 3, 1000])
@pytest.mark.parametrize("size", [0, 10, 70_000])
def test_a_message_has_any_number_of_frames_up_to_the_limit(count: int, size: int) -> None:
    frames: list[Frame] = [bytes(size), *[b"x"] * (count - 1)]
    reader = opened()
    receive(reader, joined([frames]))
    assert taken(reader) == [frames]


@pytest.mark.parametrize("size", EDGES)
def test_with_as_bytes_all_frames_are_bytes(size: int) -> None:
    reader = opened(as_bytes=True)
    receive(reader, joined([[b"x" * size, b"y" * 100_000]]))
    [frames] = taken(reader)
    assert list(map(type, frames)) == [bytes, bytes]
    assert [len(frame) for frame in frames] == [size, 100_000]


def test_without_as_bytes_a_large_frame_is_a_view_of_its_buffer_and_a_small_one_is_not() -> None:
    reader = opened(as_bytes=False)
    receive(reader, joined([[b"header", b"x" * 4095, b"y" * 4096, b"z" * 100_000]]))
    [frames] = taken(reader)
    assert list(map(type, frames)) == [bytes, bytes, memoryview, memoryview]
    first, second = frames[2:]
    assert isinstance(first, memoryview)
    assert isinstance(second, memoryview)
    assert first.obj is second.obj


def test_a_small_frame_does_not_keep_the_memory_of_its_large_message() -> None:
    data = joined([[b"header", bytes(4 * MIB)]])
    tracemalloc.start()
    try:
        reader = opened(8 * MIB, as_bytes=False)
        receive(reader, data)
        [frames] = taken(reader)
        kept = frames[0]
        del frames
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    assert kept == b"header"


def test_a_small_message_does_not_keep_the_memory_of_those_that_arrived_with_it() -> None:
    data = joined([[b"kept"], *[[bytes(1000)]] * 60])
    tracemalloc.start()
    try:
        reader = opened(as_bytes=False)
        reader.feed(data)
        [[kept], *others] = taken(reader)
        assert len(others) == 60
        del others, reader
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()
    assert kept == b"kept"


def test_the_buffer_of_a_large_message_is_used_again_and_its_frames_are_not_changed() -> None:
    reader = opened(32 * MIB)
    receive(reader, joined([[b"a" * MIB]]))
    [[first]] = taken(reader)
    tracemalloc.start()
    try:
        reader.feed(raw_message(MIB + 8, 1, MIB))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert reader.reserved_bytes == MIB + 8
    receive(reader, b"b" * MIB)
    assert taken(reader) == [[b"b" * MIB]]
    assert first == b"a" * MIB
    # A larger one and a smaller one, cut in any way.
    for size in (3 * MIB, 100_000):
        receive(reader, joined([[b"c" * size]]))
        assert taken(reader) == [[b"c" * size]]


@pytest.mark.parametrize(("as_bytes", "kept_bytes"), [(True, 4 * MIB), (False, 0)])
def test_no_more_than_one_buffer_of_limited_size_is_kept(as_bytes: bool, kept_bytes: int) -> None:
    messages = [joined([[bytes(size)]]) for size in (10 * MIB, 3 * MIB, 10 * MIB, MIB)]
    tracemalloc.start()
    try:
        reader = opened(32 * MIB, as_bytes=as_bytes)
        for message in messages:
            receive(reader, message)
            taken(reader)
        assert tracemalloc.get_traced_memory()[0] <= kept_bytes + 100_000
    finally:
        tracemalloc.stop()


@settings(max_examples=100, deadline=None)
@given(st.lists(messages_of_any_size, max_size=12), st.integers(1, 5), st.data())
def test_a_reader_with_a_limit_of_messages_returns_the_same_messages_in_more_calls(
    messages: list[list[bytes]], messages_max: int, data: st.DataObject
) -> None:
    sent = OPENING + joined(messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=5)))
    reader = StreamReader(2 * MIB, 1000, as_bytes=True, messages_max=messages_max)
    arrived: list[list[Frame]] = []
    for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        part = sent[begin:end]
        while part or reader.has_more:
            size = len(part) if reader.target is None else min(len(part), len(reader.target))
            size = 0 if reader.has_more else min(size, RECEIVE_BYTES)
            receive(reader, part[:size]) if size else reader.feed(b"")
            part = part[size:]
            found = taken(reader)
            assert len(found) <= messages_max
            arrived += found
    assert arrived == messages
    assert reader.reserved_bytes == 0


def test_messages_beyond_the_limit_of_a_call_wait_as_bytes() -> None:
    reader = StreamReader(MIB, 1000, as_bytes=False, messages_max=10)
    reader.feed(OPENING + joined([[b""]] * 100))
    assert len(taken(reader)) == 10
    assert reader.has_more
    assert reader.reserved_bytes == 90 * 12
    for _ in range(9):
        reader.feed(b"")
        assert len(taken(reader)) == 10
    assert not reader.has_more
    assert reader.reserved_bytes == 0


# Memory of messages that are not complete.


def test_a_size_that_is_only_claimed_takes_no_memory() -> None:
    reader = opened(1024 * MIB)
    tracemalloc.start()
    try:
        reader.feed(raw_message(1024 * MIB))
        assert reader.incomplete_bytes == 0
        assert reader.reserved_bytes <= 64 * 1024
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_the_memory_of_a_message_grows_with_what_has_arrived_of_it() -> None:
    reader = opened(1024 * MIB)
    size = 10 * MIB
    reader.feed(raw_message(size, 1, size - 8))
    arrived = 8
    while (target := reader.target) is not None:
        count = min(len(target), 50_000)
        reader.filled(count)
        arrived += count
        if reader.target is not None:
            assert reader.incomplete_bytes == arrived
            assert arrived < reader.reserved_bytes <= min(size, max(64 * 1024, 4 * arrived))
    [[frame]] = taken(reader)
    assert len(frame) == size - 8
    assert reader.reserved_bytes == 0


def test_what_has_arrived_of_a_small_message_or_of_the_opening_is_counted() -> None:
    reader = StreamReader(MIB, 1000, as_bytes=True)
    reader.feed(OPENING[:10])
    assert reader.reserved_bytes == reader.incomplete_bytes == 10
    reader.feed(OPENING[10:])
    assert reader.reserved_bytes == reader.incomplete_bytes == 0
    reader.feed(joined([[b"a"], [b"bcd"]])[:-1])
    assert reader.reserved_bytes == reader.incomplete_bytes == 14
    assert taken(reader) == [[b"a"]]


# Messages that break the rules.


@pytest.mark.parametrize("size", range(8))
def test_a_message_without_room_for_a_frame_ends_the_connection(size: int) -> None:
    with pytest.raises(StreamBroken, match=f"a message of {size} bytes"):
        opened().feed(raw_message(size) + bytes(8))


@pytest.mark.parametrize("padding", [0, 100_000], ids=["small", "large"])
@pytest.mark.parametrize(
    "sizes",
    [(9,), (11,), (0,), (2**32 - 1,), (4, 5), (5, 6), (2**31, 2**31), (3, 3, 3), (2**32 - 1, 11)],
    ids=str,
)
def test_sizes_of_frames_that_do_not_add_up_end_the_connection(sizes: tuple[int, ...], padding: int) -> None:
    body = bytes(10 + padding)
    sizes = (*sizes[:-1], sizes[-1] + padding & 0xFFFFFFFF)
    message = raw_message(4 * (1 + len(sizes)) + len(body), len(sizes), *sizes, body=body)
    with pytest.raises(StreamBroken, match="do not add up"):
        receive(opened(), message)


@pytest.mark.parametrize("size", [8, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("count", [0, 1001, 2**31, 2**32 - 1])
def test_no_frames_or_too_many_end_the_connection(count: int, size: int) -> None:
    with pytest.raises(StreamBroken, match=f"{count} frames"):
        receive(opened(), raw_message(size, count, body=bytes(size - 4)))


def test_more_frames_than_the_message_has_room_for_end_the_connection() -> None:
    with pytest.raises(StreamBroken, match="3 frames"):
        opened().feed(raw_message(12, 3, 0, 0))


@pytest.mark.parametrize("size", [1001, 70_000, 2**32 - 1])
def test_a_claimed_size_beyond_the_limit_ends_the_connection_before_its_bytes_arrive(size: int) -> None:
    with pytest.raises(StreamBroken, match=f"a message of {size} bytes; the limit is 1000"):
        opened(1000).feed(raw_message(size))


def test_a_message_at_the_limit_arrives_and_one_beyond_it_does_not() -> None:
    reader = opened(1000)
    reader.feed(joined([[bytes(992)]]))
    assert taken(reader) == [[bytes(992)]]
    with pytest.raises(StreamBroken, match="the limit is 1000"):
        reader.feed(joined([[bytes(993)]]))


def test_messages_before_the_broken_one_have_arrived() -> None:
    reader = opened()
    with pytest.raises(StreamBroken):
        reader.feed(joined([[b"good"]]) + raw_message(0))
    assert taken(reader) == [[b"good"]]


# Openings.


@pytest.mark.parametrize("count", range(6))
def test_wrong_magic_is_noticed_at_its_first_wrong_byte(count: int) -> None:
    reader = StreamReader(MIB, 1000, as_bytes=True)
    if count:
        reader.feed(MAGIC[:count])
    with pytest.raises(StreamBroken, match="does not use the stream protocol"):
        reader.feed(b"x")


@pytest.mark.parametrize(
    "text", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\0\0\0\0\0\0\0\x01\x7f", b"\x16\x03\x01\x02", b"oncemq", b"\0" * 100]
)
def test_the_bytes_of_another_protocol_are_noticed_at_once(text: bytes) -> None:
    with pytest.raises(StreamBroken, match=r"does not use the stream protocol|uses TLS"):
        StreamReader(MIB, 1000, as_bytes=True).feed(text)


def test_another_version_is_named() -> None:
    opening = MAGIC + struct.pack("<BBI", STREAM_VERSION + 1, 0, 0)
    with pytest.raises(StreamBroken, match=f"version {STREAM_VERSION + 1} of the stream protocol"):
        StreamReader(MIB, 1000, as_bytes=True).feed(opening)


def test_too_large_properties_are_refused_before_they_arrive() -> None:
    opening = MAGIC + struct.pack("<BBI", STREAM_VERSION, 0, PROPERTIES_BYTES_MAX + 1)
    with pytest.raises(StreamBroken, match=f"{PROPERTIES_BYTES_MAX + 1} bytes of properties"):
        StreamReader(MIB, 1000, as_bytes=True).feed(opening)


def test_the_largest_properties_are_accepted() -> None:
    text = "x" * (PROPERTIES_BYTES_MAX - 9)
    opening = encode_opening({"text": text})
    assert len(opening) == HEAD_BYTES + PROPERTIES_BYTES_MAX
    reader = StreamReader(1000, 1000, as_bytes=True)
    receive(reader, opening)
    assert reader.properties == {"text": text}


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x01",
        b"\xc0",
        b"\x81\x01\x01",
        b"\x81\xa1\xff\x01",
        b"\x81\xa1a",
        b"\x80\x80",
        b"\x81\xa1a" + b"\x91" * 60_000,
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1a\xc7\xff\xff",
    ],
    ids=[
        "nothing",
        "no msgpack",
        "a list",
        "a number",
        "nil",
        "a number as key",
        "a key that is not UTF-8",
        "no value",
        "two maps",
        "deep lists",
        "a huge map",
        "half an extension",
    ],
)
def test_malformed_properties_end_the_connection(properties: bytes) -> None:
    opening = MAGIC + struct.pack("<BBI", STREAM_VERSION, 0, len(properties)) + properties
    with pytest.raises(StreamBroken, match="properties of the opening could not be decoded"):
        receive(StreamReader(MIB, 1000, as_bytes=True), opening)


def test_requests_may_follow_right_behind_the_opening() -> None:
    reader = StreamReader(MIB, 1000, as_bytes=True)
    large = b"x" * 50_000
    receive(reader, OPENING + joined([[b"a"], [b"b", large], [large, large]]))
    assert taken(reader) == [[b"a"], [b"b", large], [large, large]]


def test_nothing_is_read_before_the_opening_is_complete() -> None:
    reader = StreamReader(MIB, 1000, as_bytes=True)
    for end in range(1, len(OPENING)):
        reader.feed(OPENING[end - 1 : end])
        assert reader.properties is None
        assert reader.next() is None
    reader.feed(OPENING[-1:] + joined([[b"a"]]))
    assert reader.properties == {"client": "a test"}
    assert taken(reader) == [[b"a"]]


# Any bytes.


@settings(max_examples=300, deadline=None)
@given(
    st.lists(messages_of_any_size, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=4),
    st.integers(300, 70_000),
    st.booleans(),
)
def test_changed_bytes_end_the_connection_or_are_messages_and_take_bounded_memory(
    messages: list[list[bytes]], changes: list[tuple[int, int]], chunk_bytes: int, as_bytes: bool
) -> None:
    data = bytearray(OPENING + joined(messages))
    for position, change in changes:
        # Most of them where the numbers are.
        data[position % min(len(data), 100 if position % 4 else len(data))] ^= change
    reader = StreamReader(MIB, 10, as_bytes=as_bytes)
    arrived = 0
    try:
        for begin in range(0, len(data), chunk_bytes):
            receive(reader, bytes(data[begin : begin + chunk_bytes]))
            arrived += chunk_bytes
            assert reader.reserved_bytes <= max(64 * 1024 + RECEIVE_BYTES, 4 * arrived)
    except StreamBroken:
        pass
    assert sum(len(frame) for frames in taken(reader) for frame in frames) <= len(data)
