"""A peer of the stream listener keeps about as much memory as the listener counts for it, and the file of a Unix socket
is removed while it belongs to the listener."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from oncemq.net.stream.connection import StreamConnection
from oncemq.protocol.errors import ListenFailed
from oncemq.protocol.frames import Frame
from oncemq.protocol.stream import encode_opening
from tests.net.stream_rig import LIMITS, MIB, Rig, received, rigged


class Block(bytearray):
    """What was read from the disk for a reply. It shows whether something still refers to it."""


def waiting_buffers_bytes(connection: StreamConnection) -> int:
    """Return the memory of all buffers that a connection keeps for what its peer has not read."""
    buffers = {id(view.obj): memoryview(view.obj).nbytes for view in connection._outgoing}
    return sum(buffers.values())


def views(block: Block, size: int, count: int) -> list[memoryview]:
    """Return views of a block, with the same distance between them."""
    step = len(block) // count
    return [memoryview(block)[at : at + size] for at in range(0, step * count, step)]


def test_small_parts_of_a_large_block_do_not_keep_the_block_while_they_wait(tmp_path: Path) -> None:
    with rigged() as rig:
        peer = rig.peer(rig.listen(f"oncemq+unix://{tmp_path}/socket"))
        block = Block(os.urandom(4 * MIB))
        known = weakref.ref(block)
        sent = [bytes(view) for view in views(block, 16 * 1024, 50)]
        rig.listener.send(rig.name(), views(block, 16 * 1024, 50))
        del block
        gc.collect()
        assert rig.listener.buffered_bytes > 0, "the peer has not read everything"
        assert known() is None
        assert received(peer, rig, 1) == [sent]


def test_the_last_bytes_of_a_reply_do_not_keep_all_of_it(tmp_path: Path) -> None:
    with rigged() as rig:
        peer = rig.peer(rig.listen(f"oncemq+unix://{tmp_path}/socket"))
        connection = rig.connection()
        block = Block(os.urandom(4 * MIB))
        known = weakref.ref(block)
        rig.listener.send(rig.name(), views(block, 64 * 1024, 64))
        del block
        gc.collect()
        assert known() is not None, "a copy of all of it would take time"
        most = 0.0
        while connection.outgoing_bytes:
            peer.socket.recv(16 * 1024)
            rig.serve_all()
            if connection.outgoing_bytes:
                most = max(most, waiting_buffers_bytes(connection) / connection.outgoing_bytes)
        assert most <= 2


def test_what_was_copied_arrives_unchanged_and_in_order(tmp_path: Path) -> None:
    with rigged(LIMITS) as rig:
        peer = rig.peer(rig.listen(f"oncemq+unix://{tmp_path}/socket"))
        rig.serve_all()
        replies: list[list[bytes]] = []
        for number in range(5):
            block = Block(os.urandom(MIB))
            frames: list[Frame] = [
                b"header %d" % number,
                *views(block, 20_000, 40),
                *views(Block(os.urandom(MIB)), 100_000, 10),
            ]
            replies.append([bytes(frame) for frame in frames])
            rig.listener.send(rig.name(), frames)
        assert received(peer, rig, 5) == replies
        assert rig.listener.buffered_bytes == 0


def test_the_properties_of_an_opening_are_not_kept() -> None:
    with rigged() as rig:
        rig.peer(rig.listen(), encode_opening({"maps": [{}] * 60_000}))
        rig.serve_until(lambda: rig.connection().reader.properties is not None)
        assert rig.connection().reader.properties == {}
        assert len(rig.listener) == 1


def _started_meanwhile(other: Rig, address: str, unlink: Callable[[str], None]) -> Callable[[str], None]:
    """Return an `unlink` before which another broker tries to start at the same address."""

    def unlink_later(path: str) -> None:
        with pytest.raises(ListenFailed):
            other.listen(address)
        unlink(path)

    return unlink_later


def test_a_broker_that_stops_does_not_remove_the_socket_of_one_that_starts_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"oncemq+unix://{tmp_path}/socket"
    with rigged() as first, rigged() as second:
        first.listen(address)
        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", _started_meanwhile(second, address, os.unlink))
            first.listener.close()
        second.listen(address)
        assert second.peer(address).socket.fileno() >= 0


def test_a_socket_file_that_can_not_be_removed_does_not_keep_the_listener_from_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(path)

    with rigged() as rig:
        rig.listen(f"oncemq+unix://{tmp_path}/socket")
        rig.peer(rig.listen())
        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", refuse)
            rig.listener.close()
        assert len(rig.listener) == 0
        assert not rig.listener._listening
