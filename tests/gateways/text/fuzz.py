"""Random requests, valid and invalid: every one is answered, and the gateway continues.

python -m tests.gateways.text.fuzz [--inputs 1000000] [--seed 1]
"""

from __future__ import annotations

import random
from collections import Counter, deque
from contextlib import ExitStack
from typing import Any

from oncemq.protocol import errors
from tests.fuzz_campaign import main
from tests.gateways.text.rig import GatewayProcess, dealing

_PEERS = 16
_WINDOW = 32
#: After this many requests all subscriptions are deleted, and with them all messages: the gateway must not grow.
_CLEAR_COUNT = 10_000
_NAMES = ("orders", "a", '"Cooking Recipes"', "'x y'", "ü", '"', "#", "x" * 300, "")
_WORDS = (*_NAMES, "sub", "unsub", "get", "put", "earliest", "new", "\n", "\r\n", "\x00", "1", "2", "7f7f", " ")


class Fuzz:
    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._random = random.Random(seed)
        self.codes: Counter[str] = Counter()

    def close(self) -> None:
        """Nothing stays open between runs."""

    def run(self, count: int) -> None:
        """Raises zmq.Again if a request was not answered."""
        with ExitStack() as opened:
            dealers = deque((opened.enter_context(dealing(self._url)), deque[bool]()) for _ in range(_PEERS))
            for number in range(count):
                dealers.rotate()
                dealer, in_flight = dealers[0]
                frames = self._clearing(number) or self._frames()
                dealer.send_multipart(frames)
                in_flight.append(len(frames) > 1 and not frames[0])
                if len(in_flight) == _WINDOW:
                    self._receive(dealer, in_flight.popleft())
            for dealer, in_flight in dealers:
                for has_empty_frame in in_flight:
                    self._receive(dealer, has_empty_frame)

    def _receive(self, dealer: Any, has_empty_frame: bool) -> None:
        *before, reply = dealer.recv_multipart()
        assert before == [b""] * has_empty_frame, "replies are in the order of requests"
        word, _, rest = reply.partition(b" ")
        code = rest.split(b" ")[0].decode() if word == b"ERROR" else "OK"
        assert word in (b"OK", b"ERROR"), reply
        assert code == "OK" or code in errors.BY_CODE, reply
        assert code != "BROKER_BUG", reply
        self.codes[code] += 1

    def _clearing(self, number: int) -> list[bytes] | None:
        topic, subscriber = divmod(number % _CLEAR_COUNT, len(_NAMES))
        if topic >= len(_NAMES):
            return None
        return [f"unsub {_NAMES[topic]} {_NAMES[subscriber]}".encode()]

    def _frames(self) -> list[bytes]:
        draw = self._random
        body = draw.choice((self._line, self._lines, self._words, self._bytes))()
        if draw.random() < 0.2:
            body = self._spoil(body)
        shape = draw.random()
        if shape < 0.5:
            return [b"", body]
        return [body] if shape < 0.95 else [body, *(draw.randbytes(1 + draw.randrange(3)) for _ in range(3))]

    def _line(self) -> bytes:
        draw = self._random
        verb = draw.choice(("sub", "unsub", "get", "get", "put"))
        return f"{verb} {draw.choice(_NAMES)} {draw.choice(_NAMES)}".encode()

    def _lines(self) -> bytes:
        draw = self._random
        verb = draw.choice(("sub", "unsub", "get", "get", "put"))
        lines = (str(draw.randrange(200)), verb, draw.choice(_NAMES), draw.choice(_NAMES), draw.choice(_NAMES))
        return "\n".join(lines[: draw.choice((4, 5))]).encode()

    def _words(self) -> bytes:
        draw = self._random
        return draw.choice((" ", "\n", "")).join(draw.choices(_WORDS, k=draw.randrange(8))).encode()

    def _bytes(self) -> bytes:
        return self._random.randbytes(self._random.randrange(40))

    def _spoil(self, body: bytes) -> bytes:
        draw = self._random
        at = draw.randrange(len(body) + 1)
        return body[:at] + draw.randbytes(draw.randrange(3)) + body[at + draw.randrange(3) :]


if __name__ == "__main__":
    main(
        "tests.gateways.text.fuzz",
        __doc__ or "",
        lambda url: GatewayProcess([url]),
        lambda gateway, seed: Fuzz(gateway.url, seed),
    )
