"""Plain packets, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemq.gateways.udp.plain import packets
from oncemq.gateways.udp.plain.packets import List, Publish, Subscribe, Unsubscribe
from oncemq.protocol import errors


@pytest.mark.parametrize(
    ("packet", "request_"),
    [
        (b"1 topic1", Publish("topic1", None)),
        (b"1 topic1 ", Publish("topic1", None)),
        (b"0 topic1 hello there", Publish("topic1", b"hello there")),
        (b"1 topic1  two spaces ", Publish("topic1", b" two spaces ")),
        (b"1 topic1 \xff\x00\x01", Publish("topic1", b"\xff\x00\x01")),
        (b"2 topic1", Subscribe("topic1")),
        (b"2 topic1\r\n", Subscribe("topic1")),
        (b"2 topic1\n\0\0\0\0", Subscribe("topic1")),
        (b"3 topic1", Unsubscribe("topic1")),
        (b'2 "Cooking Recipes"', Subscribe("Cooking Recipes")),
        (b'1 "Cooking Recipes" boil', Publish("Cooking Recipes", b"boil")),
        (b'1 "a \\"b\\" \\\\c" x', Publish('a "b" \\c', b"x")),
        (b"4 list", List("")),
        (b"4 list      ", List("")),
        (b"4 list topic1   ", List("topic1")),
        (b'4 list "Cooking Recipes"', List("Cooking Recipes")),
    ],
)
def test_a_packet_says(packet: bytes, request_: packets.Request) -> None:
    assert packets.parse(packet) == request_


@pytest.mark.parametrize("packet", [b"", b"\0\0", b"7 x", b"12 x", b"x", b"4", b"4 all", b'1 "open', b'1 "a"b c'])
def test_what_is_no_packet_is_malformed(packet: bytes) -> None:
    with pytest.raises(errors.Malformed):
        packets.parse(packet)


@pytest.mark.parametrize("packet", [b"1", b"2 ", b'2 ""', b"1 a*b", b"1 #", b"2 \xff", b"2 a\x01b", b"2 " + b"x" * 256])
def test_what_is_no_name_is_refused(packet: bytes) -> None:
    with pytest.raises(errors.NameInvalid):
        packets.parse(packet)


@given(st.text(min_size=1, max_size=60))
def test_a_name_out_of_a_list_can_be_sent_as_it_stands(name: str) -> None:
    try:
        packets._check_topic(name)
    except errors.NameInvalid:
        return
    listed = packets.format_list([name], True, 1000)
    assert packets.parse(f"2 {listed[1:-1]}".encode()) == Subscribe(name)


def test_a_list_is_as_s4_has_it() -> None:
    assert packets.format_list([], True, 1000) == "[]"
    assert packets.format_list(["topic1"], True, 1000) == "[topic1]"
    assert packets.format_list(["a", "Cooking Recipes", "c,d"], True, 1000) == '[a, "Cooking Recipes", "c,d"]'


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)), st.booleans(), st.integers(7, 80))
def test_a_list_fits_and_says_whether_there_is_more(names: list[str], is_all: bool, bytes_max: int) -> None:
    listed = packets.format_list(names, is_all, bytes_max)
    assert len(listed.encode()) <= bytes_max
    whole = packets.format_list(names, is_all, 10_000)
    assert listed == whole or listed.endswith("...]")


@given(st.text(st.characters(codec="utf-8")), st.integers(0, 40))
def test_a_text_is_cut_between_characters(text: str, bytes_max: int) -> None:
    data = packets.cut(text, bytes_max)
    assert len(data) <= bytes_max
    assert text.startswith(data.decode())
