"""What hostile peers do to a listener. Each attack runs in a process of its own, and begins anew when it was cut."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any

from oncemq.protocol.commands import Read
from oncemq.protocol.frames import encode_request
from tests.hostile.zmtp_peer import ZmtpPeer

_spawn = multiprocessing.get_context("spawn")
#: What one connection sends at most. A listener that lets all of it wait has failed.
BYTES_MAX = 400_000_000
TINY_BYTES_MAX = 30_000_000
#: Requests whose replies are never read.
_UNREAD_REQUESTS = 1000
#: Before a peer that was disconnected connects again.
_PAUSE_S = 0.05
_BEGIN_S = 60.0
_RECEIVE_BUFFER_BYTES = 4096


def unfinished(url: str, kind: str, frame_bytes: int) -> None:
    """Send a message that never ends."""
    with ZmtpPeer(url, kind) as peer:
        peer.send_unfinished(bytes(frame_bytes), BYTES_MAX // frame_bytes)


def tiny_frames(url: str, kind: str) -> None:
    """Send a message of very many frames of one byte."""
    with ZmtpPeer(url, kind) as peer:
        peer.send_unfinished(b"x", TINY_BYTES_MAX // 3)


def unread_replies(url: str, kind: str, request: list[bytes]) -> None:
    """Ask for large replies, and read none."""
    with ZmtpPeer(url, kind, receive_buffer_bytes=_RECEIVE_BUFFER_BYTES) as peer:
        for _ in range(_UNREAD_REQUESTS):
            peer.send(request)
        _wait_for_end(peer)


def unread_feed(url: str, kind: str, topics: list[bytes]) -> None:
    """Subscribe, and read nothing."""
    with ZmtpPeer(url, kind, receive_buffer_bytes=_RECEIVE_BUFFER_BYTES) as peer:
        for topic in topics:
            peer.send([b"\1" + topic])
        _wait_for_end(peer)


def _wait_for_end(peer: ZmtpPeer) -> None:
    """Wait until the listener disconnects, without reading."""
    poller = select.poll()
    poller.register(peer.socket, select.POLLRDHUP)
    poller.poll()


def read_request(topic: str, bytes_max: int) -> list[bytes]:
    """A request of the native protocol for the first messages of a topic."""
    return [bytes(frame) for frame in encode_request(1, [Read(topic, 0, bytes_max)])]


@contextmanager
def running(attack: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """Run an attack again and again, in a process of its own."""
    begun = _spawn.Event()
    process = _spawn.Process(target=_repeat, args=(begun, attack, arguments), daemon=True)
    process.start()
    try:
        assert begun.wait(_BEGIN_S), "the attack does not begin"
        yield
        assert process.is_alive(), "the attack has failed"
    finally:
        process.kill()
        process.join()


def _repeat(begun: Event, attack: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    begun.set()
    for _ in itertools.count():
        with contextlib.suppress(OSError):
            attack(*arguments)
        time.sleep(_PAUSE_S)
