"""Sends messages to a subscriber's REP socket through a temporary socket: one message, one answer."""

from __future__ import annotations

import asyncio

import zmq

from oncemq.client.gateway_api import CurveKeys
from oncemq.gateways.push.messages import AckReceived, Data, decode_received, encode
from oncemq.gateways.zmq_reader import ZmqReader

#: An answer is small.
_ANSWER_BYTES_MAX = 64 * 1024


class CallbackSocket:
    def __init__(self, address: str, answer_s: float, keys: CurveKeys | None = None) -> None:
        """Connect. With keys, only the owner of the key `keys.server` gets anything. Raises SettingInvalid."""
        self._answer_s = answer_s
        self._answer: asyncio.Future[list[bytes]] | None = None
        # A DEALER that sends the empty frame of a REQ itself does not get stuck if an answer is missing.
        self._socket = ZmqReader(zmq.DEALER, self._receive)
        self._socket.set(zmq.MAXMSGSIZE, _ANSWER_BYTES_MAX)
        self._socket.set(zmq.SNDHWM, 2)
        self._socket.set(zmq.RCVHWM, 10)
        self._socket.set(zmq.IPV6, int("[" in address))
        if keys is not None:
            self._socket.encrypt(keys)
        self._socket.connect(address)

    def _receive(self, frames: list[bytes], _: str = "") -> None:
        if self._answer is not None and not self._answer.done() and frames[:1] == [b""]:
            self._answer.set_result(frames[1:])

    async def call(self, data: Data, content: bytes) -> AckReceived | None:
        """Send a message and return its answer; None if there was none in time, or if it was something else. After None
        this socket must be closed."""
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._socket.send([b"", encode(data), content])
            # Not `wait_for`: in Python 3.11 it may swallow a cancellation.
            async with asyncio.timeout(self._answer_s):
                return decode_received(await self._answer)
        except (zmq.ZMQError, TimeoutError):
            return None

    def close(self) -> None:
        self._socket.close()
