"""Subscribers for benchmarks/push.py, several in a process; and a bare XPUB socket that is fed from memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import zmq

TOPIC = "bench"


def listen_plainly(feed: str, subscribers: int, end: int, parent: Connection) -> None:
    """Listen with SUB sockets, one message at a time."""
    _listen(feed, TOPIC.encode() + b"\0", subscribers, end, parent, lambda _: 1)


def listen_to_batches(feed: str, subscribers: int, end: int, parent: Connection) -> None:
    """Listen with SUB sockets, in batches as they are stored."""
    _listen(feed, b"\x01" + TOPIC.encode() + b"\0", subscribers, end, parent, lambda words: int(words[4]))


def _listen(
    feed: str, prefix: bytes, subscribers: int, end: int, parent: Connection, count_of: Callable[[list[bytes]], int]
) -> None:
    context = zmq.Context()
    poller = zmq.Poller()
    for _ in range(subscribers):
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, 10_000)
        socket.setsockopt(zmq.SUBSCRIBE, prefix)
        socket.connect(feed)
        # The first heartbeat shows that it is subscribed.
        socket.recv_multipart()
        poller.register(socket, zmq.POLLIN)
    parent.send("ready")
    delivered, open_sockets, now = 0, subscribers, int(zmq.NOBLOCK)
    while open_sockets:
        for socket, _ in poller.poll():
            try:
                for _ in range(1000):
                    frames = socket.recv_multipart(now)
                    words = frames[1].split()
                    if len(frames) == 3:
                        count = count_of(words)
                        delivered += count
                        is_over = int(words[1]) + count >= end
                    else:
                        is_over = int(words[1]) >= end
                    if is_over:
                        poller.unregister(socket)
                        open_sockets -= 1
                        break
            except zmq.Again:
                pass
    parent.send((delivered, time.monotonic()))


def get_batches(url: str, subscribers: range, end: int, parent: Connection) -> None:
    """Get with subscriptions of the native client, one thread for each."""
    import oncemq

    delivered = [0] * len(subscribers)

    def consume(index: int, subscription: Any) -> None:
        while delivered[index] < end:
            delivered[index] += len(subscription.get_many(10_000, timeout_s=5))

    clients = [oncemq.connect(url) for _ in subscribers]
    subscriptions = [
        client.subscribe(TOPIC, f"getter-{number}") for client, number in zip(clients, subscribers, strict=True)
    ]
    for subscription in subscriptions:
        subscription.get()
    threads = [threading.Thread(target=consume, args=pair) for pair in enumerate(subscriptions)]
    parent.send("ready")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    parent.send((sum(delivered), time.monotonic()))
    for client in clients:
        client.close()


def feed_barely(address: str, value_bytes: int, end: int, parent: Connection) -> None:
    """Send the same frames as the gateway from memory: nothing is stored."""
    topic, content = TOPIC.encode() + b"\0", b"x" * value_bytes
    socket = _bare_socket(address, topic, parent)
    for offset in range(end):
        socket.send_multipart([topic, b"message %d 1700000000000 1" % offset, content])
    socket.send_multipart([topic, b"next %d 0 0" % end])
    parent.recv()


def feed_batches_barely(
    address: str, value_bytes: int, end: int, batch: int, pause_s: float, parent: Connection
) -> None:
    """Send batches of the same size and at the same pace as those that are put."""
    topic, content = b"\x01" + TOPIC.encode() + b"\0", b"x" * (value_bytes * batch)
    socket = _bare_socket(address, topic, parent)
    next_s = time.monotonic()
    for offset in range(0, end, batch):
        socket.send_multipart([topic, b"batch %d 0 1 %d 0 0" % (offset, batch), content])
        next_s += pause_s
        time.sleep(max(0.0, next_s - time.monotonic()) if pause_s else 0.0)
    parent.recv()


def _bare_socket(address: str, topic: bytes, parent: Connection) -> Any:
    """Start when all subscribers listen and the parent says so."""
    socket: Any = zmq.Context().socket(zmq.XPUB)
    socket.setsockopt(zmq.XPUB_NODROP, 1)
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    socket.setsockopt(zmq.SNDHWM, 10_000)
    socket.bind(address)
    parent.send("ready")
    while not parent.poll():
        if socket.poll(10):
            socket.recv()
            socket.send_multipart([topic, b"next 0 0 0"])
    parent.recv()
    return socket
