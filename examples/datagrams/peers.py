"""A publisher and a subscriber for extended datagrams, exactly once, in plain sockets. Read, copy or port it.

It uses none of OnceMQ's own code. docs/howto/datagrams.md describes the packets field by field. This is a module;
publish_file.py and append_file.py are programs that use it.

A broker that has users needs an access token. `access_token` is the token itself, or a function that returns it, which
is called again when the broker does not accept the token any more.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

MAGIC, MAGIC_WITH_MAC = 0xF1, 0xF2
HELLO, PUT, ACK, BYE = 1, 2, 3, 4
CHALLENGE, WELCOME, DONE, REFUSED, NOT_NOW, MESSAGE, ACKED, OVER = range(0x81, 0x89)
ASK, PUBLISHER, SUBSCRIBER = 0, 1, 2
FROM_NOW_ON, FROM_THE_EARLIEST = -1, -2

#: A packet that is not answered is sent again after this time, which doubles until a packet arrives. A subscriber
#: repeats its last ack in this way, so that the gateway knows that it is alive.
RESEND_S, RESEND_S_MAX = 0.1, 1.0
#: How far a packet may be behind the newest one.
REORDERED_MAX = 1024

AccessToken = str | Callable[[], str]


def token_from_environment() -> str:
    """Return the access token in the file ONCEMQ_TOKEN_FILE, or in ONCEMQ_TOKEN; empty if there is none."""
    path = os.environ.get("ONCEMQ_TOKEN_FILE")
    return Path(path).read_text(encoding="ascii").strip() if path else os.environ.get("ONCEMQ_TOKEN", "")


class Refused(Exception):
    """The gateway or the broker refused. The first argument is the code."""


class Macs:
    """Seals packets to the gateway, and opens packets from it."""

    #: By how much packets become longer.
    SIZE = 32

    def __init__(self, access_token: str) -> None:
        self.access_token = access_token
        self.token_id = access_token.split("_")[1].encode()
        self._key = hmac.digest(hashlib.sha256(access_token.encode()).digest(), b"oncemq udp 1", "sha256")
        self._sent = 0
        #: Address token → the counters that were received with it, and the highest one.
        self._received: dict[int, tuple[set[int], int]] = {}

    def seal(self, packet: bytes, token: int, nonce: int) -> bytes:
        """Return a packet with its MAC. One that is sent again needs a new one."""
        self._sent += 1
        sealed = bytes([MAGIC_WITH_MAC]) + packet[1:] + struct.pack(">8sQ", self.token_id, self._sent)
        return sealed + self._mac(b"peer", token, nonce, sealed)

    def open(self, packet: bytes, token: int, nonce: int) -> bytes | None:
        """Return a packet without its MAC. None: the gateway has not made it for this session, or it is a copy."""
        expected = self._mac(b"gateway", token, nonce, packet[:-16])
        if len(packet) < 10 + self.SIZE or not hmac.compare_digest(expected, packet[-16:]):
            return None
        token_id, counter = struct.unpack(">8sQ", packet[-32:-16])
        return packet[:-32] if token_id == self.token_id and self._is_new(token, counter) else None

    def _is_new(self, token: int, counter: int) -> bool:
        received, newest = self._received.get(token, (set(), 0))
        if counter in received or counter <= newest - REORDERED_MAX:
            return False
        newest = max(newest, counter)
        received.add(counter)
        if len(received) > 2 * REORDERED_MAX:
            received = {each for each in received if each > newest - REORDERED_MAX}
        self._received[token] = received, newest
        return True

    def _mac(self, direction: bytes, token: int, nonce: int, data: bytes) -> bytes:
        key = hmac.digest(self._key, direction + struct.pack(">QQ", token, nonce), "sha256")
        return hmac.digest(key, data, "sha256")[:16]


class Peer:
    """The common part of both: the hello, the proof of the address, and retries of lost packets."""

    def __init__(
        self,
        gateway: tuple[str, int],
        role: int,
        name: str,
        topic: str = "",
        position: int = -1,
        access_token: AccessToken = "",
    ) -> None:
        self.gateway = gateway
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # From now on, only packets of the gateway arrive.
        self.socket.connect(gateway)
        self.socket.setblocking(False)
        self.role, self.name, self.topic = role, name, topic
        self.nonce = secrets.randbits(64)
        self.token = self.epoch = self.topic_id = 0
        self.position = position
        self.window = 1
        self.packet_bytes_max = 0
        self.is_welcome = False
        self._pause_s = RESEND_S
        self._resend_s = 0.0
        self._read_token = access_token if callable(access_token) else lambda: access_token
        self.macs: Macs | None = None
        #: The token of the last challenge, and when it came. With MACs, a challenge proves nothing: until the gateway
        #: welcomes us with the new token, the session goes on with the one before.
        self._offered, self._offered_s = 0, 0.0
        self._use_access_token()

    def _use_access_token(self) -> bool:
        """Read the access token. False: it is still the same one."""
        access_token = self._read_token()
        if access_token == (self.macs.access_token if self.macs else ""):
            return False
        self.macs = Macs(access_token) if access_token else None
        self.nonce = secrets.randbits(64)
        self.token = self._offered = 0
        self.is_welcome = False
        return True

    def send(self, kind: int, body: bytes) -> None:
        token = (self._offered or self.token) if kind == HELLO else self.token
        packet = struct.pack(">BBQ", MAGIC, kind, token) + body
        if self.macs:
            packet = self.macs.seal(packet, token, self.nonce)
        # If the gateway is unreachable, the packet is lost.
        with suppress(OSError):
            self.socket.send(packet)

    def wait(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the condition is true. Raises TimeoutError."""
        until_s = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > until_s:
                host, port = self.gateway
                raise TimeoutError(f"no answer from {host}:{port} for {timeout_s:g} s")
            self.step(min(0.5, timeout_s))

    def say_hello(self) -> None:
        name, topic = self.name.encode(), self.topic.encode()
        body = struct.pack(">BQQQq", self.role, self.nonce, self.epoch, self.topic_id, self.position)
        self.send(HELLO, body + bytes([len(name)]) + name + bytes([len(topic)]) + topic)

    def step(self, timeout_s: float) -> None:
        """Receive packets, or, after a while, send again what was not answered."""
        now_s = time.monotonic()
        wait_s = max(0.0, min(timeout_s, self._resend_s - now_s))
        if select.select([self.socket], [], [], wait_s)[0]:
            with suppress(OSError):
                while True:
                    self._receive(self.socket.recv(65_536))
        if time.monotonic() >= self._resend_s:
            self.send_again() if self.is_welcome else self.say_hello()
            self._resend_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, RESEND_S_MAX)

    def progress(self) -> None:
        """A new packet has arrived: restart the timeout, because missing packets were sent only recently."""
        self._pause_s = RESEND_S
        self._resend_s = time.monotonic() + self._pause_s

    def _receive(self, packet: bytes) -> None:
        if len(packet) < 10:
            return
        magic, kind, echo = struct.unpack_from(">BBQ", packet)
        if echo not in (self.nonce, self.token or self.nonce, self._offered or self.nonce):
            return
        if magic == MAGIC and self.macs:
            self._receive_without_mac(kind, packet[10:])
        elif magic == MAGIC:
            self._receive_genuine(kind, packet[10:])
        elif magic == MAGIC_WITH_MAC and self.macs:
            opened = self.macs.open(packet, self.token, self.nonce)
            if opened is None and self._offered:
                opened = self.macs.open(packet, self._offered, self.nonce)
                if opened is not None and kind == WELCOME:
                    self.token, self._offered = self._offered, 0
            if opened is not None:
                self._receive_genuine(kind, opened[10:])

    def _receive_without_mac(self, kind: int, body: bytes) -> None:
        """Anybody may have sent it: do nothing because of it that does harm."""
        now_s = time.monotonic()
        if kind == CHALLENGE and (not self._offered or now_s > self._offered_s + RESEND_S):
            [self._offered] = struct.unpack(">Q", body)
            self._offered_s = now_s
            self.say_hello()
            if not self.is_welcome:
                self.progress()
        elif kind == REFUSED:
            self._receive_refusal(body, is_genuine=False)

    def _receive_genuine(self, kind: int, body: bytes) -> None:
        if kind == CHALLENGE:
            # The gateway does not know our address, or was restarted: send the same hello with its token. If we already
            # have this token, the challenge may answer a packet from before the last welcome, so we continue.
            [token] = struct.unpack(">Q", body)
            self.is_welcome = self.is_welcome and token == self.token
            self.token = token
            self.say_hello()
            self.progress()
        elif kind == WELCOME:
            self.epoch, self.topic_id, position, self.window, self.packet_bytes_max = struct.unpack(">QQQHI", body)
            self.is_welcome = True
            self.welcome(position)
            self.progress()
        elif kind == REFUSED:
            self._receive_refusal(body)
        else:
            self.received(kind, body)

    def _receive_refusal(self, body: bytes, *, is_genuine: bool = True) -> None:
        number, length = struct.unpack_from(">QB", body)
        code, text = body[9 : 9 + length].decode(), body[9 + length :].decode()
        if code == "UNAUTHENTICATED" and self._use_access_token():
            self.say_hello()
        elif is_genuine or not self.packet_bytes_max:
            self.refused(number, code, text or "the broker does not accept the access token, or there is none")

    def welcome(self, position: int) -> None:
        raise NotImplementedError

    def received(self, kind: int, body: bytes) -> None:
        raise NotImplementedError

    def refused(self, number: int, code: str, text: str) -> None:
        """The gateway refused a put. Number 0: it refused the hello, or the last welcome is no longer valid."""
        raise NotImplementedError

    def send_again(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.send(BYE, struct.pack(">QB", self.epoch, 0))
        self.socket.close()


class Publisher(Peer):
    """Numbers its messages 1, 2, 3, …: each number is stored once, no matter how often it is sent.

    `last_number` is the last number that the broker knows. A publisher that restarts with the same name continues after
    it. If the publisher knows the number of each message, as for the lines of a file, it needs no other state.
    """

    def __init__(
        self, gateway: tuple[str, int], name: str, *, timeout_s: float = 30.0, access_token: AccessToken = ""
    ) -> None:
        super().__init__(gateway, PUBLISHER, name, access_token=access_token)
        self.timeout_s = timeout_s
        self.last_number = -1
        self.refusals: dict[int, str] = {}
        self._open: dict[int, bytes] = {}
        self._next = 0
        self._wait(lambda: self.last_number >= 0)

    def put(self, topic: str, content: bytes, *, create: bool = False) -> int:
        """Send a message and return its number. Waits for space in the window, not for the answer."""
        self._wait(lambda: self.is_welcome and not any(number <= self._next - self.window for number in self._open))
        name = topic.encode()
        if 28 + len(name) + len(content) + (Macs.SIZE if self.macs else 0) > self.packet_bytes_max:
            raise ValueError(f"a packet has at most {self.packet_bytes_max} bytes")
        number, self._next = self._next, self._next + 1
        self._open[number] = struct.pack(">QBB", number, create, len(name)) + name + content
        if len(self._open) == 1:
            self.progress()
        self._send_put(number)
        self.step(0)
        return number

    def flush(self) -> None:
        """Wait until every message is stored or refused. `refusals` contains those that were refused."""
        self._wait(lambda: not self._open)

    def _wait(self, is_so: Callable[[], bool]) -> None:
        self.wait(is_so, self.timeout_s)

    def _send_put(self, number: int) -> None:
        self.send(PUT, struct.pack(">Q", self.epoch) + self._open[number])

    def welcome(self, position: int) -> None:
        if self.last_number < 0:
            self.last_number = position
            self._next = position + 1
        for number in self._open:
            self._send_put(number)

    def received(self, kind: int, body: bytes) -> None:
        if kind == DONE:
            number, _offset = struct.unpack(">Qq", body)
            self._settle(number)

    def refused(self, number: int, code: str, text: str) -> None:
        if number == 0:
            raise Refused(code, text)
        if number in self._open:
            self.refusals[number] = code
        self._settle(number)

    def _settle(self, number: int) -> None:
        if self._open.pop(number, None) is not None:
            self.last_number = max(self.last_number, number)
            self.progress()

    def send_again(self) -> None:
        # Send only the first few, and less often while nothing arrives: the broker may be unreachable.
        for number in list(self._open)[: self.window // 4]:
            self._send_put(number)


class Subscriber(Peer):
    """Gets each message of its durable subscription once and in order.

    Store `position` together with the results of the messages, and start with it after a crash. Then no message is lost
    or processed twice, even if acks were lost.
    """

    def __init__(
        self,
        gateway: tuple[str, int],
        topic: str,
        name: str,
        *,
        position: int = FROM_NOW_ON,
        timeout_s: float = 30.0,
        access_token: AccessToken = "",
    ) -> None:
        super().__init__(gateway, SUBSCRIBER, name, topic, position, access_token)
        self.timeout_s = timeout_s
        #: Everything below is acked, and the ack is on the broker's disk.
        self.acked = -1
        self._early: dict[int, tuple[int, bytes]] = {}
        self._ready: list[tuple[int, bytes]] = []
        self._next = -1
        self.wait(lambda: self.is_welcome, timeout_s)

    def messages(self, idle_s: float, *, end: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield offset and content, until `idle_s` seconds pass without a message. Each step acks the one before.

        Silence does not show that the topic has no more messages. So messages below the offset `end` are waited for:
        raises TimeoutError if one does not arrive within `timeout_s`."""
        heard_s = time.monotonic()
        while True:
            is_complete = self.position >= end
            left_s = heard_s + (idle_s if is_complete else self.timeout_s) - time.monotonic()
            if left_s <= 0 and is_complete:
                return
            if left_s <= 0:
                raise TimeoutError(f"message {self.position} of {end} has not arrived for {self.timeout_s:g} s")
            self.step(left_s)
            while self._ready:
                offset, content = self._ready.pop(0)
                yield offset, content
                self.position = offset + 1
                if not self._ready:
                    self.send_again()
                heard_s = time.monotonic()

    def finish(self) -> None:
        """Wait until the last ack is on the broker's disk."""
        self.send_again()
        self.wait(lambda: self.acked >= self.position, self.timeout_s)

    def welcome(self, position: int) -> None:
        if self._next < 0:
            self._next = max(position, self.position)
            self.position = self._next

    def received(self, kind: int, body: bytes) -> None:
        if kind == MESSAGE:
            first, offset, form = struct.unpack_from(">QQB", body)
            content = body[17:]
            if form == 1:
                content = b"(a message of %d bytes, too large for a packet)" % int.from_bytes(content, "big")
            self._take(first, offset, content)
        elif kind == ACKED:
            [upto] = struct.unpack(">Q", body)
            self.acked = max(self.acked, upto)

    def refused(self, number: int, code: str, text: str) -> None:
        raise Refused(code, f"{text} ({number})" if number else text)

    def _take(self, first: int, offset: int, content: bytes) -> None:
        if self._next < 0 or offset < self._next:
            # A repetition: the ack was lost.
            self.send_again()
            return
        self._early[offset] = (first, content)
        # The lowest offset is next, if there is no message in between.
        while self._early:
            offset = min(self._early)
            first, content = self._early[offset]
            if first > self._next:
                self.send_again()
                break
            del self._early[offset]
            self._ready.append((offset, content))
            self._next = offset + 1
        self.progress()

    def send_again(self) -> None:
        """Send the ack: the position, and a bitmap of the messages that have arrived after it."""
        if not self.is_welcome:
            return
        arrived = [offset for offset, _ in self._ready] + list(self._early)
        bits = [offset - self.position for offset in arrived]
        bitmap = sum(1 << bit for bit in bits if 0 <= bit < 64)
        self.send(ACK, struct.pack(">QQQ", self.epoch, max(0, self.position), bitmap))


class _Question(Peer):
    """A hello that asks for the end of a topic."""

    end = -1

    def welcome(self, position: int) -> None:
        self.end = position

    def refused(self, number: int, code: str, text: str) -> None:
        raise Refused(code, f"{text} ({number})" if number else text)

    def received(self, kind: int, body: bytes) -> None:
        """The gateway can't reach the broker: the hello is sent again."""

    def send_again(self) -> None:
        """The hello is answered: there is nothing to send."""


def find_end(gateway: tuple[str, int], topic: str, *, timeout_s: float = 30.0, access_token: AccessToken = "") -> int:
    """Return the offset that the next message of a topic will get. Raises Refused, TimeoutError."""
    question = _Question(gateway, ASK, "", topic, access_token=access_token)
    try:
        question.wait(lambda: question.end >= 0, timeout_s)
    finally:
        question.socket.close()
    return question.end


if __name__ == "__main__":
    raise SystemExit(__doc__)
