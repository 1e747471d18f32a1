"""Changed, cut and made-up handshakes for a stream listener with a gate: openings over a Unix socket, and TLS over TCP.

Whatever arrives, only those with a valid token are admitted, each of them leaves once, and clients with a token are
served meanwhile. `python -m tests.net.stream_fuzz` runs it too.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from oncemq.net.tls import client_context, server_context
from oncemq.protocol.stream import MAGIC, StreamReader, encode_message, encode_opening
from tests.net.stream_rig import LIMITS, Rig, received
from tests.net.tls_peer import TlsPeer
from tests.secure_broker import TOKENS, FakeGate, make_keys
from tests.stream_peer import StreamPeer, connected

_TOKEN = "omq-kitchen"
_OPENING = encode_opening({"auth": {"token": _TOKEN}})
_REQUEST = b"".join(encode_message([b"not for the broker"]))
#: Connections that were left in the middle of their handshake.
_LEFT_MAX = 40
_HONEST_EVERY = 50
_CHECK_EVERY = 1000
_HELLOS = 20
_DEADLINE_S = 60.0
_DROP_AT_CLOSE = struct.pack("ii", 1, 0)
_RECORD_TYPES = (0, 20, 21, 22, 23, 24, 128, 255)
_LENGTHS = (0, 1, 2, 4, 5, 16_384, 16_385, 16_640, 65_535)


class HandshakeFuzz:
    def __init__(self, folder: Path, seed: int) -> None:
        self._random = draw = random.Random(seed)
        keys = make_keys(folder / "keys")
        self._trust = client_context(str(keys / "ca.pem"))
        self._gate = FakeGate()
        self._rig = Rig(msgspec.structs.replace(LIMITS, connections_max=400), gate=self._gate)
        self._rig.counters._log_every_s = float("inf")
        self._rig.listener.use_tls(server_context(keys))
        self._tls_url = self._rig.listen()
        self._unix_url = self._rig.listen(f"oncemq+unix://{folder}/fuzz.sock")
        #: What the listener has answered, by code.
        self.codes: Counter[str] = Counter()
        self._left: deque[socket.socket] = deque()
        self._hellos = [self._hello() for _ in range(_HELLOS)]
        self._unix_client = self._rig.peer(self._unix_url, _OPENING)
        self._unix_name = self._rig.name()
        self._tls_client = TlsPeer(self._rig, self._tls_url, self._trust)
        self._tls_client.open(_OPENING)
        self._tls_name = self._rig.name()
        self._ways: tuple[tuple[Callable[[], None], int], ...] = (
            (lambda: self._open(self._unix_url, self._properties()), 25),
            (lambda: self._send(self._unix_url, self._broken_opening()), 15),
            (lambda: self._send(self._tls_url, self._broken_hello()), 25),
            (lambda: self._send(self._tls_url, self._records()), 15),
            (lambda: self._send(self._tls_url, draw.choice((_OPENING, self._broken_opening()))), 5),
            (self._open_encrypted, 10),
            (self._break_encrypted, 5),
        )

    def run(self, count: int) -> None:
        ways, weights = zip(*self._ways, strict=True)
        for number in range(count):
            [way] = self._random.choices(ways, weights)
            way()
            if number % _HONEST_EVERY == 0:
                self._ask()
            if number % _CHECK_EVERY == 0:
                self.check()
        self.check()

    def check(self) -> None:
        """Nothing is left of those that have gone, and nobody was admitted without a token."""
        while self._left:
            self._close(self._left.popleft())
        rig = self._rig
        rig.serve_until(lambda: len(rig.listener) == 2)
        self._ask()
        assert +self._gate.inside == {"kitchen/one": 2}
        assert not rig.listener._unopened
        assert rig.listener.buffered_bytes == 0
        assert not rig.listener.waiting

    def _ask(self) -> None:
        """Both clients are served."""
        rig = self._rig
        # A turn that was cut short by a limit, too.
        rig.system.at_s += 2.0
        for name, client in ((self._unix_name, self._unix_client), (self._tls_name, self._tls_client)):
            rig.serve_all()
            rig.arrived.clear()
            client.send([b"request"])
            rig.serve_until(lambda name=name: (name, [b"request"]) in rig.arrived)  # type: ignore[misc]
            rig.listener.send(name, [b"reply"])
            reply = received(client, rig, 1)[0] if isinstance(client, StreamPeer) else client.receive()
            assert reply == [b"reply"]

    def close(self) -> None:
        while self._left:
            self._close(self._left.popleft())
        self._tls_client.close()
        self._rig.close()

    # Connections.

    def _send(self, url: str, data: bytes) -> None:
        """Send something that is no handshake, in parts, and leave in some way."""
        draw = self._random
        sock = connected(url)
        sock.setblocking(False)
        cuts = sorted(draw.randrange(len(data) + 1) for _ in range(draw.choice((0, 0, 1, 3))))
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            with contextlib.suppress(OSError):
                sock.send(data[begin:end])
            self._rig.serve(0)
        self._rig.serve(0)
        self._leave(sock)

    def _leave(self, sock: socket.socket) -> None:
        draw = self._random
        way = draw.random()
        if way < 0.2:
            with contextlib.suppress(OSError):
                sock.shutdown(draw.choice((socket.SHUT_WR, socket.SHUT_RD, socket.SHUT_RDWR)))
        if way < 0.3:
            self._left.append(sock)
            if len(self._left) <= _LEFT_MAX:
                return
            sock = self._left.popleft()
        self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if sock.family != socket.AF_UNIX and self._random.random() < 0.8:
                # Otherwise the system would run out of ports.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP_AT_CLOSE)
        sock.close()

    # Openings that are framed correctly.

    def _properties(self) -> dict[str, Any]:
        draw = self._random
        token = draw.choice((*TOKENS, "", "omq-", _TOKEN + " ", _TOKEN.upper(), "x" * draw.choice((1, 300, 60_000))))
        auth: Any = draw.choice(
            (
                {"token": token},
                {"token": token},
                {"token": token, "more": [1, {"nested": None}]},
                {"token": draw.choice((7, None, 1.5, [token], {"token": token}, token.encode(), True))},
                {"Token": token},
                draw.choice((7, None, [], [["token", token]], token, token.encode(), False)),
                {},
            )
        )
        properties = {"auth": auth} if draw.random() < 0.9 else {}
        if draw.random() < 0.2:
            properties |= {f"other {number}": draw.randrange(2**64) for number in range(draw.choice((1, 50)))}
        return properties

    def _expected(self, properties: dict[str, Any]) -> str:
        """What the listener must say."""
        auth = properties.get("auth", {})
        if not isinstance(auth, dict) or not isinstance(auth.get("token", ""), str):
            return "MALFORMED"
        return "OK" if auth.get("token") in TOKENS else "UNAUTHENTICATED"

    def _open(self, url: str, properties: dict[str, Any]) -> None:
        data = encode_opening(properties) + _REQUEST
        peer = StreamPeer(url, data)
        self._check_answer(properties, peer.socket.recv)
        self._leave(peer.socket)

    def _check_answer(self, properties: dict[str, Any], receive: Callable[[int], bytes]) -> None:
        reader = StreamReader(2**20, 10, as_bytes=True)
        self._rig.arrived.clear()
        while reader.properties is None:
            self._rig.serve_all()
            data = receive(65536)
            assert data, "the listener has not answered an opening"
            reader.feed(data)
        code = reader.properties["error"][0] if "error" in reader.properties else "OK"
        self.codes[code] += 1
        assert code == self._expected(properties), (code, properties)
        assert bool(self._rig.arrived) == (code == "OK"), "what was sent behind the opening"

    def _broken_opening(self) -> bytes:
        draw = self._random
        good = encode_opening(self._properties())
        return draw.choice(
            (
                lambda: self._spoil(good[:2000]),
                lambda: good[: draw.randrange(min(len(good), 2000))],
                lambda: MAGIC + struct.pack("<BBI", 1, 0, draw.choice((0, 3, 2**16, 2**16 + 1, 2**31))) + good[12:500],
                lambda: draw.randbytes(draw.randrange(1, 200)),
            )
        )()

    # TLS.

    def _hello(self) -> bytes:
        sent = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self._trust.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
        return sent.read()

    def _broken_hello(self) -> bytes:
        draw = self._random
        hello = draw.choice(self._hellos)
        return draw.choice(
            (
                lambda: self._spoil(hello),
                lambda: hello[: draw.randrange(len(hello))],
                lambda: hello + self._records(),
                lambda: hello + hello,
                lambda: hello + draw.randbytes(draw.randrange(1, 100)),
                lambda: self._fragmented(hello),
            )
        )()

    def _fragmented(self, hello: bytes) -> bytes:
        """The same handshake in records of one byte each, or few."""
        body, size = hello[5:], self._random.choice((1, 2, 50))
        parts = [body[begin : begin + size] for begin in range(0, len(body), size)]
        return b"".join(struct.pack(">BHH", 22, 0x0301, len(part)) + part for part in parts)

    def _records(self) -> bytes:
        draw = self._random
        records = []
        for _ in range(draw.choice((1, 1, 2, 40))):
            body = draw.randbytes(draw.choice((0, 1, 2, 2, 40, 300)))
            length = len(body) if draw.random() < 0.7 else draw.choice(_LENGTHS)
            version = draw.choice((0x0301, 0x0303, 0x0304, 0x0300, 0x0002, 0xFFFF))
            records.append(struct.pack(">BHH", draw.choice(_RECORD_TYPES), version, length) + body)
        return b"".join(records)

    def _encrypted(self) -> _Encrypted:
        return _Encrypted(self._rig, self._tls_url, self._trust)

    def _open_encrypted(self) -> None:
        properties = self._properties()
        peer = self._encrypted()
        peer.tls.write(encode_opening(properties) + _REQUEST)
        peer.send()
        self._check_answer(properties, peer.receive)
        self._leave(peer.socket)

    def _break_encrypted(self) -> None:
        """Complete the handshake, and then send nonsense: inside TLS, or instead of it."""
        draw = self._random
        peer = self._encrypted()
        if draw.random() < 0.5:
            peer.tls.write(self._broken_opening())
            data = peer.sent.read()
        else:
            peer.tls.write(_OPENING + _REQUEST)
            data = draw.choice((self._spoil, lambda data: data + self._records()))(peer.sent.read())
        with contextlib.suppress(OSError):
            peer.socket.send(data)
        self._rig.serve(0)
        self._leave(peer.socket)

    def _spoil(self, data: bytes) -> bytes:
        """Change, insert and delete a few bytes."""
        draw = self._random
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(data) + 1)
            data = data[:at] + draw.randbytes(draw.randrange(3)) + data[at + draw.randrange(3) :]
        return data


class _Encrypted:
    """A connection whose TLS handshake is complete."""

    def __init__(self, rig: Rig, url: str, trust: ssl.SSLContext) -> None:
        self._rig = rig
        self.socket = connected(url)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.received, self.sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = trust.wrap_bio(self.received, self.sent, server_hostname="localhost")
        until_s = time.monotonic() + _DEADLINE_S
        while True:
            assert time.monotonic() < until_s, "the listener does not complete a handshake"
            try:
                self.tls.do_handshake()
                self.send()
                return
            except ssl.SSLWantReadError:
                self.send()
            rig.serve(0)
            with contextlib.suppress(BlockingIOError):
                self.received.write(self.socket.recv(65536))

    def send(self) -> None:
        data = self.sent.read()
        if data:
            assert self.socket.send(data) == len(data)

    def receive(self, size: int) -> bytes:
        until_s = time.monotonic() + _DEADLINE_S
        while time.monotonic() < until_s:
            try:
                return self.tls.read(size)
            except ssl.SSLWantReadError:
                self._rig.serve_all()
            with contextlib.suppress(BlockingIOError):
                data = self.socket.recv(65536)
                if not data:
                    return b""
                self.received.write(data)
        raise TimeoutError
