"""A SUB socket that is connected to a push gateway's live feed, for the batches of one topic. It knows no positions.

One thread at a time may wait; `close` may come from another thread.
"""

from __future__ import annotations

import threading
from typing import Any

from oncemq.client.credentials import CurveKeys
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.zmq_transport import use_curve
from oncemq.protocol import errors
from oncemq.protocol.push_feed import Header, batch_frame, decode_header

#: At most this many batches wait inside ZeroMQ. Those beyond are dropped, and fetched from the broker.
_BATCHES_MAX = 1_000
#: A wait ends after this time, so that `close` need not wait longer.
_SLICE_MS = 50.0


class PushFeed:
    """The live feed of one topic."""

    def __init__(self, address: str, topic: str, keys: CurveKeys | None = None) -> None:
        """Raises SettingInvalid. A gateway that refuses the keys sends nothing: then all messages are fetched."""
        import zmq

        if not isinstance(address, str):
            raise errors.SettingInvalid(f"feed = {address!r} is not an address; 'tcp://127.0.0.1:5558' is.")
        self._again = zmq.Again
        self._now = int(zmq.NOBLOCK)
        self._lock = threading.Lock()
        self.is_closed = False
        self._topic_frame = batch_frame(topic)
        #: When the last valid batch or heartbeat came.
        self.heard_ms = now_ms()
        self._socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, _BATCHES_MAX)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        self._socket.setsockopt(zmq.SUBSCRIBE, self._topic_frame)
        try:
            use_curve(self._socket, keys)
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self._socket.close(0)
            raise errors.SettingInvalid(f"can't listen to the feed at {address!r}: {error}") from None
        except errors.SettingInvalid:
            self._socket.close(0)
            raise
        #: For an event loop: readable when there may be something new.
        self.descriptor = int(self._socket.getsockopt(zmq.FD))

    def is_ready(self) -> bool:
        """`receive` would return something, or the feed is closed."""
        import zmq

        with self._lock:
            return self.is_closed or bool(self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)

    def wait(self, timeout_ms: float) -> None:
        """Wait until there may be something, or at most for this time."""
        with self._lock:
            if not self.is_closed:
                self._socket.poll(max(0.0, min(timeout_ms, _SLICE_MS)))

    def receive(self) -> tuple[Header, bytes] | None:
        """Return a batch with its payload, or a heartbeat; None: there is none now."""
        with self._lock:
            while not self.is_closed:
                try:
                    frames: list[bytes] = self._socket.recv_multipart(self._now)
                except self._again:
                    return None
                found = self._read(frames)
                if found is not None:
                    self.heard_ms = now_ms()
                    return found
        return None

    def _read(self, frames: list[bytes]) -> tuple[Header, bytes] | None:
        """None: it is not valid, and is ignored. The broker has the messages."""
        if len(frames) not in (2, 3) or frames[0] != self._topic_frame:
            return None
        header = decode_header(frames[1])
        if header is None or (header.batch is None) != (len(frames) == 2):
            return None
        return header, frames[-1]

    def close(self) -> None:
        with self._lock:
            if not self.is_closed:
                self.is_closed = True
                self._socket.close(0)
