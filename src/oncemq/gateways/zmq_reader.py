"""A bound ZeroMQ socket on an event loop: watched through its descriptor, drained in turns.

Knows nothing of what the frames mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from oncemq.protocol import errors

log = logging.getLogger("oncemq.gateways")

#: Messages that are taken in before others have their turn.
_TURN_MESSAGES = 500
_NOW = int(zmq.NOBLOCK)


class Watched:
    """Calls `take` with the frames of each message. Belongs to the event loop that was running when it was made."""

    def __init__(self, kind: int, take: Callable[[list[bytes]], None]) -> None:
        self.address = ""
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._is_watching = False
        self._socket: Any = zmq.Context.instance().socket(kind)
        self.set(zmq.LINGER, 0)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))

    def set(self, option: int, value: int) -> None:
        self._socket.setsockopt(option, value)

    def bind(self, url: str) -> None:
        """Raises ListenFailed."""
        try:
            self._socket.bind(url)
        except zmq.ZMQError as error:
            self.close()
            raise errors.ListenFailed(f"can't listen at {url}: {error.strerror or error}") from None
        self.address = self._socket.getsockopt(zmq.LAST_ENDPOINT).decode()
        self._is_watching = True
        self._loop.add_reader(self._descriptor, self._drain)
        self._look()

    def send(self, frames: Sequence[bytes]) -> None:
        """Raises zmq.Again: the peer does not read; and zmq.ZMQError: it is gone."""
        try:
            self._socket.send_multipart(frames, _NOW)
        finally:
            # Sending may have used up the descriptor's word of what has arrived.
            self._look()

    def _look(self) -> None:
        if not self._is_due and self._is_watching:
            self._is_due = True
            self._loop.call_soon(self._drain_again)

    def _drain_again(self) -> None:
        self._is_due = False
        self._drain()

    def _drain(self) -> None:
        receive, take = self._socket.recv_multipart, self._take
        for _ in range(_TURN_MESSAGES):
            if not self._is_watching:
                return
            try:
                frames = receive(_NOW)
            except zmq.Again:
                return
            try:
                take(frames)
            except Exception:
                log.exception("a message of a peer could not be handled")
        self._look()

    def unwatch(self) -> None:
        """Take nothing more in. What is in hand can still be answered."""
        if self._is_watching:
            self._is_watching = False
            self._loop.remove_reader(self._descriptor)

    def close(self, linger_ms: int = 0) -> None:
        """What was sent has so long to leave."""
        self.unwatch()
        self._socket.close(linger_ms)
