"""The connections of a listener, as far as its guard knows them."""

from __future__ import annotations

import logging
import os
import socket
import time

import pytest
import zmq

from oncemq.net import kernel
from oncemq.net import listener as listener_module
from oncemq.net.connection import Connection
from oncemq.net.counters import Counters
from oncemq.net.guard import Guard
from oncemq.net.listener import Listener
from oncemq.net.policy import ListenerLimits
from tests.acceptance.processes import wait_until

LIMITS = ListenerLimits(connections_max=3, peer_bytes_max=2**20)


def test_clients_that_were_gone_before_their_message_was_read_take_no_place() -> None:
    counters = Counters(logging.getLogger("test"))
    with zmq.Context() as context, zmq.Context() as clients, context.socket(zmq.ROUTER) as router:
        listener = Guard.here().watch(router, "a test", LIMITS, counters)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        visitors = [clients.socket(zmq.DEALER) for _ in range(3)]
        for visitor in visitors:
            visitor.connect(f"tcp://127.0.0.1:{port}")
            visitor.send(b"bye")
        wait_until(lambda: len(listener.connections) == 3, "three connections are known")
        for visitor in visitors:
            visitor.close(1000)
        wait_until(lambda: not listener.connections, "all connections are gone")
        # Something else has the descriptors of the connections when their messages are read.
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
        for _ in range(3):
            assert router.poll(10_000)
            peer, message = router.recv_multipart(copy=False)
            listener.note_received(message, 5, peer.bytes)
        with clients.socket(zmq.DEALER) as client:
            client.connect(f"tcp://127.0.0.1:{port}")
            client.send(b"hello")
            assert router.poll(10_000)
            wait_until(lambda: len(listener.connections) == 1, "the connection is known")
        assert not counters.counts
        for other in others:
            os.close(other)
        Guard.here().end(router, listener)


def test_peers_without_a_connection_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener("a test", LIMITS, Counters(logging.getLogger("test")))
    frame = type("Frame", (), {"get": lambda *_: 1_000_000})()
    for number in range(5):
        listener.note_received(frame, 5, b"peer %d" % number)
    assert len(listener._peers) == 1
    monkeypatch.setattr(listener_module, "_EARLY_S", -1.0)
    assert listener.measure(time.monotonic()) == []
    assert not listener._peers
    assert not listener._early


def test_a_message_that_is_faster_than_the_news_of_its_connection_is_counted() -> None:
    listener = Listener("a test", LIMITS, Counters(logging.getLogger("test")))
    frame = type("Frame", (), {"get": lambda *_: 1_000_000})()
    listener.note_received(frame, 5, b"peer")
    assert listener.accept(1_000_000).delivered == 5
    listener.note_received(frame, 5, b"peer")
    assert listener.connections[1_000_000].delivered == 10


_tells_sockets_apart = pytest.mark.skipif(
    not kernel.IS_MEASURED, reason="nothing tells a socket from the next one with its descriptor"
)


@_tells_sockets_apart
def test_a_message_is_not_that_of_the_former_connection_with_the_same_descriptor() -> None:
    listener = Listener("a test", LIMITS, Counters(logging.getLogger("test")))
    former, current = socket.socket(), socket.socket()
    descriptor = former.fileno()
    frame = type("Frame", (), {"get": lambda *_: descriptor})()
    ended = listener.accept(descriptor)
    ended.peer = b"former"
    os.dup2(current.fileno(), descriptor)
    found = listener.note_received(frame, 5, b"current")
    assert found is not None
    assert found is not ended
    found.caller = "kitchen"
    # The news of the end of one, and of the other, come now.
    listener.forget(ended)
    assert listener.belongs_to(b"current", "kitchen")
    assert listener.accept(descriptor) is found
    assert listener.belongs_to(b"current", "kitchen")
    former.close()
    current.close()


@_tells_sockets_apart
def test_late_news_of_a_former_connection_with_the_same_descriptor_ends_nothing() -> None:
    listener = Listener("a test", LIMITS, Counters(logging.getLogger("test")))
    gone: list[Connection] = []
    listener.when_gone = gone.append
    with socket.socket() as current:
        descriptor = current.fileno()
        frame = type("Frame", (), {"get": lambda *_: descriptor})()
        # The beginning of a connection that is closed already.
        listener.accept(descriptor)
        found = listener.note_received(frame, 5, b"current")
        assert found is not None
        found.caller = "kitchen"
        # Its end, and the beginning of the one that has sent the message.
        assert listener.close(descriptor) is None
        assert listener.belongs_to(b"current", "kitchen")
        assert listener.note_received(frame, 5, b"current") is found
        assert listener.accept(descriptor) is found
        assert listener.belongs_to(b"current", "kitchen")
        assert not gone
    assert listener.close(descriptor) is found
    assert gone == [found]
    assert listener.is_empty


@_tells_sockets_apart
def test_the_news_of_an_end_may_come_before_the_end() -> None:
    listener = Listener("a test", LIMITS, Counters(logging.getLogger("test")))
    gone: list[Connection] = []
    listener.when_gone = gone.append
    with socket.socket() as ending:
        connection = listener.accept(ending.fileno())
        assert listener.close(ending.fileno()) is None
        listener.measure(time.monotonic())
        assert not gone
        assert not listener.is_empty
    listener.measure(time.monotonic())
    assert gone == [connection]
    assert listener.is_empty


def test_only_replies_that_are_dropped_are_counted() -> None:
    counters = Counters(logging.getLogger("test"))
    listener = Listener("a test", LIMITS, counters)
    frame = type("Frame", (), {"get": lambda *_: 1_000_000})()
    listener.note_received(frame, 5, b"peer")
    assert listener.is_reading(b"peer")
    listener.note_sent(b"peer", LIMITS.peer_bytes_max + 1)
    assert not listener.is_reading(b"peer")
    assert not counters.counts
    listener.note_dropped(b"peer")
    assert counters["replies_dropped"] == 1
