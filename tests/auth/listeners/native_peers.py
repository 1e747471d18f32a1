"""Raw connections of the native protocol that show credentials of users: they can send what no client sends."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Sequence
from typing import Any, Protocol

import zmq

from oncemq.net.curve import CurveServerKeys
from oncemq.net.tls import client_context
from oncemq.protocol import replies
from oncemq.protocol.commands import Command
from oncemq.protocol.frames import decode_response, encode_request
from oncemq.protocol.stream import encode_message, encode_opening
from tests.auth.listeners.curve_sockets import CurveSockets
from tests.auth.served import ServedBroker
from tests.auth.walk import ANONYMOUS
from tests.stream_peer import StreamPeer

_numbers = itertools.count(1)


class Peers(Protocol):
    """Connections at one listener: one for each user, and a new one for each command without credentials."""

    def send(self, who: str, command: Command, payloads: Sequence[bytes]) -> replies.Reply: ...

    def close(self) -> None: ...


def _reply_of(number: int, frames: Sequence[Any]) -> replies.Reply:
    response, _ = decode_response(frames)
    assert response.request_id == number
    [reply] = response.replies
    return reply


class StreamPeers:
    def __init__(self, broker: ServedBroker, url: str, tls: ssl.SSLContext | None) -> None:
        self._tokens = broker.accounts.tokens
        self._url = url
        self._tls = tls
        self._peers: dict[str, StreamPeer] = {}

    @classmethod
    def encrypted(cls, broker: ServedBroker) -> StreamPeers:
        return cls(broker, broker.url, client_context(broker.accounts.ca))

    @classmethod
    def local(cls, broker: ServedBroker) -> StreamPeers:
        return cls(broker, broker.unix, None)

    def send(self, who: str, command: Command, payloads: Sequence[bytes]) -> replies.Reply:
        number = next(_numbers)
        frames = encode_request(number, [command], payloads)
        if who == ANONYMOUS:
            return self._refusal({}, b"".join(encode_message(frames)))
        if who not in self._peers:
            opening = encode_opening({"auth": {"token": self._tokens[who]}})
            self._peers[who] = StreamPeer(self._url, opening, tls=self._tls)
        self._peers[who].send(frames)
        return _reply_of(number, self._peers[who].receive())

    def _refusal(self, properties: dict[str, Any], request: bytes) -> replies.Refusal:
        """Send an opening, and a request right behind it. Return why the connection is refused."""
        with StreamPeer(self._url, encode_opening(properties) + request, tls=self._tls) as peer:
            while peer.properties is None:
                peer.receive_some()
            assert peer.wait_until_disconnected()
            code, text = peer.properties["error"]
            return replies.Refusal(code, text)

    def login(self, properties: dict[str, Any]) -> str:
        """Return the code with which an opening is refused."""
        return self._refusal(properties, b"").code

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()


class CurvePeers:
    """Connections without credentials are not encrypted."""

    def __init__(self, broker: ServedBroker) -> None:
        self._sockets = CurveSockets(broker)
        self._url = broker.zeromq
        self._opened: dict[str, Any] = {}

    def send(self, who: str, command: Command, payloads: Sequence[bytes]) -> replies.Reply:
        number = next(_numbers)
        frames = encode_request(number, [command], payloads)
        if who == ANONYMOUS:
            assert self.failure(None, frames)[0] != zmq.EVENT_HANDSHAKE_FAILED_AUTH
            return replies.Refusal("UNAUTHENTICATED", "")
        if who not in self._opened:
            self._opened[who] = self._sockets.connect(zmq.DEALER, self._url, who)
        self._opened[who].send_multipart(frames)
        return _reply_of(number, self._opened[who].recv_multipart())

    def failure(self, pair: CurveServerKeys | None, frames: Sequence[Any]) -> tuple[int, int]:
        return self._sockets.failure(zmq.DEALER, self._url, pair, frames)

    def close(self) -> None:
        self._sockets.close()
