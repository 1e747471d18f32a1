"""Every native command over real connections: encrypted and local ones of the stream transport, and ZeroMQ."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import zmq

from oncemq.auth.operations import NEEDS
from oncemq.auth.tokens import new_token
from oncemq.net import curve
from oncemq.net.curve import CurveServerKeys
from oncemq.protocol.commands import Health
from oncemq.protocol.frames import encode_request
from tests.auth.listeners.native_peers import CurvePeers, Peers, StreamPeers
from tests.auth.served import ServedBroker
from tests.auth.walk import OWNER, Walk, check

_LISTENERS: dict[str, Callable[[ServedBroker], Peers]] = {
    "tls": StreamPeers.encrypted,
    "unix": StreamPeers.local,
    "curve": CurvePeers,
}
_KINDS = sorted(NEEDS, key=lambda kind: kind.__name__)


@pytest.fixture(scope="module", params=_LISTENERS)
def peers(served: ServedBroker, request: pytest.FixtureRequest) -> Iterator[Peers]:
    opened = _LISTENERS[request.param](served)
    yield opened
    opened.close()


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.__name__)
def test_everybody_sends_every_command(peers: Peers, kind: type) -> None:
    check(Walk(peers.send), kind)


@pytest.mark.parametrize("listener", ["tls", "unix"])
@pytest.mark.parametrize(
    ("auth", "code"),
    [
        ({}, "UNAUTHENTICATED"),
        ({"token": ""}, "UNAUTHENTICATED"),
        ({"token": new_token()}, "UNAUTHENTICATED"),
        ({"token": OWNER}, "UNAUTHENTICATED"),
        ({"token": 7}, "MALFORMED"),
        ("token", "MALFORMED"),
    ],
)
def test_an_opening_without_a_valid_token_is_refused(
    served: ServedBroker, listener: str, auth: object, code: str
) -> None:
    peers = _LISTENERS[listener](served)
    assert isinstance(peers, StreamPeers)
    assert peers.login({"auth": auth}) == code


def test_the_token_of_another_user_with_the_same_id_is_refused(served: ServedBroker) -> None:
    token = served.accounts.tokens[OWNER]
    forged = token[:-1] + ("A" if token[-1] != "A" else "B")
    assert StreamPeers.local(served).login({"auth": {"token": forged}}) == "UNAUTHENTICATED"


def test_zeromq_keys_of_nobody_are_refused(served: ServedBroker) -> None:
    peers = CurvePeers(served)
    request = encode_request(1, [Health()])
    stolen = CurveServerKeys(served.accounts.pairs[OWNER].public, curve.generate().secret)
    try:
        assert peers.failure(curve.generate(), request) == (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)
        # Without the secret key, the handshake does not get that far.
        assert peers.failure(stolen, request)[0] == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    finally:
        peers.close()
