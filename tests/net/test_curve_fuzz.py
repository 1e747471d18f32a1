"""Some inputs of tests/net/curve_fuzz.py. `python -m tests.net.curve_fuzz` sends a million."""

from __future__ import annotations

import os

from tests.acceptance.processes import resident_bytes
from tests.net.curve_fuzz import CurveFuzz


def test_whatever_handshakes_arrive_only_those_with_a_known_key_are_admitted() -> None:
    fuzz = CurveFuzz(seed=7)
    try:
        fuzz.run(300)
        before = resident_bytes(os.getpid())
        fuzz.run(500)
        assert resident_bytes(os.getpid()) < before + 32 * 2**20
        assert fuzz.changed > 10
    finally:
        fuzz.close()
