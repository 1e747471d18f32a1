"""Proofs of addresses, silent peers and rate limits: with virtual time."""

from __future__ import annotations

from oncemq.gateways.udp import rates
from oncemq.gateways.udp.peers import Peers
from oncemq.gateways.udp.rates import Bucket, Rates
from oncemq.gateways.udp.settings import PLAIN_SILENT_MS, SLACK_BYTES, UNPROVED_MESSAGES, UdpSettings
from oncemq.gateways.udp.tokens import KEY_MS, Tokens, is_loopback

HERE = ("127.0.0.1", 4000)
FAR = ("192.0.2.7", 4000)


def test_a_token_belongs_to_one_address_and_one_key() -> None:
    tokens = Tokens()
    token = tokens.token(0, FAR)
    assert tokens.is_valid(0, FAR, token)
    assert not tokens.is_valid(0, ("192.0.2.7", 4001), token)
    assert not tokens.is_valid(0, ("192.0.2.8", 4000), token)
    assert not tokens.is_valid(0, FAR, 0)
    assert not Tokens().is_valid(0, FAR, token)


def test_a_token_lasts_an_hour_and_two_at_the_most() -> None:
    tokens = Tokens()
    token = tokens.token(0, FAR)
    assert tokens.is_valid(KEY_MS + 1, FAR, token)
    assert not tokens.is_valid(2 * KEY_MS + 1, FAR, token)
    token = tokens.token(100 * KEY_MS, FAR)
    assert tokens.is_valid(100 * KEY_MS + 1, FAR, token)
    assert not tokens.is_valid(1000 * KEY_MS, FAR, token)


def test_loopback_is_told_from_elsewhere() -> None:
    assert is_loopback(HERE)
    assert is_loopback(("::1", 1))
    assert not is_loopback(FAR)
    assert not is_loopback(("::2", 1))


def test_a_bucket_gives_what_has_flown_in() -> None:
    bucket = Bucket(10, 0)
    assert [bucket.take(0) for _ in range(11)] == [True] * 10 + [False]
    assert [bucket.take(100), bucket.take(100)] == [True, False]
    assert sum(bucket.take(10_000) for _ in range(30)) == 10


def test_a_source_over_its_rate_takes_nothing_from_the_others() -> None:
    limits = Rates(5, 20, 0)
    assert sum(limits.admits(0, FAR) for _ in range(1000)) == 5
    # Another port of the same host is the same source.
    assert not limits.admits(0, (FAR[0], 5000))
    assert sum(limits.admits(0, ("127.0.0.1", port)) for port in range(100)) == 15


def test_sources_are_remembered_up_to_a_bound() -> None:
    limits = Rates(5, 1e9, 0)
    for number in range(rates.SOURCES_MAX + 500):
        limits.admits(0, (f"10.0.{number // 256}.{number % 256}", 1))
    assert len(limits) == rates.SOURCES_MAX


def test_an_unvalidated_address_gets_little_until_it_is_validated() -> None:
    peers = Peers(UdpSettings(unvalidated_bytes_per_s=1000), 0)
    assert peers.is_validated(0, HERE)
    assert not peers.is_validated(0, FAR)
    assert peers.reply_bytes_max(0, FAR, 10, 2000) == 10 + SLACK_BYTES
    assert [peers.may_send(0, FAR, 472) for _ in range(3)] == [True, True, False]
    peers.validate(0, FAR)
    assert peers.may_send(0, FAR, 60_000)
    assert peers.reply_bytes_max(0, FAR, 10, 2000) == 2000
    assert not peers.is_validated(601_000, FAR)


def test_an_unvalidated_subscriber_has_a_credit_that_each_word_renews() -> None:
    peers = Peers(UdpSettings(), 0)
    peers.add(0, FAR)
    assert all(peers.take_credit(0, FAR) for _ in range(UNPROVED_MESSAGES))
    assert not peers.take_credit(0, FAR)
    peers.note_heard(1, FAR)
    assert peers.take_credit(1, FAR)
    peers.add(0, HERE)
    assert all(peers.take_credit(0, HERE) for _ in range(2 * UNPROVED_MESSAGES))
    assert not peers.take_credit(0, ("192.0.2.9", 1))


def test_three_strikes_in_as_many_seconds_and_no_word_between_them_mean_gone() -> None:
    peers = Peers(UdpSettings(), 0)
    peers.add(0, HERE)
    assert not any(peers.strike(0, HERE) for _ in range(10))
    assert not peers.strike(1000, HERE)
    peers.note_heard(1500, HERE)
    assert [peers.strike(now_ms, HERE) for now_ms in (2000, 3000, 4000)] == [False, False, True]
    assert not peers.strike(0, FAR)


def test_an_address_elsewhere_that_says_nothing_for_a_day_is_silent() -> None:
    peers = Peers(UdpSettings(), 0)
    peers.add(0, HERE)
    peers.add(0, FAR)
    assert peers.silent(PLAIN_SILENT_MS) == []
    assert peers.silent(PLAIN_SILENT_MS + 1) == [FAR]
