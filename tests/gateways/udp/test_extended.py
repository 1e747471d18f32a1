"""Extended packets, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemq.gateways.udp.extended import packets
from oncemq.gateways.udp.extended.packets import Ack, Bye, Hello, Put
from oncemq.protocol import errors

HELLO = bytes.fromhex(
    "f1 01 0000000000000007 02 00000000000000aa 0000000000000003 0000000000000009 fffffffffffffffe 01 61 02 7431"
)
PUT = bytes.fromhex("f1 02 0000000000000007 0000000000000003 000000000000000c 01 02 7431") + b"hello"
ACK = bytes.fromhex("f1 03 0000000000000007 0000000000000003 0000000000000010 0000000000000005")
BYE = bytes.fromhex("f1 04 0000000000000007 0000000000000003 01")


def test_what_a_peer_says() -> None:
    assert packets.parse(HELLO) == Hello(7, 2, 0xAA, 3, 9, -2, "a", "t1")
    assert packets.parse(PUT) == Put(7, 3, 12, True, "t1", b"hello")
    assert packets.parse(ACK) == Ack(7, 3, 16, 5)
    assert packets.parse(BYE) == Bye(7, 3, True)


def test_what_the_gateway_says() -> None:
    nonce = 0xAA
    head = "00000000000000aa"
    said = {
        packets.challenge(nonce, 7): f"f181{head}0000000000000007",
        packets.welcome(nonce, 3, 9, 16, 64, 1400): f"f182{head}{3:016x}{9:016x}{16:016x}004000000578",
        packets.answer(nonce, packets.Done(12, 5)): f"f183{head}{12:016x}{5:016x}",
        packets.answer(nonce, packets.Refused(12, "NO", "so")): f"f184{head}{12:016x}02{b'NOso'.hex()}",
        packets.not_now(nonce, 12, "NO", "so"): f"f185{head}{12:016x}02{b'NOso'.hex()}",
        packets.message(nonce, 4, 5, b"hello"): f"f186{head}{4:016x}{5:016x}00{b'hello'.hex()}",
        packets.too_large(nonce, 4, 5, 70_000): f"f186{head}{4:016x}{5:016x}01{70_000:016x}",
        packets.acked(nonce, 16): f"f187{head}{16:016x}",
        packets.over(nonce, 3): f"f188{head}{3:016x}",
    }
    for packet, wanted in said.items():
        assert packet.hex() == wanted


@pytest.mark.parametrize("packet", [HELLO, PUT, ACK, BYE])
def test_a_packet_that_is_cut_is_malformed_or_shorter(packet: bytes) -> None:
    whole = packets.parse(packet)
    for length in range(len(packet)):
        try:
            assert packets.parse(packet[:length]) != whole
        except errors.Malformed:
            continue
        assert packet is PUT, "only a put's content may be of any length"


@given(st.binary(max_size=80), st.integers(0, 255))
def test_any_bytes_are_a_packet_or_malformed(data: bytes, kind: int) -> None:
    for packet in (data, bytes([packets.MAGIC, kind % 6]) + data):
        try:
            request = packets.parse(packet)
        except errors.Malformed:
            continue
        assert isinstance(request, Hello | Put | Ack | Bye)
        # No answer to an unknown peer is longer than its packet.
        assert len(packets.challenge(0, 1)) == packets.CHALLENGE_BYTES < len(packet)


def test_no_plain_packet_is_taken_for_an_extended_one() -> None:
    assert not any(packets.is_extended(b"%d topic" % code) for code in range(5))
    assert not packets.is_extended(b"")
    assert packets.is_extended(BYE)


def test_a_number_that_the_broker_cant_count_to_is_malformed() -> None:
    with pytest.raises(errors.Malformed):
        packets.parse(ACK[:18] + b"\xff" * 8 + ACK[26:])
    with pytest.raises(errors.Malformed):
        packets.parse(PUT.replace((12).to_bytes(8, "big"), bytes(8)))


def test_the_beginning_of_a_put_that_was_too_long_still_has_its_number() -> None:
    assert packets.parse_cut(PUT) == Put(7, 3, 12, True, "t1", b"", True)
    with pytest.raises(errors.TooLarge):
        packets.parse_cut(ACK)
