"""Invalid packets for a gateway in a process of its own: it continues to answer, and its memory does not grow.

mac_fuzz.py does the same with MACs.

python -m tests.gateways.udp.fuzz [--inputs 1000000] [--seed 1]
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from tests.fuzz_campaign import main
from tests.gateways.udp.rig import GatewayProcess, PlainClient

#: Small limits, which are reached soon.
SMALL = {"loopback_is_validated": False, "plain_subscriptions_max": 50, "peers_max": 50}
#: Packets between two requests that must be answered.
_ROUND = 100
_TOPICS = (b"a", b"b", b'"c d"', b"e")


class Packets:
    """Random bytes, packets that are almost valid, and valid ones: in any order, some of them twice."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._last = b"4 list"
        #: The tokens of the sockets: some addresses are validated.
        self.tokens = [0]

    def next(self) -> bytes:
        kind = self._chance.randrange(8)
        if kind == 0:
            packet = self._chance.randbytes(self._chance.choice((0, 1, 9, 10, 40, 1500)))
        elif kind < 4:
            packet = self._plain()
        elif kind < 7:
            packet = self._extended()
        else:
            packet = self._mutate(self._last)
        self._last = packet
        return packet

    def _plain(self) -> bytes:
        chance = self._chance
        topic = chance.choice((*_TOPICS, *_TOPICS, *_TOPICS, b"", b'"', b"\xff", b"x" * 300, b"*"))
        content = chance.randbytes(chance.choice((0, 1, 20, 2000)))
        code = chance.choice((b"0", b"1", b"1", b"2", b"3", b"4", b"5"))
        return b" ".join([code, topic, content][: chance.choice((1, 2, 2, 3, 3, 3))])

    def _extended(self) -> bytes:
        chance = self._chance
        packet = extended(chance, chance.choice(self.tokens), chance.randrange(20), (0, 0, *range(1, 30), 2**63))
        return packet if chance.random() < 0.7 else self._mutate(packet)

    def _mutate(self, packet: bytes) -> bytes:
        return mutate(self._chance, packet)


def extended(chance: random.Random, token: int, nonce: int, epochs: Sequence[int], last_number: int = 0) -> bytes:
    """Return an extended packet, with one of these epochs. Most of them are valid."""
    kind = chance.choice((1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 0x82))
    number = chance.choice((0, *(last_number + next for next in (1, 1, 2, 2, 3, 3, 10)), 2**63 - 1, 2**64 - 1))
    epoch = chance.choice(epochs)
    topic = chance.choice((b"a", b"b", b"zz", b"", b"#"))
    role, position = chance.choice((0, 1, 1, 2, 2, 2, 3)), chance.choice((-1, -2, 0, 5, 2**62))
    hello = struct.pack(">BQQQq", role, nonce, epoch, chance.choice((0, 0, 1)), position)
    bodies = {
        1: hello + b"\x01n" + bytes([len(topic)]) + topic,
        2: struct.pack(">QQBB", epoch, number, chance.randrange(4), len(topic)) + topic + b"content",
        3: struct.pack(">QQQ", epoch, number, chance.getrandbits(64)),
        4: struct.pack(">QB", epoch, chance.randrange(2)),
    }
    return struct.pack(">BBQ", 0xF1, kind, token) + bodies.get(kind, chance.randbytes(chance.randrange(30)))


def mutate(chance: random.Random, packet: bytes) -> bytes:
    """Return a packet with a few changes."""
    data = bytearray(packet)
    for _ in range(chance.randrange(1, 4)):
        if not data or chance.random() < 0.3:
            data = data[: chance.randrange(len(data) + 1)] + chance.randbytes(chance.randrange(4))
        else:
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


class Fuzz:
    def __init__(self, gateway: GatewayProcess, seed: int) -> None:
        self._gateway = gateway
        self._packets = Packets(seed)
        self._senders = [PlainClient(gateway.address) for _ in range(4)]
        self._asker = PlainClient(gateway.address)
        self._asker.ask("1 a")
        for sender in self._senders[:2]:
            self._packets.tokens.append(self._prove(sender))

    @staticmethod
    def _prove(sender: PlainClient) -> int:
        sender.send(struct.pack(">BBQBQQQqBB", 0xF1, 1, 0, 0, 5, 0, 0, -1, 0, 0))
        [token] = struct.unpack(">Q", sender.receive()[10:])
        return int(token)

    def run(self, count: int) -> None:
        """Raises TimeoutError if the gateway does not answer any more."""
        for number in range(count):
            self._senders[number % len(self._senders)].send(self._packets.next())
            if number % _ROUND == _ROUND - 1:
                # After the last possible name.
                assert self._asker.insist("4 list \U0010ffff") == "[]"
                self._forget_answers()

    def _forget_answers(self) -> None:
        for sender in self._senders:
            sender.socket.setblocking(False)
            try:
                while sender.socket.recv(65_536) is not None:
                    pass
            except OSError:
                sender.socket.settimeout(30)

    def close(self) -> None:
        for client in (*self._senders, self._asker):
            client.close()


if __name__ == "__main__":
    main("tests.gateways.udp.fuzz", __doc__ or "", lambda url: GatewayProcess([url], **SMALL), Fuzz)
