"""Calls a subscriber at its permanent REP socket, with a temporary one of our own: one message, one answer."""

from __future__ import annotations

import asyncio

import zmq

from oncemq.gateways.push.messages import AckReceived, Data, decode_received, encode
from oncemq.gateways.push.sockets import PushSocket

#: An answer is small.
_ANSWER_BYTES_MAX = 64 * 1024


class Caller:
    def __init__(self, address: str, answer_s: float) -> None:
        """Raises SettingInvalid."""
        self._answer_s = answer_s
        self._answer: asyncio.Future[list[bytes]] | None = None
        # A DEALER that writes a REQ's empty frame itself is not stuck when an answer stays away.
        self._watched = PushSocket(zmq.DEALER, self._take)
        self._watched.set(zmq.MAXMSGSIZE, _ANSWER_BYTES_MAX)
        self._watched.set(zmq.SNDHWM, 2)
        self._watched.set(zmq.RCVHWM, 10)
        self._watched.set(zmq.IPV6, int("[" in address))
        self._watched.connect(address)

    def _take(self, frames: list[bytes]) -> None:
        if self._answer is not None and not self._answer.done() and frames[:1] == [b""]:
            self._answer.set_result(frames[1:])

    async def call(self, data: Data, content: bytes) -> AckReceived | None:
        """The answer; None: there was none in time, or it was something else. Then this caller has served its time."""
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._watched.socket.send_multipart([b"", encode(data), content], zmq.NOBLOCK)
            self._watched.look()
            return decode_received(await asyncio.wait_for(self._answer, self._answer_s))
        except (zmq.ZMQError, TimeoutError):
            return None

    def close(self) -> None:
        self._watched.close()
