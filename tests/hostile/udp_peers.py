"""What hostile peers do to the datagram gateway: plain functions, each of which returns after a bounded amount."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

Address = tuple[str, int]

_MAGIC = 0xF1
_HELLO, _PUT = 1, 2
_CHALLENGE, _WELCOME = 0x81, 0x82
_PUBLISHER, _SUBSCRIBER = 1, 2
_EARLIEST = -2
_ANSWER_S = 1.0


class HostilePeer:
    """One socket that validates its address, and then says what it wants."""

    def __init__(self, gateway: Address) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(gateway)
        self.socket.settimeout(_ANSWER_S)
        self.token = 0

    def send(self, kind: int, body: bytes) -> None:
        with suppress(OSError):
            self.socket.send(struct.pack(">BBQ", _MAGIC, kind, self.token) + body)

    def hello(self, role: int, name: str, topic: str = "") -> int:
        """Say hello. Returns the epoch; 0: it was refused, or there was no answer."""
        fields = struct.pack(">BQQQq", role, random.getrandbits(63), 0, 0, _EARLIEST)
        body = fields + bytes([len(name)]) + name.encode() + bytes([len(topic)]) + topic.encode()
        self.send(_HELLO, body)
        with suppress(OSError):
            for _ in range(100):
                packet = self.socket.recv(65_536)
                if packet[1] == _CHALLENGE:
                    [self.token] = struct.unpack(">Q", packet[10:18])
                    self.send(_HELLO, body)
                elif packet[1] == _WELCOME:
                    [epoch] = struct.unpack(">Q", packet[10:18])
                    return int(epoch)
                elif packet[1] in (0x84, 0x85):
                    return 0
        return 0


@contextmanager
def _peers(gateway: Address, count: int) -> Iterator[list[HostilePeer]]:
    with ExitStack() as opened:
        peers = [HostilePeer(gateway) for _ in range(count)]
        for peer in peers:
            opened.callback(peer.socket.close)
        yield peers


def flood(gateway: Address, sockets: int, packets: int, size: int = 60_000) -> None:
    """Publish large plain messages from many ports, as fast as possible."""
    packet = b"1 flooded " + bytes(size)
    with _peers(gateway, sockets) as peers:
        for number in range(packets):
            with suppress(OSError):
                peers[number % sockets].socket.send(packet)


def claim_names(gateway: Address, names: int) -> int:
    """Be very many publishers with one socket. Returns how many were accepted."""
    with _peers(gateway, 1) as [peer]:
        return sum(bool(peer.hello(_PUBLISHER, f"claimed {number}")) for number in range(names))


def withhold_first_put(gateway: Address, publishers: int, puts: int, size: int = 60_000) -> None:
    """Send large puts that wait for one which never comes."""
    with _peers(gateway, publishers) as peers:
        for index, peer in enumerate(peers):
            epoch = peer.hello(_PUBLISHER, f"withholding {index}")
            for number in range(2, 2 + puts):
                peer.send(_PUT, struct.pack(">QQBB", epoch, number, 1, 4) + b"held" + bytes(size))


def ack_nothing(gateway: Address, topic: str, subscribers: int, hold_s: float) -> int:
    """Subscribe from the beginning, and never ack. Returns how many were accepted."""
    with _peers(gateway, subscribers) as peers:
        accepted = sum(bool(peer.hello(_SUBSCRIBER, f"mute {n}", topic)) for n, peer in enumerate(peers))
        time.sleep(hold_s)
    return accepted


def subscribe_from_one_port(gateway: Address, topics: int) -> int:
    """Subscribe one address to very many topics with plain packets. Returns how many subscriptions were accepted."""
    accepted = 0
    with _peers(gateway, 1) as [peer]:
        for number in range(topics):
            with suppress(OSError):
                peer.socket.send(b"1 hostile-%d" % number)
                peer.socket.recv(65_536)
                peer.socket.send(b"2 hostile-%d" % number)
                accepted += peer.socket.recv(65_536).startswith(b"Subscribed")
    return accepted
