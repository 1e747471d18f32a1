"""The account of a connection agrees with what was sent and read."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from oncemq.net import kernel
from oncemq.net.connection import Connection
from oncemq.net.descriptors import connection_descriptors_max, raise_limit

pytestmark = pytest.mark.skipif(not kernel.IS_MEASURED, reason="connections are measured on Linux only")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection: ours, and the peer's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    yield ours, peer
    ours.close()
    peer.close()


def wait_until(connection: Connection, condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until_s
        connection.measure(time.monotonic())


def test_bytes_of_no_complete_message_are_unprocessed(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = ends
    connection = Connection(ours.fileno(), 0.0)
    peer.sendall(bytes(100_000))
    wait_until(connection, lambda: connection.unprocessed > 90_000)
    connection.delivered += 100_000
    connection.measure(0.0)
    assert connection.unprocessed == 0


def test_heartbeats_between_messages_do_not_add_up(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = ends
    connection = Connection(ours.fileno(), 0.0)
    for round_number in range(1, 51):
        peer.sendall(bytes(3_000))
        ours.recv(4096)
        connection.delivered += 1_000
        wait_until(connection, lambda total=3_000 * round_number: connection.received == total)  # type: ignore[misc]
    assert connection.unprocessed == 0


def test_what_the_peer_has_not_read_is_unread(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = ends
    connection = Connection(ours.fileno(), 0.0)
    connection.sent = 50_000_000
    ours.setblocking(False)
    ours.send(bytes(50_000_000))
    connection.measure(1.0)
    assert connection.unread > 10_000_000
    peer.close()


def test_a_descriptor_that_was_used_again_is_another_connection(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = ends
    connection = Connection(ours.fileno(), 0.0)
    assert connection.is_open
    os.dup2(peer.fileno(), ours.fileno())
    assert not connection.is_open


def test_the_reserve_of_descriptors_is_below_the_limit() -> None:
    assert 0 < connection_descriptors_max() < raise_limit()
