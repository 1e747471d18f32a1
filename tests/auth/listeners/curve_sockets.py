"""ZeroMQ sockets with the keys of users, of nobody, and without keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from oncemq.net.curve import CurveServerKeys
from tests.auth.served import ServedBroker

TIMEOUT_MS = 30_000
_FAILURES = int(
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class CurveSockets:
    """The broker's public key is no secret: everybody has it."""

    def __init__(self, broker: ServedBroker) -> None:
        self._accounts = broker.accounts
        self._context: zmq.Context[Any] = zmq.Context()

    def connect(self, kind: int, url: str, who: str) -> Any:
        """Return a socket that is connected as a user."""
        socket = self._socket(kind, self._accounts.pairs[who])
        socket.connect(url)
        return socket

    def _socket(self, kind: int, pair: CurveServerKeys | None) -> Any:
        socket: Any = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        if pair is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._accounts.server.public.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
        return socket

    def failure(self, kind: int, url: str, pair: CurveServerKeys | None, frames: Sequence[Any]) -> tuple[int, int]:
        """Send frames with keys that nobody has, or without keys; a SUB socket subscribes to the first frame. Return
        the event and the value with which libzmq reports that the handshake has failed."""
        socket = self._socket(kind, pair)
        monitor = socket.get_monitor_socket(_FAILURES)
        try:
            if kind == zmq.SUB:
                socket.setsockopt(zmq.SUBSCRIBE, frames[0])
            socket.connect(url)
            if kind != zmq.SUB:
                socket.send_multipart(frames)
            assert monitor.poll(TIMEOUT_MS), "the connection is not refused"
            event = recv_monitor_message(monitor)
            assert kind == zmq.PUB or not socket.poll(0), "somebody unknown was answered"
            return event["event"], event["value"]
        finally:
            socket.disable_monitor()
            monitor.close(0)
            socket.close(0)

    def close(self) -> None:
        self._context.destroy(0)
