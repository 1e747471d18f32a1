"""Peers of the push gateway in plain pyzmq and JSON, without code of OnceMQ.

`keys` are those of CURVE: server, public and secret.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from typing import Any

import zmq

DEADLINE_S = 30.0


def _socket(kind: int, keys: Any = None) -> Any:
    context: Any = zmq.Context.instance()
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    if keys is not None:
        socket.curve_serverkey = keys.server.encode()
        socket.curve_publickey = keys.public.encode()
        socket.curve_secretkey = keys.secret.encode()
    return socket


class Listener:
    """A plain SUB socket."""

    def __init__(self, address: str, *prefixes: bytes, keys: Any = None) -> None:
        self.socket = _socket(zmq.SUB, keys)
        for prefix in prefixes:
            self.socket.setsockopt(zmq.SUBSCRIBE, prefix)
        self.socket.connect(address)

    def frames(self, deadline_s: float = DEADLINE_S) -> list[bytes]:
        assert self.socket.poll(deadline_s * 1000), "nothing comes"
        found: list[bytes] = self.socket.recv_multipart()
        return found

    def heartbeat(self, at_least: int = 0) -> int:
        """Wait for a heartbeat with this offset or a later one, and return its offset."""
        until_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < until_s:
            frames = self.frames()
            word, offset, *_ = frames[1].split()
            if word == b"next" and int(offset) >= at_least:
                assert len(frames) == 2
                return int(offset)
        raise AssertionError(f"no heartbeat with {at_least} or more")

    def messages(self, count: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            frames = self.frames()
            word, offset, *_ = frames[1].split()
            if word == b"message":
                found.append((int(offset), frames[2]))
        return found

    def close(self) -> None:
        self.socket.close()


class Publisher:
    """A plain PUB socket. What it sends goes nowhere until it has met the gateway, so it first sends until something
    comes back."""

    def __init__(self, address: str, feed: str) -> None:
        self._socket = _socket(zmq.PUB)
        self._socket.connect(address)
        probe = f"probe.{uuid.uuid4().hex}".encode()
        echo = Listener(feed, probe + b"\0")
        echo.heartbeat()
        until_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < until_s:
            self.send(probe, b"")
            if echo.socket.poll(20) and echo.socket.recv_multipart()[1].startswith(b"message"):
                break
        echo.close()

    def send(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def close(self) -> None:
        self._socket.close()


class Asker:
    """A REQ socket that repeats requests (the Lazy Pirate pattern)."""

    def __init__(self, address: str, timeout_s: float = DEADLINE_S, keys: Any = None) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._keys = keys
        self._socket = self._connect()

    def _connect(self) -> Any:
        socket = _socket(zmq.REQ, self._keys)
        socket.connect(self._address)
        return socket

    def ask_once(self, *frames: bytes, timeout_s: float | None = None) -> dict[str, Any] | None:
        self._socket.send_multipart(frames)
        if self._socket.poll((timeout_s or self._timeout_s) * 1000):
            answer: dict[str, Any] = json.loads(self._socket.recv())
            return answer
        self._socket.close()
        self._socket = self._connect()
        return None

    def ask(self, kind: str, content: Any = None, **fields: Any) -> dict[str, Any]:
        answer = self.ask_once(json.dumps({"type": kind, **fields}).encode(), *([] if content is None else [content]))
        assert answer is not None, f"no answer to {kind}"
        return answer

    def insist(self, kind: str, content: bytes | None = None, **fields: Any) -> dict[str, Any]:
        """Repeat a request until it has an outcome."""
        frames = [json.dumps({"type": kind, **fields}).encode(), *([] if content is None else [content])]
        until_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < until_s:
            answer = self.ask_once(*frames, timeout_s=1.0)
            if answer is not None and not answer.get("again"):
                return answer
        raise AssertionError(f"{kind} is never decided")

    def close(self) -> None:
        self._socket.close()


class Callee:
    """A REP socket to which messages are sent again; it acks each one, in a thread."""

    def __init__(self, subscriber: str, *, answers: bool = True, keys: Any = None) -> None:
        """With keys, only who knows the public one can send to it."""
        self._subscriber = subscriber
        self._answers = answers
        self._socket = _socket(zmq.REP)
        if keys is not None:
            self._socket.curve_server = 1
            self._socket.curve_secretkey = keys.secret.encode()
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        #: Received messages: (topic, offset, content).
        self.received: list[tuple[str, int, bytes]] = []
        self.data: list[dict[str, Any]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            if not self._socket.poll(20):
                continue
            head, content = self._socket.recv_multipart()
            data = json.loads(head)
            assert data["type"] == "data"
            self.data.append(data)
            self.received.append((data["topic"], data["offset"], content))
            answer = {key: data[key] for key in ("subscriber", "topic", "offset")} | {"type": "ack_received"}
            self._socket.send(json.dumps(answer).encode() if self._answers else b"what?")
        self._socket.close()

    @property
    def offsets(self) -> list[int]:
        return [offset for _, offset, _ in self.received]

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


class Subscriber:
    """A reliable subscriber in a thread: listens, is called, acks, and orders messages by offset."""

    def __init__(self, name: str, topic: str, feed: str, acks: str) -> None:
        self._name = name
        self._topic = topic
        self._listener = Listener(feed, topic.encode() + b"\0")
        self._callee = _socket(zmq.REP)
        port = self._callee.bind_to_random_port("tcp://127.0.0.1")
        self._asker = Asker(acks)
        welcome = self._asker.insist(
            "hello", subscriber=name, topics=[topic], address=f"tcp://127.0.0.1:{port}", start="earliest"
        )
        self.expected: int = welcome["topics"][topic]
        self.processed: list[bytes] = []
        self._early: dict[int, bytes] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._listener.socket, self._callee):
            poller.register(socket, zmq.POLLIN)
        while not self._is_over.is_set():
            for socket, _ in poller.poll(20):
                if socket is self._callee:
                    self._is_called()
                else:
                    self._hears()

    def _is_called(self) -> None:
        head, content = self._callee.recv_multipart()
        data = json.loads(head)
        self._take(data["offset"], content)
        self._callee.send(json.dumps(self._received(data["offset"])).encode())

    def _hears(self) -> None:
        frames = self._listener.socket.recv_multipart()
        word, offset, *_ = frames[1].split()
        if word == b"message":
            self._take(int(offset), frames[2])
            self._asker.ask_once(json.dumps(self._received(int(offset))).encode(), timeout_s=0.5)

    def _received(self, offset: int) -> dict[str, Any]:
        return {"type": "ack_received", "subscriber": self._name, "topic": self._topic, "offset": offset}

    def _take(self, offset: int, content: bytes) -> None:
        if offset >= self.expected:
            self._early[offset] = content
        while self.expected in self._early:
            self.processed.append(self._early.pop(self.expected))
            self.expected += 1

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._listener.close()
        self._callee.close()
        self._asker.close()
