"""Packets with MACs for a gateway in a process of its own: wrong MACs, recorded packets, wrong token ids, and genuine
packets with any content. The gateway continues to serve, its memory does not grow, and nobody changes what belongs to
others.

python -m tests.gateways.udp.mac_fuzz [--inputs 1000000] [--seed 1]
"""

from __future__ import annotations

import random
import socket
import struct
from collections import deque
from contextlib import ExitStack, suppress

from examples.datagrams.peers import CHALLENGE, HELLO, WELCOME, Macs, Publisher, find_end

from oncemq.auth.tokens import new_token
from tests import fuzz_campaign
from tests.gateways.udp.fuzz import SMALL, extended, mutate
from tests.gateways.udp.rig import Address, GatewayProcess
from tests.gateways.udp.users import BrokerWithUsers

_ROUND = 100
_RECORDED = 200


class Sender:
    """A user that sends what it likes, from one socket."""

    def __init__(self, gateway: Address, token: str, chance: random.Random) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(gateway)
        self.socket.setblocking(False)
        self.macs = Macs(token)
        self._chance = chance
        self._nonce = chance.getrandbits(64)
        #: The tokens of the last challenges, and that of the session.
        self._offered, self._token = deque([0], maxlen=20), 0
        self._epochs = [0]
        self._last_number = 0

    def packet(self) -> bytes:
        """Return a packet with a MAC that is right for the session, if there is one."""
        chance = self._chance
        if chance.random() < 0.01:
            self._nonce, self._epochs = chance.getrandbits(64), [0]
        packet = extended(chance, 0, self._nonce, self._epochs, self._last_number)
        token = self._offered[-1] if packet[1] == HELLO else self._token
        body = packet[10:] if chance.random() < 0.8 else mutate(chance, packet[10:])
        return self.macs.seal(packet[:2] + struct.pack(">Q", token) + body, token, self._nonce)

    def read_answers(self) -> list[bytes]:
        """Return the answers, and use their tokens and epochs."""
        answers = []
        with suppress(OSError):
            while True:
                answers.append(self.socket.recv(65_536))
        for answer in answers:
            [echo, number] = struct.unpack(">QQ", answer[2:18])
            if answer[1] == CHALLENGE and echo == self._nonce:
                self._offered.append(number)
            elif answer[1] == WELCOME and number:
                for token in self._offered:
                    if self.macs.open(answer, token, self._nonce):
                        self._token, self._epochs = token, [0, number, number, number]
                        [self._last_number] = struct.unpack(">Q", answer[26:34])
        return answers


class Recording(Publisher):
    """A publisher whose packets others have recorded."""

    recorded: list[bytes]

    def send(self, kind: int, body: bytes) -> None:
        token = (self._offered or self.token) if kind == HELLO else self.token
        assert self.macs is not None
        packet = self.macs.seal(struct.pack(">BBQ", 0xF1, kind, token) + body, token, self.nonce)
        self.recorded.append(packet)
        self.socket.send(packet)


class MacFuzz:
    def __init__(self, gateway: GatewayProcess, users: BrokerWithUsers, seed: int) -> None:
        self._gateway = gateway.address
        self._users = users
        self._chance = chance = random.Random(seed)
        tokens = (users.token("alice"), users.token("reader"), users.token("alice"), new_token())
        self._senders = [Sender(gateway.address, token, chance) for token in tokens]
        self._forgers = [Sender(gateway.address, new_token(), chance) for _ in range(20)]
        self._recorded: deque[bytes] = deque(maxlen=_RECORDED)
        Recording.recorded = []
        with ExitStack() as stack:
            # Its session ends, and what it has sent is repeated for ever.
            self._recording().close()
            self._owner = self._recording()
            stack.callback(self._owner.socket.close)
            self._opened = stack.pop_all()

    def _recording(self) -> Recording:
        owner = Recording(self._gateway, "owner", access_token=self._users.token("bob"))
        for _ in range(3):
            owner.put("guarded", b"x", create=True)
        owner.flush()
        return owner

    def run(self, count: int) -> None:
        """Raises TimeoutError if the gateway does not serve any more."""
        for number in range(count):
            sender = self._senders[number % len(self._senders)]
            # Some are sent back to the gateway.
            self._recorded.extend(sender.read_answers()[:1])
            packet = self._next(sender)
            is_genuine = bool(self._recorded) and packet is self._recorded[-1]
            # Hellos that are not genuine are soon dropped, whatever they contain: the others come from other sockets.
            from_ = sender if is_genuine or packet[1:2] != b"\x01" else self._chance.choice(self._forgers)
            with suppress(OSError):
                from_.socket.send(packet)
            if number % _ROUND == _ROUND - 1:
                self._check()

    def _next(self, sender: Sender) -> bytes:
        chance, kind = self._chance, self._chance.randrange(10)
        owned = chance.choice(Recording.recorded)
        if kind == 0:
            return owned
        if kind == 1:
            return mutate(chance, owned)
        if kind == 2:
            # All but the MAC: the id of another token, and a counter that is next.
            return owned[:-32] + sender.macs.token_id + chance.randbytes(7) + owned[-17:]
        if kind == 3:
            return b"\xf2" + chance.randbytes(chance.choice((0, 9, 40, 41, 42, 90, 700, 1500)))
        if kind < 6 and self._recorded:
            recorded = chance.choice(self._recorded)
            return recorded if kind == 4 else mutate(chance, recorded)
        packet = sender.packet()
        self._recorded.append(packet)
        return packet

    def _check(self) -> None:
        del Recording.recorded[_RECORDED:]
        number = self._owner.put("guarded", b"x")
        self._owner.flush()
        assert self._owner.refusals == {}
        assert number == self._owner.last_number
        # The numbers of all its sessions are those of its messages: nobody else has put any.
        assert find_end(self._gateway, "guarded", access_token=self._users.token("bob")) == number

    def close(self) -> None:
        self._opened.close()
        for sender in (*self._senders, *self._forgers):
            sender.socket.close()


def main() -> None:
    options = fuzz_campaign.options_of(__doc__ or "")
    with fuzz_campaign.temporary_folder() as folder:
        users = BrokerWithUsers(folder)
        gateway = GatewayProcess([users.url], **SMALL)
        gateway.start()
        try:
            fuzzer = MacFuzz(gateway, users, options.seed)
            fuzz_campaign.run("tests.gateways.udp.mac_fuzz", options, fuzzer, lambda: gateway.memory_bytes)
        finally:
            gateway.kill()
            users.stop()


if __name__ == "__main__":
    main()
