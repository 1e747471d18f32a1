"""Changed, cut and made-up handshakes for a ZeroMQ listener with CURVE and a gate.

Whatever arrives, only those with a known key are admitted, each of them leaves, and a client with a key is served
meanwhile.

python -m tests.net.curve_fuzz [--inputs 1000000] [--seed 1]
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from tests.acceptance.processes import resident_bytes
from tests.broker.test_zeromq_logins import Rig
from tests.fuzz_campaign import options_of, run
from tests.secured_broker import client_keys, use_keys

_HONEST = "alice/curve=1"
#: Its handshakes are changed on their way, or not.
_CHANGED = "bob/curve=2"
_REQUEST = b"a request over a changed connection"
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_GREETING = _SIGNATURE + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)
_MECHANISMS = (b"NULL", b"PLAIN", b"CURVE", b"GSSAPI", b"", b"curve", b"\xff" * 20)
_COMMANDS = (
    b"\x05HELLO",
    b"\x08INITIATE",
    b"\x07MESSAGE",
    b"\x05READY",
    b"\x05ERROR",
    b"\x09SUBSCRIBE",
    b"\0",
    b"\xff",
)
_SIZES = (0, 1, 2, 194, 199, 200, 201, 255, 256, 257, 400, 5000)
#: Connections that were left in the middle of their handshake.
_LEFT_MAX = 40
_HONEST_EVERY = 50
_CHECK_EVERY = 500
_HELLOS = 10
_CONNECT_S = 10.0


class CurveFuzz:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.rig = Rig()
        self.rig.network.counters._log_every_s = float("inf")
        self._place = socket_place(self.rig.urls[0])
        self._left: deque[socket.socket] = deque()
        self._hellos = [self._record_hello() for _ in range(_HELLOS)]
        self._client = self.rig.dealer(_HONEST)
        self._asked = 0
        #: How many real handshakes were changed on their way.
        self.changed = 0
        self._ways: tuple[tuple[Callable[[], None], int], ...] = (
            (lambda: self._send(self._broken(self._greeting())), 25),
            (lambda: self._send(_GREETING + self._commands()), 30),
            (lambda: self._send(_GREETING + self._hello() + self._commands()), 30),
            (lambda: self._send(self._random.randbytes(self._random.choice(_SIZES))), 10),
            (self._change_handshake, 5),
        )

    def run(self, count: int) -> None:
        ways, weights = zip(*self._ways, strict=True)
        for number in range(count):
            [way] = self._random.choices(ways, weights)
            way()
            self.rig.network.take(0)
            if number % _HONEST_EVERY == 0:
                self._ask()
            if number % _CHECK_EVERY == 0:
                self.check()
        self.check()

    def check(self) -> None:
        """Nothing is left of those that have gone, and nobody was admitted without a key."""
        while self._left:
            self._left.popleft().close()
        rig = self.rig
        self._ask()
        rig.take_until(lambda: len(rig.listener._listener.connections) == 1, "all others have gone")
        rig.take_until(lambda: rig.gate.connected == [_HONEST], "all others have left")

    def _ask(self) -> None:
        """The client is served, and nothing came from anybody else."""
        self._asked += 1
        peer = self.rig.request(self._client, b"%d" % self._asked)
        assert self.rig.network.caller_of(peer) == _HONEST
        others = [(self.rig.network.caller_of(found), frames) for found, frames in self.rig.arrived if found != peer]
        assert all(each == (_CHANGED, [_REQUEST]) for each in others)
        self.rig.arrived.clear()
        self.rig.network.send(peer, [b"reply"])
        assert self._client.poll(_CONNECT_S * 1000)
        assert self._client.recv() == b"reply"

    def close(self) -> None:
        while self._left:
            self._left.popleft().close()
        self.rig.close()

    # Connections.

    def _send(self, data: bytes) -> None:
        """Send something in parts, and leave, or stay for a while."""
        draw = self._random
        peer = socket.create_connection(self._place, _CONNECT_S)
        with contextlib.suppress(OSError):
            cut = draw.randrange(len(data) + 1)
            for part in (data[:cut], data[cut:]):
                peer.sendall(part)
            if draw.random() < 0.3:
                peer.settimeout(0.005)
                peer.recv(4096)
        if draw.random() < 0.5:
            peer.close()
            return
        self._left.append(peer)
        if len(self._left) > _LEFT_MAX:
            self._left.popleft().close()

    def _record_hello(self) -> bytes:
        """Return the first command of a real client."""
        with socket.create_server(("127.0.0.1", 0)) as server, self._dealer(server.getsockname()) as dealer:
            assert dealer
            peer, _ = server.accept()
            with peer:
                peer.sendall(_GREETING)
                received = b""
                while len(received) < 64 + 202:
                    received += peer.recv(4096)
                return received[64:]

    @contextlib.contextmanager
    def _dealer(self, place: tuple[str, int]) -> Any:
        context: Any = zmq.Context.instance()
        dealer = context.socket(zmq.DEALER)
        dealer.linger = 0
        use_keys(dealer, self._random.choice((self.rig.keys[_CHANGED], client_keys(self.rig.server_keys))))
        dealer.connect(f"tcp://{place[0]}:{place[1]}")
        dealer.send(_REQUEST)
        yield dealer
        dealer.close()

    def _change_handshake(self) -> None:
        """Pass the bytes of a real client on, with a change at some place."""
        self.changed += 1
        draw = self._random
        at = draw.randrange(64, 800)
        with socket.create_server(("127.0.0.1", 0)) as server, self._dealer(server.getsockname()):
            client, _ = server.accept()
            with client, socket.create_connection(self._place, _CONNECT_S) as listener:
                passed = 0
                for _ in range(20):
                    self.rig.network.take(0)
                    readable, _, _ = select.select([client, listener], [], [], 0.002)
                    for source in readable:
                        try:
                            data = source.recv(4096)
                            if source is client:
                                begin, passed = passed, passed + len(data)
                                data = _changed_at(data, at - begin, draw)
                            (listener if source is client else client).sendall(data)
                        except OSError:
                            return

    # Bytes.

    def _greeting(self) -> bytes:
        draw = self._random
        version = draw.choice((b"\x03\0", b"\x03\x01", b"\x02", b"\x01", b"\0", b"\x04\0", draw.randbytes(2)))
        rest = version + draw.choice(_MECHANISMS).ljust(20, b"\0") + draw.choice((b"\0", b"\x01")) + bytes(31)
        return _SIGNATURE + rest + self._commands()

    def _commands(self) -> bytes:
        draw = self._random
        commands = b""
        for _ in range(draw.randrange(4)):
            body = draw.choice(_COMMANDS) + draw.randbytes(draw.choice(_SIZES))
            flags = draw.choice((4, 6, 0, 1, 2, 255))
            size = len(body) if draw.random() < 0.8 else draw.choice((0, 1, 2**31, 2**63, 2**64 - 1))
            is_long = flags & 2 or size > 255
            commands += bytes([flags | 2 if is_long else flags]) + size.to_bytes(8 if is_long else 1, "big") + body
        return commands

    def _hello(self) -> bytes:
        hello = self._random.choice(self._hellos)
        return hello if self._random.random() < 0.7 else self._broken(hello)

    def _broken(self, data: bytes) -> bytes:
        draw = self._random
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(data) + 1)
            data = draw.choice(
                (data[:at], data[:at] + draw.randbytes(3) + data[at:], data[:at] + draw.randbytes(1) + data[at + 1 :])
            )
        return data


def _changed_at(data: bytes, at: int, draw: random.Random) -> bytes:
    """Return bytes with a change at this place, if it is one of them."""
    if not 0 <= at < len(data):
        return data
    changed = bytes([data[at] ^ draw.randrange(1, 256)])
    return draw.choice(
        (data[:at] + changed + data[at + 1 :], data[:at] + data[at + 1 :], data[:at] + changed + data[at:])
    )


def socket_place(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    options = options_of(__doc__ or "")
    run("tests.net.curve_fuzz", options, CurveFuzz(options.seed), lambda: resident_bytes(os.getpid()))
