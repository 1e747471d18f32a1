"""Changed, cut and oversized bytes for the stream listener, over TCP and a Unix socket.

Whatever arrives, the broker continues: clients put and get meanwhile, and each message is stored and delivered once.
A connection whose messages are framed correctly stays open, and each of them is answered. After that, as many inputs
are handshakes with TLS and tokens (handshake_fuzz.py).

python -m tests.net.stream_fuzz [--inputs 1000000] [--seed 1]
"""

from __future__ import annotations

import os
import random
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import oncemq
from oncemq.protocol.commands import Ack, Command, Get, Health, Numbered, Open, Read, Subscriptions, Topics, Void
from oncemq.protocol.frames import Frame, decode_response, encode_request
from oncemq.protocol.limits import REQUEST_FRAMES_MAX
from oncemq.protocol.replies import Refusal
from oncemq.protocol.stream import MAGIC, PROPERTIES_BYTES_MAX, encode_message, encode_opening
from oncemq.testing.broker_process import BrokerProcess
from tests.acceptance.processes import SMALL, resident_bytes
from tests.forking import ForkedBroker
from tests.fuzz_campaign import options_of, run, temporary_folder
from tests.net.handshake_fuzz import HandshakeFuzz
from tests.stream_peer import OPENING, StreamPeer

#: Connections that are open at the same time: those that are used in turns, and those that were left in the middle of
#: something.
_PEERS = 16
_LEFT_MAX = 40
#: A connection is replaced after this many inputs.
_INPUTS_PER_PEER = 40
#: Clients put and get once per this many inputs.
_HONEST_EVERY = 50
_TIMEOUT_S = 60.0
_TOPIC = "clients that behave"
_COMMANDS: tuple[Command, ...] = (
    Health(),
    Topics(),
    Subscriptions("fuzz"),
    Read("fuzz", 0, 1000),
    Get(7, "fuzz", 1, 0, 100),
    Ack(7, "fuzz", 1, 1),
    Numbered("fuzz", 1, 1, 1, Open("fuzz", "fuzz", 1)),
    Numbered("fuzz", 1, 2, 1, Void()),
)
_NUMBERS = (0, 1, 7, 8, 9, 2**16 - 1, 2**16, 2**20, 5 * 2**20, 2**31, 2**32 - 1)


class _Peer:
    """One connection that sends inputs."""

    def __init__(self, url: str, opening: bytes) -> None:
        self.peer = StreamPeer(url, opening)
        self.peer.socket.settimeout(_TIMEOUT_S)
        self.inputs = 0
        #: Complete messages that the broker must answer.
        self.asked = 0
        self.answered = 0
        #: It has sent something that breaks the rules.
        self.is_broken = False

    def send(self, data: bytes) -> None:
        self.inputs += 1
        try:
            self.peer.socket.sendall(data)
        except OSError:
            assert self.is_broken, "a connection was closed whose messages are framed correctly"

    def drain(self, codes: Counter[str]) -> None:
        """Receive the answers that are there."""
        try:
            while self.peer.has_message(0):
                self._check(self.peer.receive(), codes)
        except ConnectionError:
            assert self.is_broken, "a connection was closed whose messages are framed correctly"

    def finish(self, codes: Counter[str]) -> None:
        """Receive all answers, if nothing was broken."""
        while not self.is_broken and self.answered < self.asked:
            self._check(self.peer.receive(), codes)

    def _check(self, frames: list[Frame], codes: Counter[str]) -> None:
        self.answered += 1
        response, _ = decode_response(frames)
        for reply in response.replies:
            code = reply.code if isinstance(reply, Refusal) else "OK"
            assert code != "BROKER_BUG", reply
            codes[code] += 1


