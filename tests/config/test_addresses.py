"""Addresses: what is on this machine."""

from __future__ import annotations

import pytest

from oncemq.config.addresses import is_loopback, is_open


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1", "[::1]"])
def test_loopback_is_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "[::]", "192.0.2.1", "example.com", "localhost.example.com", "127.1", "127.0.0.1.nip.io"]
)
def test_other_hosts_and_names_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_an_address_is_open_if_other_machines_can_reach_it() -> None:
    assert is_open("tcp://0.0.0.0:5555")
    assert is_open("192.0.2.1:8002")
    assert not is_open("tcp://[::1]:5555")
    assert not is_open("127.0.0.1:8002")
