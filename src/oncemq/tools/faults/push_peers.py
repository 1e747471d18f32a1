"""A reliable publisher and a reliable subscriber of the push gateway, in plain ZeroMQ and JSON (docs/push.md).

Requests are repeated until there is a final answer. The network may lose, duplicate and delay them, so an answer counts
only if it belongs to the request.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import zmq

from oncemq.protocol.errors import BrokerAway, Malformed

Json = dict[str, Any]
#: The answer to each request, and the fields that it repeats.
_ANSWERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "publish": ("ack_published", ("origin", "id")),
    "hello": ("ack_welcome", ("subscriber",)),
    "goodbye": ("ack_goodbye", ("subscriber",)),
    "ack_received": ("ack_noted", ("subscriber", "topic")),
}
_PAUSE_S = 0.05
_POLL_MS = 50
#: Messages of the feed that are taken before they are acked together.
_TAKEN_MAX = 100


def _socket(kind: int) -> Any:
    context: Any = zmq.Context.instance()
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    return socket


class PushRequests:
    """Sends requests to the ack socket of the gateway, one at a time."""

    def __init__(self, url: str, *, timeout_s: float = 1.0, total_timeout_s: float = 120.0) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._total_timeout_s = total_timeout_s
        self._socket = self._connect()

    def _connect(self) -> Any:
        socket = _socket(zmq.REQ)
        socket.connect(self._url)
        return socket

    def ask(self, head: Json, *content: bytes) -> Json:
        """Return the final answer. Raises Malformed for an error, and BrokerAway."""
        until_s = time.monotonic() + self._total_timeout_s
        while time.monotonic() < until_s:
            answer = self._ask_once(head, content)
            if answer is not None and not answer.get("again"):
                if answer["type"] == "error":
                    raise Malformed(f"{head['type']} was answered with {answer['code']}: {answer['text']}")
                return answer
            time.sleep(_PAUSE_S)
        raise BrokerAway(f"no final answer to {head['type']} from {self._url} for {self._total_timeout_s:g} s")

    def _ask_once(self, head: Json, content: tuple[bytes, ...]) -> Json | None:
        self._socket.send_multipart([json.dumps(head).encode(), *content])
        if self._socket.poll(self._timeout_s * 1000):
            answer: Json = json.loads(self._socket.recv())
            kind, fields = _ANSWERS[head["type"]]
            if answer["type"] == "error" or (
                answer["type"] == kind and all(answer[field] == head[field] for field in fields)
            ):
                return answer
        # No answer, or a late one to an earlier request, which a new socket does not get.
        self._socket.close()
        self._socket = self._connect()
        return None

    def close(self) -> None:
        self._socket.close()


class ReliableSubscriber:
    """Listens to the feed, is called with what it has missed, and acks what it has stored.

    `store` gets each message once and in order: topic, offset and content. `positions` are the offsets after the
    messages that an earlier process has stored. `loses` says whether the network has lost a message of the feed.
    """

    def __init__(
        self,
        requests: PushRequests,
        feed: str,
        name: str,
        topics: list[str],
        positions: Mapping[str, int],
        store: Callable[[str, int, bytes], None],
        loses: Callable[[], bool] = lambda: False,
        start: str = "new",
    ) -> None:
        #: By topic: everything below was stored.
        self.positions: dict[str, int] = {}
        self._requests = requests
        self._name = name
        self._store = store
        self._loses = loses
        self._early: dict[str, dict[int, bytes]] = {topic: {} for topic in topics}
        self._feed = _socket(zmq.SUB)
        for topic in topics:
            self._feed.setsockopt(zmq.SUBSCRIBE, topic.encode() + b"\0")
        self._feed.connect(feed)
        self._called = _socket(zmq.REP)
        port: int = self._called.bind_to_random_port("tcp://127.0.0.1")
        hello = {"topics": topics, "address": f"tcp://127.0.0.1:{port}", "start": start}
        welcome = requests.ask(self._head("hello") | hello)
        self.positions |= {topic: max(positions.get(topic, 0), welcome["topics"][topic]) for topic in topics}
        self._poller = zmq.Poller()
        for socket in (self._feed, self._called):
            self._poller.register(socket, zmq.POLLIN)

    def _head(self, kind: str) -> Json:
        return {"type": kind, "subscriber": self._name}

    def step(self) -> int:
        """Take what has arrived, and ack it. Returns the number of messages that were stored."""
        before = sum(self.positions.values())
        taken: dict[str, list[int]] = {}
        for socket, _ in self._poller.poll(_POLL_MS):
            if socket is self._called:
                self._answer_call()
            else:
                self._listen(taken)
        for topic, offsets in taken.items():
            self._requests.ask(self._head("ack_received") | {"topic": topic, "offsets": offsets})
        return sum(self.positions.values()) - before

    def _answer_call(self) -> None:
        head, content = self._called.recv_multipart()
        data = json.loads(head)
        if not self._take(data["topic"], data["offset"], content):
            raise Malformed(f"{data['topic']} {data['offset']} was sent again before the messages that precede it")
        answer = self._head("ack_received") | {"topic": data["topic"], "offset": data["offset"]}
        self._called.send(json.dumps(answer).encode())

    def _listen(self, taken: dict[str, list[int]]) -> None:
        for _ in range(_TAKEN_MAX):
            if not self._feed.poll(0):
                return
            frames = self._feed.recv_multipart()
            word, offset, *_ = frames[1].split()
            if word == b"message" and not self._loses():
                topic = frames[0].removesuffix(b"\0").decode()
                if self._take(topic, int(offset), frames[2]):
                    taken.setdefault(topic, []).append(int(offset))

    def _take(self, topic: str, offset: int, content: bytes) -> bool:
        """Store a message, and those that waited for it. Returns False if it has to wait itself."""
        early = self._early.get(topic)
        if early is None:
            # A topic of an earlier hello.
            return True
        if offset >= self.positions[topic]:
            early[offset] = content
        while (position := self.positions[topic]) in early:
            self._store(topic, position, early.pop(position))
            self.positions[topic] += 1
        return offset < self.positions[topic]

    def leave(self) -> None:
        """Delete the subscriptions."""
        self._requests.ask(self._head("goodbye"))

    def close(self) -> None:
        self._feed.close()
        self._called.close()
        self._requests.close()
