"""Some inputs of tests/net/stream_fuzz.py. `python -m tests.net.stream_fuzz` sends a million of each kind."""

from __future__ import annotations

import os
from pathlib import Path

from tests.acceptance.processes import resident_bytes
from tests.net.handshake_fuzz import HandshakeFuzz
from tests.net.stream_fuzz import Fuzz, broker_in


def test_whatever_bytes_arrive_clients_are_served_exactly_and_the_broker_stays_small(tmp_path: Path) -> None:
    broker, url = broker_in(tmp_path)
    with broker:
        fuzz = Fuzz(broker, url, seed=7)
        try:
            fuzz.run(3000)
            before = resident_bytes(broker.pid)
            fuzz.run(3000)
            assert resident_bytes(broker.pid) < before + 32 * 2**20
            assert fuzz.counters["malformed"] > 100
            assert {"OK", "MALFORMED", "TOPIC_UNKNOWN", "SESSION_UNKNOWN"} <= fuzz.codes.keys()
        finally:
            fuzz.close()


def test_whatever_handshakes_arrive_only_those_with_a_token_are_admitted(tmp_path: Path) -> None:
    fuzz = HandshakeFuzz(tmp_path, seed=7)
    try:
        fuzz.run(700)
        before = resident_bytes(os.getpid())
        fuzz.run(1000)
        assert resident_bytes(os.getpid()) < before + 32 * 2**20
        assert {"OK", "MALFORMED", "UNAUTHENTICATED"} == fuzz.codes.keys()
    finally:
        fuzz.close()