class Fuzz:
    def __init__(self, broker: BrokerProcess, unix_url: str, seed: int) -> None:
        self._broker = broker
        self._urls = (broker.url, unix_url)
        self._random = random.Random(seed)
        #: The refusals of the broker, and "OK".
        self.codes: Counter[str] = Counter()
        self._stored = 0
        self._opened = ExitStack()
        self._clients = [self._opened.enter_context(broker.connect(timeout_s=_TIMEOUT_S))]
        self._clients.append(self._opened.enter_context(_client_of(unix_url)))
        self._subscription = self._clients[0].subscribe(_TOPIC, "me")
        self._peers: list[_Peer | None] = [None] * _PEERS
        self._left: deque[_Peer] = deque()
        draw = self._random
        self._ways: tuple[tuple[Callable[[_Peer], None], int], ...] = (
            (lambda peer: self._ask(peer, self._request()), 30),
            (lambda peer: self._ask(peer, self._frames()), 20),
            (lambda peer: self._ask(peer, self._spoiled_request()), 20),
            (lambda peer: self._ask(peer, *(self._frames() for _ in range(draw.randrange(2, 30)))), 6),
            (self._ask_in_parts, 8),
            (self._send_broken, 14),
            (self._leave, 10),
        )

    def run(self, count: int) -> None:
        """Send inputs while clients put and get."""
        ways, weights = zip(*self._ways, strict=True)
        for number in range(count):
            slot = number % _PEERS
            peer = self._peers[slot]
            if peer is None:
                # An opening is an input, too.
                self._peers[slot] = self._connect()
            else:
                [way] = self._random.choices(ways, weights)
                way(peer)
                if peer.is_broken or peer.inputs >= _INPUTS_PER_PEER:
                    self._retire(peer)
                    self._peers[slot] = None
            if number % _HONEST_EVERY == 0:
                self.put_and_get()
        self.check()

    def put_and_get(self) -> None:
        """Both clients put a message, and one of them gets both."""
        for client in self._clients:
            assert client.put(_TOPIC, str(self._stored)).offset == self._stored
            self._stored += 1
        for offset in range(self._stored - len(self._clients), self._stored):
            message = self._subscription.get(timeout_s=_TIMEOUT_S)
            assert message is not None
            assert (message.offset, message.text) == (offset, str(offset))

    def check(self) -> None:
        """Everything was answered, and nothing else was stored or delivered."""
        for peer in filter(None, self._peers):
            peer.finish(self.codes)
        assert self._broker.is_running(), self._broker.log_tail()
        self.put_and_get()
        assert self._subscription.get(timeout_s=0) is None
        assert [topic.name for topic in self._clients[0].topics()] == [_TOPIC]
        assert "Traceback" not in self._broker.log_path.read_text(errors="replace"), self._broker.log_tail()

    @property
    def counters(self) -> dict[str, int]:
        """Those of the broker."""
        return dict(self._clients[0].health().counters)

    def close(self) -> None:
        for peer in (*filter(None, self._peers), *self._left):
            self._close(peer)
        self._opened.close()

    # Connections.

    def _connect(self) -> _Peer | None:
        draw = self._random
        url = draw.choice(self._urls)
        if draw.random() < 0.6:
            return _Peer(url, OPENING if draw.random() < 0.5 else encode_opening({"fuzz": draw.randrange(2**32)}))
        peer = _Peer(url, b"")
        peer.is_broken = True
        peer.send(self._opening())
        if draw.random() < 0.3:
            peer.send(draw.randbytes(draw.randrange(100)))
        self._retire(peer)
        return None

    def _opening(self) -> bytes:
        """An opening that is not correct."""
        draw = self._random
        size = draw.choice((0, 1, 100, PROPERTIES_BYTES_MAX, PROPERTIES_BYTES_MAX + 1, 2**32 - 1))
        version = draw.choice((1, 1, 1, 0, 2, 255))
        return draw.choice(
            (
                lambda: self._spoil(encode_opening({"fuzz": "x" * draw.randrange(50)})),
                lambda: OPENING[: draw.randrange(len(OPENING))],
                lambda: MAGIC + struct.pack("<BBI", version, draw.randrange(256), size) + draw.randbytes(size % 2000),
                lambda: MAGIC + struct.pack("<BBI", 1, 0, 40) + draw.randbytes(40),
                lambda: draw.randbytes(draw.randrange(1, 200)),
                lambda: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                lambda: b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48),
            )
        )()

    def _retire(self, peer: _Peer) -> None:
        peer.drain(self.codes)
        peer.finish(self.codes)
        if peer.is_broken and self._random.random() < 0.1:
            # It stays as it is for a while.
            self._left.append(peer)
            if len(self._left) <= _LEFT_MAX:
                return
            peer = self._left.popleft()
        self._close(peer)

    def _close(self, peer: _Peer) -> None:
        sock = peer.peer.socket
        with suppress(OSError):
            if sock.family != socket.AF_UNIX:
                # Otherwise the system would run out of ports.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif self._random.random() < 0.5:
                sock.shutdown(self._random.choice((socket.SHUT_WR, socket.SHUT_RDWR)))
        peer.peer.close()

    # Messages that are framed correctly.

    def _ask(self, peer: _Peer, *messages: list[Frame]) -> None:
        peer.asked += len(messages)
        peer.send(b"".join(b"".join(encode_message(frames)) for frames in messages))
        peer.drain(self.codes)

    def _ask_in_parts(self, peer: _Peer) -> None:
        data = b"".join(encode_message(self._frames()))
        peer.asked += 1
        cuts = sorted(self._random.randrange(len(data) + 1) for _ in range(self._random.randrange(1, 6)))
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            peer.send(data[begin:end])
        peer.drain(self.codes)

    def _request(self) -> list[Frame]:
        draw = self._random
        return encode_request(draw.randrange(2**63), draw.choices(_COMMANDS, k=draw.choice((1, 1, 1, 3))))

    def _spoiled_request(self) -> list[Frame]:
        header, *payloads = self._request()
        return [self._spoil(bytes(header)), *payloads]

    def _frames(self) -> list[Frame]:
        draw = self._random
        if draw.random() < 0.005:
            return [draw.randbytes(draw.choice((10, 30_000, 100_000, 300_000))) for _ in range(draw.randrange(1, 4))]
        if draw.random() < 0.01:
            return [b"x"] * draw.choice((100, REQUEST_FRAMES_MAX))
        return [draw.randbytes(draw.choice((0, 1, 5, 40, 300))) for _ in range(draw.randrange(1, 5))]

    # Bytes that break the rules.

    def _send_broken(self, peer: _Peer) -> None:
        peer.is_broken = True
        peer.send(self._broken())
        if self._random.random() < 0.3:
            # What follows must not be taken for a message, either.
            peer.send(b"".join(encode_message(self._request())))

    def _broken(self) -> bytes:
        draw = self._random
        message = b"".join(encode_message(draw.choice((self._frames(), [bytes(100_000)]))))
        return draw.choice(
            (
                lambda: self._spoil(message),
                lambda: self._with_number(message, 4 * draw.randrange(3)),
                lambda: struct.pack("<III", *draw.choices(_NUMBERS, k=3)) + draw.randbytes(draw.randrange(100)),
                lambda: struct.pack("<I", draw.choice(_NUMBERS)),
                lambda: b"".join(encode_message([b""] * (REQUEST_FRAMES_MAX + 1))),
                lambda: draw.randbytes(draw.randrange(1, 300)),
                lambda: encode_opening({}),
            )
        )()

    def _leave(self, peer: _Peer) -> None:
        """Send a part of a message."""
        data = b"".join(encode_message(self._frames()))
        peer.is_broken = True
        peer.send(data[: self._random.randrange(len(data))])
        if self._random.random() < 0.3:
            with suppress(OSError):
                peer.peer.socket.shutdown(self._random.choice((socket.SHUT_WR, socket.SHUT_RD, socket.SHUT_RDWR)))

    def _with_number(self, data: bytes, position: int) -> bytes:
        """Replace a number of a message."""
        return data[:position] + struct.pack("<I", self._random.choice(_NUMBERS)) + data[position + 4 :]

    def _spoil(self, data: bytes) -> bytes:
        """Change, insert and delete a few bytes."""
        draw = self._random
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(data) + 1)
            data = data[:at] + draw.randbytes(draw.randrange(3)) + data[at + draw.randrange(3) :]
        return data


def _client_of(url: str) -> oncemq.Client:
    client: oncemq.Client = oncemq.connect(url, timeout_s=_TIMEOUT_S)
    return client


def broker_in(folder: Path) -> tuple[BrokerProcess, str]:
    """Return a broker that is not started, and the address of its Unix socket."""
    url = f"oncemq+unix://{folder}/fuzz.sock"
    return ForkedBroker(folder / "data", *SMALL, f"--listen={url}", "--write-timeout-ms=1000"), url


def main() -> None:
    options = options_of(__doc__ or "")
    with temporary_folder() as folder:
        broker, url = broker_in(folder)
        with broker:
            run("tests.net.stream_fuzz", options, Fuzz(broker, url, options.seed), lambda: resident_bytes(broker.pid))
        fuzz = HandshakeFuzz(folder, options.seed)
        run("tests.net.stream_fuzz", options, fuzz, lambda: resident_bytes(os.getpid()))


if __name__ == "__main__":
    main()
