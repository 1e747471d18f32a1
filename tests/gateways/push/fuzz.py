"""Invalid frames for all three sockets. Half of them are random; the others are valid messages with a change. The
gateway continues, and answers a valid request afterwards.

python -m tests.gateways.push.fuzz [--inputs 1000000] [--seed 1]
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

import zmq

from tests.fuzz_campaign import main
from tests.gateways.push.peers import Asker, Listener
from tests.gateways.push.processes import GatewayProcess

_WORDS = ["", "hello", "goodbye", "ack_received", "publish", "data", "ack_welcome", "error", "x", "\0", "a" * 300]
_TOPICS = ["fuzz.a", "fuzz.b", "fuzz.*", "", "a\nb", "\ud800", "é" * 200]
_NUMBERS = [0, 1, -1, 2, 5, 2**31, 2**62, 2**64, 10**40, 0.5, None, True, "1"]
_ADDRESSES = ["tcp://127.0.0.1:9", "tcp://[::1]:9", "tcp://127.0.0.1:99999", "udp://x", "", "tcp://8.8.8.8:53"]
#: Answers are read after this many inputs, so that they don't accumulate.
_DRAIN_EVERY = 200


class Fuzz:
    def __init__(self, gateway: GatewayProcess, seed: int) -> None:
        self._gateway = gateway
        self._random = random.Random(seed)
        context: Any = zmq.Context.instance()
        settings = gateway.settings
        self._publish: Any = context.socket(zmq.PUB)
        self._feed: Any = context.socket(zmq.XSUB)
        self._acks: Any = context.socket(zmq.DEALER)
        for socket, address in (
            (self._publish, settings.publish),
            (self._feed, settings.feed),
            (self._acks, settings.acks),
        ):
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(address)

    def run(self, inputs: int) -> None:
        for number in range(inputs):
            kind = self._random.randrange(4)
            if kind == 0:
                self._send(self._publish, self._published())
            elif kind == 1:
                self._send(self._feed, self._subscribed())
            else:
                self._send(self._acks, self._asked())
            if number % _DRAIN_EVERY == 0:
                self._drain()
        self.check()

    def _send(self, socket: Any, frames: list[bytes]) -> None:
        # Wait if the gateway's queue is full.
        socket.setsockopt(zmq.SNDTIMEO, 10_000)
        socket.send_multipart(frames or [b""])

    def _drain(self) -> None:
        while self._feed.poll(0):
            self._feed.recv_multipart()
        while self._acks.poll(0):
            answer = self._acks.recv_multipart()[-1]
            assert b"BROKER_BUG" not in answer, answer

    def check(self) -> None:
        """The gateway is alive, and answers a valid request."""
        assert self._gateway.is_alive(), "the gateway has died"
        asker = Asker(self._gateway.settings.acks)
        answer = asker.insist("publish", b"sound", origin="fuzz", id=f"{time.time_ns()}", topic="fuzz.sound")
        assert answer["type"] == "ack_published", answer
        asker.close()
        listener = Listener(self._gateway.settings.feed, b"fuzz.sound\0")
        listener.heartbeat()
        listener.close()

    def close(self) -> None:
        for socket in (self._publish, self._feed, self._acks):
            socket.close()

    # Random inputs.

    def _noise(self) -> bytes:
        return self._random.randbytes(self._random.choice([0, 1, 2, 5, 30, 300]))

    def _noises(self) -> list[bytes]:
        return [self._noise() for _ in range(self._random.randrange(6))]

    def _topic(self) -> bytes:
        return self._random.choice(_TOPICS).encode(errors="surrogatepass")

    def _published(self) -> list[bytes]:
        if self._random.random() < 0.5:
            return self._noises()
        return [self._topic() + self._random.choice([b"", b"\0", b" x"]), self._noise()]

    def _subscribed(self) -> list[bytes]:
        if self._random.random() < 0.5:
            return self._noises()
        return [self._random.choice([b"\0", b"\1", b"\2"]) + self._topic() + self._random.choice([b"", b"\0"])]

    def _asked(self) -> list[bytes]:
        if self._random.random() < 0.3:
            return self._noises()
        text = json.dumps(self._request()).encode()
        if self._random.random() < 0.2:
            cut = self._random.randrange(len(text))
            text = text[:cut] + self._noise() + text[cut + self._random.randrange(3) :]
        head = [b""] if self._random.random() < 0.8 else []
        return [*head, text, *([self._noise()] if self._random.random() < 0.5 else [])]

    def _request(self) -> Any:
        choose = self._random.choice
        fields: dict[str, Any] = {"type": choose(_WORDS)}
        for field, values in (
            ("subscriber", ["s1", "s2", *_WORDS]),
            ("topics", [[choose(_TOPICS)], _TOPICS, [], 5]),
            ("topic", _TOPICS),
            ("address", _ADDRESSES),
            ("offset", _NUMBERS),
            ("offsets", [_NUMBERS, [1, 2]]),
            ("upto", _NUMBERS),
            ("origin", ["o1", *_WORDS]),
            ("id", ["1", "2", *_WORDS]),
            ("number", _NUMBERS),
            ("start", ["new", "earliest", "x"]),
            ("more", [{"deep": [[[]]]}]),
        ):
            if self._random.random() < 0.5:
                fields[field] = choose(values)
        return fields if self._random.random() < 0.95 else [fields]


if __name__ == "__main__":
    main("tests.gateways.push.fuzz", __doc__ or "", GatewayProcess, Fuzz)
