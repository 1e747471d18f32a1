"""Malformed messages."""

from __future__ import annotations

import json

import pytest

from tests.gateways.push.fuzz import Fuzz
from tests.gateways.push.peers import Asker
from tests.gateways.push.processes import GatewayProcess


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"rubbish"],
        [b"{}"],
        [b'{"type": "nobody"}'],
        [b'{"type": "hello"}'],
        [b'{"type": "hello", "subscriber": "s", "address": 5}'],
        [b'{"type": "goodbye", "subscriber": ""}'],
        [b'{"type": "goodbye", "subscriber": "s"}', b"more"],
        [b'{"type": "ack_received", "subscriber": "s", "topic": "t", "offset": -1}'],
        [b"[" * 100_000],
    ],
)
def test_a_request_that_can_not_be_read_is_answered(asker: Asker, frames: list[bytes]) -> None:
    answer = asker.ask_once(*frames)
    assert answer is not None
    assert (answer["type"], answer["code"], answer["again"]) == ("error", "MALFORMED", False)


def test_names_are_checked(asker: Asker) -> None:
    hello = {"type": "hello", "address": "tcp://127.0.0.1:9"}
    for wrong in ({"subscriber": "a\nb", "topics": ["t"]}, {"subscriber": "s", "topics": ["t.*"]}):
        answer = asker.ask_once(json.dumps(hello | wrong).encode())
        assert answer is not None
        assert answer["code"] == "NAME_INVALID"
    answer = asker.ask_once(json.dumps(hello | {"subscriber": "s"}).encode())
    assert answer is not None
    assert answer["code"] == "NOT_SUBSCRIBED"


@pytest.mark.parametrize("seed", range(2))
def test_noise_at_every_socket_does_no_harm(push: GatewayProcess, seed: int) -> None:
    fuzz = Fuzz(push, seed)
    fuzz.run(2_000)
    fuzz.close()
