"""The ZeroMQ transport of a client: a DEALER socket to one of several addresses.

ZeroMQ connects again automatically, and tells nobody but its monitor (zmq_monitor.py). If the broker has refused the
connection, `refusal` says why. Then there is no socket for a while: the broker is not asked again and again.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Sequence
from typing import Any

from oncemq.client.core.commands.wire import WireBytes
from oncemq.client.credentials import NO_CREDENTIALS, Credentials, CurveKeys
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.zmq_monitor import ZmqMonitor
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame

#: From this size on, pyzmq sends without copying.
_COPY_BYTES_MAX = 1024 * 1024
_MESSAGES_MAX = 100_000
_NEVER = float("inf")
#: How often the monitor is read while a new socket connects, and for how long. (A thread waits for the monitor.)
_LOOK_EVERY_MS = 20.0
_LOOK_MS = 2_000.0
#: How long there is no further attempt after a refusal. The time doubles with each one.
_PAUSE_MS_MIN = 250.0
_PAUSE_MS_MAX = 30_000.0


class ZmqTransport:
    is_renewed = False
    is_waited_for = False
    wants_write = False
    before_close: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, urls: Sequence[str], credentials: Credentials = NO_CREDENTIALS) -> None:
        """Raises SettingInvalid."""
        import zmq

        check_credentials(urls, credentials)
        self._zmq = zmq
        self._urls = list(urls)
        self._next_url = 0
        self._keys = credentials.curve
        self._context: Any = zmq.Context.instance()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._socket: Any = None
        self._monitor = ZmqMonitor(zmq, self._keys is not None)
        #: Why the broker does not accept the connection. The driver resets it.
        self.refusal: errors.OnceMQError | None = None
        #: When `receive` must be called at the latest, to notice that.
        self.retry_ms = _NEVER
        #: The monitor has to be read.
        self._has_news = False
        #: After a refusal: no attempt to connect before this time.
        self._not_before_ms = 0.0
        self._pause_ms = _PAUSE_MS_MIN
        # Plain numbers: arithmetic with pyzmq's enumerations takes longer than sending.
        self._events, self._more = int(zmq.EVENTS), int(zmq.RCVMORE)
        self._readable, self._now, self._now_more = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        zmq = self._zmq
        url = self._urls[self._next_url % len(self._urls)]
        self._next_url += 1
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, _MESSAGES_MAX)
        self._socket.setsockopt(zmq.RCVHWM, _MESSAGES_MAX)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        use_curve(self._socket, self._keys)
        self._monitor.watch(self._socket, url)
        try:
            self._socket.connect(url)
        except zmq.ZMQError as error:
            raise errors.SettingInvalid(f"can't connect to {url!r}: {error}") from None
        self._look_until_ms = now_ms() + _LOOK_MS
        self._note_connecting()
        self._waiting = _Waiting(self._woken.fileno(), self.descriptor, self._monitor.descriptor)

    @property
    def descriptor(self) -> int:
        return -1 if self._socket is None else int(self._socket.getsockopt(self._zmq.FD))

    def send(self, frames: Sequence[Frame]) -> None:
        if self._socket is None and not self._is_connected_again():
            return
        send, last = self._socket.send, len(frames) - 1
        # A full queue drops the request; it is sent again after its timeout.
        with contextlib.suppress(self._zmq.Again):
            for index, frame in enumerate(frames):
                flags = self._now_more if index < last else self._now
                send(frame, flags, copy=len(frame) < _COPY_BYTES_MAX)

    def receive(self) -> Sequence[Frame] | None:
        if self._has_news:
            self._read_monitor()
        # The descriptor signals only changes, so events are requested until there are none.
        sock = self._socket
        if sock is None or not sock.getsockopt(self._events) & self._readable:
            return None
        frames: list[Frame] = [sock.recv(self._now)]
        while sock.getsockopt(self._more):
            frames.append(sock.recv(self._now))
        return frames

    def _read_monitor(self) -> None:
        refusal = self._monitor.read()
        if refusal is None:
            self._note_connecting()
            return
        self.refusal = refusal
        self._not_before_ms = now_ms() + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, _PAUSE_MS_MAX)
        self.before_close()
        self._disconnect()
        self.wake()

    def _is_connected_again(self) -> bool:
        if now_ms() < self._not_before_ms:
            return False
        self._connect()
        self.wake()
        return True

    def _note_connecting(self) -> None:
        at_ms = now_ms()
        self._has_news = self._monitor.is_connecting
        if not self._has_news:
            self._pause_ms = _PAUSE_MS_MIN
        is_new = self._has_news and at_ms < self._look_until_ms
        self.retry_ms = at_ms + _LOOK_EVERY_MS if is_new else _NEVER

    def wait(self, timeout_ms: float) -> None:
        is_woken, has_news = self._waiting.wait(timeout_ms)
        if is_woken:
            with contextlib.suppress(OSError):
                self._woken.recv(4096)
        if has_news:
            self._has_news = True

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def wire_bytes(self) -> WireBytes | None:
        self._read_monitor()
        return self._monitor.counter.read()

    def reconnect(self) -> None:
        self._disconnect()
        self._is_connected_again()

    def _disconnect(self) -> None:
        self._has_news, self.retry_ms = False, _NEVER
        self._waiting = _Waiting(self._woken.fileno())
        if self._socket is not None:
            self._monitor.close()
            self._socket.close(0)
            self._socket = None

    def close(self) -> None:
        self._disconnect()
        self._waker.close()
        self._woken.close()


class _Waiting:
    """Waits for one of a few descriptors to become readable: that of the waker, of the socket and of its monitor."""

    def __init__(self, waker: int, sock: int = -1, monitor: int = -1) -> None:
        self._waker, self._monitor = waker, monitor
        self._descriptors = [each for each in (waker, sock, monitor) if each >= 0]
        self._poll = select.poll() if hasattr(select, "poll") else None
        if self._poll is not None:
            for each in self._descriptors:
                self._poll.register(each, select.POLLIN)

    def wait(self, timeout_ms: float) -> tuple[bool, bool]:
        """Wait. Returns whether `wake` was called, and whether the monitor has news."""
        if self._poll is not None:
            readable = [each for each, _ in self._poll.poll(timeout_ms)]
        else:
            readable, _, _ = select.select(self._descriptors, [], [], timeout_ms / 1000)
        return self._waker in readable, self._monitor in readable


def check_credentials(urls: Sequence[str], credentials: Credentials) -> None:
    """Raise SettingInvalid if there is a token: ZeroMQ has no place for it."""
    if credentials.curve is None and (credentials.token or credentials.token_file):
        raise errors.SettingInvalid(
            f"a token can't be used with ZeroMQ ({urls[0]}): use oncemq://, or the keys curve_server, curve_public and "
            "curve_secret"
        )


def use_curve(sock: Any, keys: CurveKeys | None) -> None:
    """Encrypt the connections of a socket that is not connected yet. Raises SettingInvalid, which shows no key."""
    if keys is None:
        return
    import zmq

    for option, name in (
        (zmq.CURVE_SERVERKEY, "server"),
        (zmq.CURVE_PUBLICKEY, "public"),
        (zmq.CURVE_SECRETKEY, "secret"),
    ):
        try:
            sock.setsockopt(option, getattr(keys, name).encode("ascii"))
        except (zmq.ZMQError, UnicodeError):
            raise errors.SettingInvalid(f"curve_{name} is not a key of 40 characters") from None
