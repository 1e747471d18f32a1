"""Peers that behave. Each is a function that does one operation, and raises one of `UNSERVED` if it is not served."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import zmq
from examples.datagrams.peers import Publisher, Refused

import oncemq
from oncemq.protocol.errors import OnceMQError
from tests.hostile.servers import Servers

TIMEOUT_S = 30.0
UNSERVED = (OSError, OnceMQError, zmq.ZMQError, Refused)
Operation = Callable[[], object]

_CONTENT = b"x" * 100
_FEED_CONTENT = b"x" * (64 * 1024)
_RETRY_S = 0.02


@contextmanager
def _stream(servers: Servers) -> Iterator[Operation]:
    with oncemq.connect(servers.stream, timeout_s=TIMEOUT_S) as client:
        yield lambda: client.put("victim", _CONTENT)


@contextmanager
def _secured(servers: Servers) -> Iterator[Operation]:
    """Each operation connects anew, with TLS and a token."""

    def put() -> None:
        with servers.secured.connect(timeout_s=TIMEOUT_S) as client:
            client.put("victim", _CONTENT)

    yield put


@contextmanager
def _zeromq(servers: Servers) -> Iterator[Operation]:
    with oncemq.connect(servers.zeromq, timeout_s=TIMEOUT_S) as client:
        yield lambda: client.put("victim", _CONTENT)


@contextmanager
def _text(servers: Servers) -> Iterator[Operation]:
    with _asking(servers.text) as ask:
        yield lambda: ask([b"put victim " + _CONTENT])


@contextmanager
def _push(servers: Servers) -> Iterator[Operation]:
    with _asking(servers.acks) as ask:
        yield lambda: ask(publish_request("victim", _CONTENT))


@contextmanager
def _feed(servers: Servers) -> Iterator[Operation]:
    with _asking(servers.acks) as ask:
        yield lambda: ask(publish_request("victim", _FEED_CONTENT))


@contextmanager
def _udp(servers: Servers) -> Iterator[Operation]:
    with closing(Publisher(servers.udp, "honest", timeout_s=TIMEOUT_S)) as publisher:

        def put() -> None:
            publisher.put("victim", _CONTENT)
            publisher.flush()

        yield put


@contextmanager
def _http(servers: Servers) -> Iterator[Operation]:
    """One connection with keep-alive. It connects again and repeats the request if it is refused."""
    parts = urlsplit(servers.broker.http_url)
    with closing(HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)) as connection:

        def put() -> None:
            until_s = time.monotonic() + TIMEOUT_S
            while not _is_posted(connection):
                if time.monotonic() > until_s:
                    raise TimeoutError("no put is accepted")
                time.sleep(_RETRY_S)

        yield put


def _is_posted(connection: HTTPConnection) -> bool:
    try:
        connection.request("POST", "/v1/topics/victim/messages", _CONTENT, {"Content-Type": "text/plain"})
        response = connection.getresponse()
        response.read()
    except (OSError, HTTPException):
        connection.close()
        return False
    return response.status < 300


@contextmanager
def _asking(url: str) -> Iterator[Callable[[list[bytes]], bytes]]:
    """A REQ socket, as a function from requests to replies."""
    socket: Any = zmq.Context.instance().socket(zmq.REQ)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, int(1000 * TIMEOUT_S))
    socket.connect(url)

    def ask(request: list[bytes]) -> bytes:
        socket.send_multipart(request)
        reply: bytes = socket.recv()
        return reply

    yield ask
    socket.close(0)


def publish_request(topic: str, content: bytes) -> list[bytes]:
    """A request of the push gateway's ack socket."""
    return [json.dumps({"type": "publish", "origin": os.urandom(8).hex(), "topic": topic, "id": "1"}).encode(), content]


#: Kind → the peer. "feed" publishes much more than the others.
OTHERS: dict[str, Callable[[Servers], AbstractContextManager[Operation]]] = {
    "stream": _stream,
    "secured": _secured,
    "zeromq": _zeromq,
    "text": _text,
    "push": _push,
    "feed": _feed,
    "http": _http,
    "udp": _udp,
}
