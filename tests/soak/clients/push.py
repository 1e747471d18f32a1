"""A reliable publisher and a reliable subscriber of the push gateway, in plain pyzmq and JSON."""

from __future__ import annotations

import json
import time
from typing import Any

import zmq

from oncemq.protocol.errors import BrokerAway, Malformed
from oncemq.tools.faults.event_log import id_of, value_of
from tests.gateways.push.peers import Asker, Listener
from tests.soak.clients.client import SoakClient

_PATIENCE_S = 2.0
_TOTAL_S = 120.0
_PAUSE_S = 0.1
_POLL_MS = 200


def _ask(asker: Asker, head: dict[str, Any], *content: bytes) -> dict[str, Any]:
    """Repeat a request until it has a final answer."""
    until_s = time.monotonic() + _TOTAL_S
    while time.monotonic() < until_s:
        answer = asker.ask_once(json.dumps(head).encode(), *content, timeout_s=_PATIENCE_S)
        if answer is not None and not answer.get("again"):
            if answer["type"] == "error":
                raise Malformed(f"{head['type']} was answered with {answer}")
            return answer
        time.sleep(_PAUSE_S)
    raise BrokerAway(f"no final answer to {head['type']} for {_TOTAL_S:g} s")


def publish(client: SoakClient) -> None:
    stream, asker = client.stream(), Asker(client.addresses.acks)
    while not client.stop.is_set:
        [message] = stream.attempt(client.topic, 1)
        head = {"type": "publish", "origin": client.name, "id": message, "topic": client.topic}
        stream.acknowledge(client.topic, [message], _ask(asker, head, value_of(message))["offset"])
        client.pause()
    asker.close()


class ReliableSubscriber:
    """Listens to the feed, is called with what it has missed, and acks what it has logged. The log is its store."""

    def __init__(self, client: SoakClient) -> None:
        self._client = client
        self._listener = Listener(client.addresses.feed, client.topic.encode() + b"\0")
        self._called: Any = zmq.Context.instance().socket(zmq.REP)
        self._called.setsockopt(zmq.LINGER, 0)
        port: int = self._called.bind_to_random_port("tcp://127.0.0.1")
        self._asker = Asker(client.addresses.acks)
        self._early: dict[int, bytes] = {}
        hello = {"topics": [client.topic], "address": f"tcp://127.0.0.1:{port}", "start": "earliest"}
        welcome = _ask(self._asker, self._head("hello") | hello)
        self.expected = max(client.next_offset(), welcome["topics"][client.topic])
        self._poller = zmq.Poller()
        for socket in (self._listener.socket, self._called):
            self._poller.register(socket, zmq.POLLIN)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"type": kind, "subscriber": self._client.name}

    def step(self) -> None:
        for socket, _ in self._poller.poll(_POLL_MS):
            if socket is self._called:
                self._is_called()
            else:
                self._hears()

    def _is_called(self) -> None:
        head, content = self._called.recv_multipart()
        data = json.loads(head)
        self._take(data["topic"], data["offset"], content)
        answer = self._head("ack_received") | {"topic": data["topic"], "offset": data["offset"]}
        self._called.send(json.dumps(answer).encode())

    def _hears(self) -> None:
        frames = self._listener.socket.recv_multipart()
        word, offset, *_ = frames[1].split()
        if word == b"message":
            self._take(self._client.topic, int(offset), frames[2])
            self.ack()

    def _take(self, topic: str, offset: int, content: bytes) -> None:
        if topic == self._client.topic and offset >= self.expected:
            self._early[offset] = content
        while self.expected in self._early:
            self._client.deliver(self.expected, id_of(self._early.pop(self.expected)))
            self.expected += 1

    def ack(self) -> None:
        if self.expected:
            _ask(self._asker, self._head("ack_received") | {"topic": self._client.topic, "upto": self.expected})

    def leave(self) -> None:
        _ask(self._asker, self._head("goodbye"))
        self._listener.close()
        self._called.close()
        self._asker.close()


def subscribe(client: SoakClient) -> None:
    subscriber = ReliableSubscriber(client)
    while not client.is_done(subscriber.expected):
        subscriber.step()
    subscriber.ack()
    subscriber.leave()
