"""MACs, counters and address tokens, byte by byte. docs/howto/datagrams.md has the test vectors."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from examples.datagrams.peers import Macs
from hypothesis import given
from hypothesis import strategies as st

from oncemq.auth.tokens import mac_key_of, token_id
from oncemq.gateways.udp import one_time_tokens
from oncemq.gateways.udp.extended import macs, packets
from oncemq.gateways.udp.extended.channel import MacChannel
from oncemq.gateways.udp.extended.replay_window import WINDOW_PACKETS, ReplayWindow
from oncemq.gateways.udp.one_time_tokens import VALID_MS, OneTimeTokens
from oncemq.gateways.udp.rates import SOURCES_MAX, Failures

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "datagrams.md"

TOKEN = "omq_k3v9x2aa_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
ADDRESS_TOKEN, NONCE = 0x0102030405060708, 0x1112131415161718
HERE, THERE = ("192.0.2.1", 1), ("192.0.2.2", 1)


def vectors() -> dict[str, bytes]:
    """Return the test vectors of the page, by name."""
    [block] = re.findall(r"```text\n(access token.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found: dict[str, str] = {}
    name = ""
    for line in block.splitlines():
        if not line.startswith(" "):
            name, line = line[:20].strip(), line[20:]
        found[name] = found.get(name, "") + line.strip()
    assert found.pop("access token") == TOKEN
    return {name: bytes.fromhex(value) for name, value in found.items()}


def test_the_test_vectors_of_the_page() -> None:
    known = vectors()
    key, token_id_bytes = mac_key_of(TOKEN), token_id(TOKEN).encode()
    assert known["address token"] == ADDRESS_TOKEN.to_bytes(8, "big")
    assert known["nonce"] == NONCE.to_bytes(8, "big")
    assert known["token key"] == key
    peer_key = macs.direction_key(key, macs.FROM_PEER, ADDRESS_TOKEN, NONCE)
    gateway_key = macs.direction_key(key, macs.FROM_GATEWAY, ADDRESS_TOKEN, NONCE)
    assert (known["key of the peer"], known["key of the gateway"]) == (peer_key, gateway_key)
    for name, direction_key, counter in (
        ("HELLO", peer_key, 1),
        ("PUT", peer_key, 2),
        ("WELCOME", gateway_key, 1),
        ("DONE", gateway_key, 2),
    ):
        sealed = known[name]
        packet = bytes([packets.MAGIC]) + macs.opened(sealed)[1:]
        assert macs.seal(packet, direction_key, token_id_bytes, counter) == sealed
        assert macs.is_genuine(sealed, direction_key)
    assert packets.parse(macs.opened(known["HELLO"])) == packets.Hello(ADDRESS_TOKEN, 1, NONCE, 0, 0, -1, "p", "")
    assert packets.parse(macs.opened(known["PUT"])) == packets.Put(ADDRESS_TOKEN, 5, 1, True, "t1", b"hello")
    assert macs.opened(known["WELCOME"])[1:] == packets.welcome(NONCE, 5, 0, 0, 64, 65_507)[1:]
    assert macs.opened(known["DONE"])[1:] == packets.answer(NONCE, packets.Done(1, 0))[1:]


def test_the_example_makes_the_same_packets() -> None:
    known, example = vectors(), Macs(TOKEN)
    for name in ("HELLO", "PUT"):
        packet = bytes([packets.MAGIC]) + macs.opened(known[name])[1:]
        assert example.seal(packet, ADDRESS_TOKEN, NONCE) == known[name]
    for name in ("WELCOME", "DONE"):
        assert example.open(known[name], ADDRESS_TOKEN, NONCE) == macs.opened(known[name])
        assert example.open(known[name], ADDRESS_TOKEN, NONCE) is None, "a copy"
    assert example.open(known["PUT"], ADDRESS_TOKEN, NONCE) is None, "a packet of its own"
    assert Macs(TOKEN).open(known["DONE"], ADDRESS_TOKEN + 1, NONCE) is None
    assert Macs(TOKEN).open(known["DONE"], ADDRESS_TOKEN, NONCE + 1) is None


@pytest.mark.parametrize("name", ["HELLO", "PUT"])
def test_a_packet_that_is_changed_is_not_genuine(name: str) -> None:
    sealed = vectors()[name]
    key = macs.direction_key(mac_key_of(TOKEN), macs.FROM_PEER, ADDRESS_TOKEN, NONCE)
    for at in range(len(sealed)):
        for change in (1, 0x80):
            assert not macs.is_genuine(sealed[:at] + bytes([sealed[at] ^ change]) + sealed[at + 1 :], key)
    for length in range(len(sealed)):
        assert not macs.is_genuine(sealed[:length], key)
    assert not macs.is_genuine(sealed + b"\0", key)


@given(st.binary(max_size=80))
def test_any_bytes_have_an_envelope_or_none(data: bytes) -> None:
    envelope = macs.parse(bytes([macs.MAGIC]) + data)
    assert (envelope is None) == (len(data) + 1 < 10 + macs.TRAILER_BYTES)


def test_neither_plain_packets_nor_those_without_a_mac_are_taken_for_one_with_a_mac() -> None:
    assert not any(macs.has_mac(b"%d topic" % code) for code in range(5))
    assert not macs.has_mac(bytes([packets.MAGIC]))
    assert not packets.is_extended(bytes([macs.MAGIC]))
    assert not macs.has_mac(b"")


def test_a_packet_that_is_sent_again_has_another_mac() -> None:
    channel = MacChannel("kitchen/k3v9x2aa", mac_key_of(TOKEN), macs.Envelope(1, ADDRESS_TOKEN, b"k3v9x2aa", 1), NONCE)
    packet = packets.acked(NONCE, 1)
    assert channel.seal(packet) != channel.seal(packet)


def test_a_peer_that_moves_continues_to_count() -> None:
    def hello(token: int, counter: int) -> MacChannel:
        return MacChannel("kitchen/k3v9x2aa", mac_key_of(TOKEN), macs.Envelope(1, token, b"k3v9x2aa", counter), NONCE)

    channel = hello(1, 1)
    assert channel.admit(2)
    first = channel.seal(packets.acked(NONCE, 1))
    assert channel.renew(hello(2, 3))
    # A copy of the first hello, whose address the peer has left.
    assert not channel.renew(hello(1, 1))
    assert channel.token == 2
    assert channel.renew(hello(1, 4))
    assert not channel.admit(2)
    # Packets with the former keys are not made a second time.
    assert channel.seal(packets.acked(NONCE, 1)) != first


# Counters.


def test_no_counter_is_accepted_twice_in_any_order() -> None:
    chance = random.Random(5)
    window, accepted = ReplayWindow(), set[int]()
    newest = 0
    for _ in range(20_000):
        counter = max(0, newest + chance.randrange(-2 * WINDOW_PACKETS, 40))
        is_new = window.admit(counter)
        assert is_new == (counter > 0 and counter not in accepted and counter > newest - WINDOW_PACKETS)
        if is_new:
            accepted.add(counter)
            newest = max(newest, counter)


def test_a_counter_may_leap() -> None:
    window = ReplayWindow()
    assert window.admit(2**64 - 1)
    assert not window.admit(2**64 - 1)
    assert window.admit(2**64 - 2)
    assert not window.admit(1)


# Address tokens.


def test_a_token_is_valid_for_its_address_for_ten_seconds() -> None:
    tokens, now_ms = OneTimeTokens(), 123_456.7
    token = tokens.token(now_ms, HERE)
    assert tokens.is_valid(now_ms, HERE, token)
    assert tokens.is_valid(now_ms + VALID_MS - 1, HERE, token)
    assert not tokens.is_valid(now_ms + VALID_MS + 1, HERE, token)
    # The time in the token wraps.
    assert not tokens.is_valid(now_ms + 65_536, HERE, token)
    assert not tokens.is_valid(now_ms, THERE, token)
    assert not tokens.is_valid(now_ms, HERE, token ^ 1)
    assert not tokens.is_valid(now_ms, HERE, 0)
    assert not tokens.is_valid(now_ms, HERE, 2**64 - 1)
    assert not OneTimeTokens().is_valid(now_ms, HERE, token), "another process"


def test_a_token_is_used_once_per_nonce() -> None:
    tokens = OneTimeTokens()
    token = tokens.token(1000, HERE)
    assert tokens.use(1000, token, 1)
    assert not tokens.use(1000, token, 1)
    assert not tokens.use(1000 + VALID_MS, token, 1)
    assert tokens.use(1000, token, 2)
    assert tokens.token(1001, HERE) != token


def test_used_tokens_are_forgotten_only_when_they_are_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_time_tokens, "USED_MAX", 10)
    tokens = OneTimeTokens()
    made = {now_ms: tokens.token(now_ms, HERE) for now_ms in range(1000, 1020)}
    for token in made.values():
        assert tokens.use(1020, token, 1)
    assert len(tokens) == 10
    for token in made.values():
        assert not (tokens.is_valid(1020, HERE, token) and tokens.use(1020, token, 1))
    late_ms = 1020 + 2 * VALID_MS
    assert tokens.use(late_ms, tokens.token(late_ms, HERE), 1)
    assert len(tokens) == 1


def test_failures_are_counted_per_source() -> None:
    failures = Failures(3)
    assert not failures.are_too_many(0, HERE)
    for _ in range(3):
        failures.note(0, HERE)
    assert failures.are_too_many(0, HERE)
    assert not failures.are_too_many(0, THERE)
    assert not failures.are_too_many(400, HERE)
    for number in range(SOURCES_MAX + 10):
        failures.note(0, (f"192.0.{number >> 8}.{number & 255}", 1))
    assert len(failures._sources) == SOURCES_MAX
