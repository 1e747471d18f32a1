"""The stream listener forgets a connection that has ended, whatever it was doing at that moment."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq.net.counters import Counters
from oncemq.net.policy import ListenerLimits
from oncemq.net.poller import READABLE, WRITABLE
from oncemq.net.stream.listener import StreamListener
from oncemq.net.system import System
from oncemq.net.tls_socket import TlsSocket
from oncemq.protocol.stream import encode_message, encode_opening

_LIMITS = ListenerLimits(connections_max=10, peer_bytes_max=1000)


class Rig:
    def __init__(self, folder: Path) -> None:
        self.poller = System().poller()
        self.listener = StreamListener(self.poller, "the test", _LIMITS, 1000, Counters(logging.getLogger("test")))
        self.paths = [folder / "one.sock", folder / "two.sock"]
        for path in self.paths:
            self.listener.listen(f"oncemq+unix://{path}", "0600")

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.paths[0]))
        self.serve()
        return sock

    def serve(self) -> None:
        for descriptor, events in self.poller.wait(1000):
            self.listener.serve(descriptor, events, lambda _peer, _frames: None)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.listener.close()
    rig.poller.close()


def test_a_peer_that_has_gone_before_the_opening_is_answered_leaves_no_bytes_behind(rig: Rig) -> None:
    with rig.connect() as sock:
        sock.sendall(encode_opening({}) + b"".join(encode_message([b"x" * 100]))[:50])
    rig.serve()
    assert len(rig.listener) == 0
    assert rig.listener.buffered_bytes == 0


def test_a_peer_that_has_gone_while_a_reply_is_sent_leaves_no_bytes_behind(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig.connect() as sock:
        sock.sendall(encode_opening({}))
        rig.serve()
        [connection] = rig.listener._by_peer.values()
        while not rig.listener.buffered_bytes:
            rig.listener.send(connection.peer, [bytes(1000)])

        class Gone:
            """Takes some bytes, and is then reset."""

            def __init__(self, real: socket.socket | TlsSocket) -> None:
                self.real = real
                self.calls = 0

            def sendmsg(self, _buffers: object) -> int:
                self.calls += 1
                if self.calls > 1:
                    raise ConnectionResetError
                return 10

            def close(self) -> None:
                self.real.close()

        monkeypatch.setattr(connection, "socket", Gone(connection.socket))
        rig.listener.serve(connection.descriptor, READABLE | WRITABLE, lambda _peer, _frames: None)
    assert len(rig.listener) == 0
    assert rig.listener.buffered_bytes == 0


def test_the_listener_runs_out_of_descriptors_at_two_addresses_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exhausted:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        def close(self) -> None: ...

    listening = rig.listener._listening
    real = dict(listening)
    for descriptor in real:
        monkeypatch.setitem(listening, descriptor, Exhausted())
    for descriptor in real:
        rig.listener.serve(descriptor, READABLE, lambda _peer, _frames: None)
    assert rig.listener._counters["connections_refused"] == 2
    listening.update(real)
