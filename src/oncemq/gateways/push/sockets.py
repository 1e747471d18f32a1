"""A watched socket as the push gateway needs it: it may also connect, and something happens when a turn is over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import zmq

from oncemq.gateways.zmq_reader import Watched
from oncemq.protocol import errors


class PushSocket(Watched):
    """Calls `take` with the frames of each message, and `after` when all that had arrived was taken."""

    def __init__(
        self, kind: int, take: Callable[[list[bytes]], None], after: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(kind, take)
        self._after = after

    @property
    def socket(self) -> Any:
        """For sending; `look` afterwards."""
        return self._socket

    def connect(self, url: str) -> None:
        """Raises SettingInvalid."""
        try:
            self._socket.connect(url)
        except zmq.ZMQError as error:
            self._socket.close(0)
            raise errors.SettingInvalid(f"can't connect to {url}: {error.strerror or error}") from None
        self._is_watching = True
        self._loop.add_reader(self._descriptor, self._drain)
        self.look()

    def look(self) -> None:
        """After sending: that may have used up the descriptor's word of what has arrived."""
        self._look()

    def unbind(self) -> None:
        """Nobody else can connect."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.unbind(self.address)

    @property
    def has_arrived(self) -> bool:
        """Something is to be taken; `look` does it."""
        return bool(self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)

    def _drain(self) -> None:
        if self._is_watching:
            super()._drain()
            self._after()
