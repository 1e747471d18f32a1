"""Some inputs of tests/gateways/text/fuzz.py."""

from __future__ import annotations

from tests.gateways.text.fuzz import Fuzz
from tests.gateways.text.rig import GatewayThread


def test_every_request_is_answered_whatever_it_is() -> None:
    gateway = GatewayThread()
    fuzz = Fuzz(gateway.url, seed=1)
    try:
        fuzz.run(1500)
        assert fuzz.codes.total() == 1500
        assert {"OK", "MALFORMED", "NAME_INVALID", "NOT_SUBSCRIBED", "NOTHING_NEW"} <= set(fuzz.codes)
        assert gateway.client().ask("sub orders alice").startswith("OK ")
    finally:
        gateway.stop()
