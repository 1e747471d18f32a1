"""Subscriptions to the feed, one by one: what hostile peers and unlucky moments could do to libzmq's manual mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import zmq

from oncemq.client.credentials import CurveKeys
from oncemq.gateways.link import Link
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed import feed_gate
from oncemq.gateways.push.feed.feed_gate import FeedGate
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.secure_sockets import SecureSockets
from oncemq.net import curve
from oncemq.protocol import errors
from oncemq.protocol.replies import LoginReply
from tests.gateways.push.fakes import until
from tests.secured_broker import client_keys, use_keys


class Logins:
    """A link that knows the callers of keys."""

    def __init__(self) -> None:
        self.callers: dict[str, str] = {}

    async def login(self, kind: str, credential: str, address: str, listener: str) -> LoginReply:
        await asyncio.sleep(0)
        if credential not in self.callers:
            raise errors.Unauthenticated("the credentials are not valid")
        return LoginReply(self.callers[credential])


class Rights:
    """Implements `Access`. Each caller may listen to the topics of its user: `alice.…`."""

    def __init__(self) -> None:
        #: Whether what a caller may do is known.
        self.is_known = True
        self.asked: list[tuple[str, str]] = []
        #: (caller, first frame) of those who listen.
        self.listening: list[tuple[str, bytes]] = []
        self.frames: set[bytes] = set()

    def verdict(self, caller: str, topic: str) -> bool | None:
        self.asked.append((caller, topic))
        return topic.startswith(caller.partition("/")[0]) if self.is_known else None

    def listen(self, caller: str, topic: str, frame: bytes, listener: object) -> bool:
        self.listening.append((caller, frame))
        self.frames.add(frame)
        return True

    def leave(self, caller: str, topic: str, frame: bytes, listener: object, *, is_last: bool) -> None:
        self.listening.remove((caller, frame))
        if is_last:
            self.frames.remove(frame)


class Rig:
    def __init__(self) -> None:
        self.keys = curve.generate()
        self.logins = Logins()
        self.rights = Rights()
        self.counters = Counters()
        self.secure = SecureSockets(self.keys, cast(Link, self.logins), "push")
        self.gate = FeedGate(self.rights, self.counters, self.secure)
        self.gate.guard("the feed", PushSettings().limits, self.counters)
        self.gate.bind("tcp://127.0.0.1:*")
        self._context: Any = zmq.Context()
        self._peers: list[Any] = []

    def user_keys(self, caller: str) -> CurveKeys:
        keys = client_keys(self.keys)
        self.logins.callers[keys.public] = caller
        return keys

    def peer(self, caller: str, *prefixes: bytes) -> Any:
        """An XSUB socket, which can send anything."""
        peer = self._context.socket(zmq.XSUB)
        self._peers.append(peer)
        peer.linger = 0
        use_keys(peer, self.user_keys(caller))
        for prefix in prefixes:
            peer.send(b"\1" + prefix)
        peer.connect(self.gate.address)
        return peer

    async def hears(self, peer: Any, frame: bytes) -> None:
        """Send until a peer has it."""

        def is_heard() -> bool:
            self.gate.socket.send(frame)
            self.gate.read_soon()
            return bool(peer.poll(1)) and peer.recv() == frame

        await until(is_heard, f"{frame!r} is heard")

    async def until_connected(self, count: int) -> None:
        assert self.gate._listener is not None
        await until(lambda: len(self.gate._listener.connections) == count, "the connections")  # type: ignore[union-attr]

    async def close(self) -> None:
        self.gate.close()
        await self.secure.close()
        self._context.destroy(0)


@asynccontextmanager
async def rigged() -> AsyncIterator[Rig]:
    rig = Rig()
    try:
        yield rig
    finally:
        await rig.close()


def run(work: Callable[[Rig], Any]) -> None:
    async def go() -> None:
        async with rigged() as rig:
            await work(rig)

    asyncio.run(go())


class Unread:
    """While it is entered, the gate reads nothing, as if its process were busy."""

    def __init__(self, gate: FeedGate) -> None:
        self._gate = gate

    async def received(self, size: int) -> None:
        """Let libzmq take what has arrived into its queue."""
        [*connections] = self._gate._listener.connections.values()  # type: ignore[union-attr]
        before = sum(each.received for each in connections)

        def has_come() -> bool:
            self._gate.socket.getsockopt(zmq.EVENTS)
            for each in connections:
                each.measure(0.0)
            return sum(each.received for each in connections) >= before + size

        await until(has_come, "it has arrived")
        for _ in range(20):
            await asyncio.sleep(0.001)
            self._gate.socket.getsockopt(zmq.EVENTS)

    def __enter__(self) -> Unread:
        self._gate.stop_reading()
        for each in self._gate._listener.connections.values():  # type: ignore[union-attr]
            each.measure(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._gate._start_reading()


def test_only_what_is_allowed_is_heard() -> None:
    async def work(rig: Rig) -> None:
        alice, bob = rig.peer("alice/1", b"alice.a\0", b"bob.b\0"), rig.peer("bob/2", b"bob.b\0", b"alice.a\0")
        await rig.hears(alice, b"alice.a\0")
        await rig.hears(bob, b"bob.b\0")
        while alice.poll(50):
            assert alice.recv() == b"alice.a\0"
        while bob.poll(50):
            assert bob.recv() == b"bob.b\0"
        assert sorted(rig.rights.listening) == [("alice/1", b"alice.a\0"), ("bob/2", b"bob.b\0")]
        alice.close()
        await until(lambda: rig.rights.listening == [("bob/2", b"bob.b\0")], "it has left")
        bob.send(b"\0bob.b\0")
        await until(lambda: not rig.rights.frames, "nobody listens")

    run(work)


def test_a_message_that_is_no_subscription_gives_nobody_the_subscription_of_another() -> None:
    async def work(rig: Rig) -> None:
        attacker, victim = rig.peer("mallory/1", b"mallory.x\0"), rig.peer("alice/2", b"alice.known\0")
        await rig.hears(attacker, b"mallory.x\0")
        await rig.hears(victim, b"alice.known\0")
        with Unread(rig.gate) as unread:
            # libzmq now takes the pipe of each subscription for that of the one before it.
            attacker.send(b"no subscription")
            await unread.received(15)
            victim.send(b"\1alice.secret\0")
            await unread.received(14)
            attacker.send(b"\1mallory.y\0")
            await unread.received(11)
        await until(lambda: rig.counters["feed_malformed"], "the attacker is disconnected")
        # Both have come back, and repeat what they have subscribed to.
        await rig.hears(victim, b"alice.secret\0")
        await rig.hears(attacker, b"mallory.y\0")
        for _ in range(20):
            rig.gate.socket.send(b"alice.secret\0")
        await rig.hears(attacker, b"mallory.x\0")
        while attacker.poll(50):
            assert attacker.recv() != b"alice.secret\0"
        assert rig.counters["feed_reconnected"]

    run(work)


def test_what_is_not_known_yet_is_added_when_it_is() -> None:
    async def work(rig: Rig) -> None:
        rig.rights.is_known = False
        alice = rig.peer("alice/1", b"alice.a\0", b"alice.b\0", b"bob.b\0")
        await until(lambda: len(rig.rights.asked) >= 3, "it is asked")
        assert not rig.rights.listening
        rig.rights.is_known = True
        rig.gate.verdicts_changed()
        await rig.hears(alice, b"alice.a\0")
        await rig.hears(alice, b"alice.b\0")
        assert not rig.counters["feed_reconnected"]
        assert rig.rights.frames == {b"alice.a\0", b"alice.b\0"}

    run(work)


def test_what_can_not_be_added_any_more_is_repeated_by_the_client() -> None:
    async def work(rig: Rig) -> None:
        rig.rights.is_known = False
        alice = rig.peer("alice/1", b"alice.a\0")
        await until(lambda: rig.rights.asked, "it is asked")
        bob = rig.peer("bob/2", b"bob.b\0")
        await until(lambda: ("bob/2", "bob.b") in rig.rights.asked, "it is asked")
        rig.rights.is_known = True
        rig.gate.verdicts_changed()
        await rig.hears(alice, b"alice.a\0")
        await rig.hears(bob, b"bob.b\0")
        assert rig.counters["feed_reconnected"] == 1, "the second one could be added"

    run(work)


def test_what_was_refused_is_asked_for_again() -> None:
    async def work(rig: Rig) -> None:
        alice = rig.peer("alice/1", b"alice.a\0", b"bob.b\0")
        await rig.hears(alice, b"alice.a\0")
        rig.gate.ask_again()
        assert rig.rights.frames == {b"alice.a\0"}
        rig.rights.verdict = lambda caller, topic: True  # type: ignore[method-assign]
        rig.gate.ask_again()
        await rig.hears(alice, b"bob.b\0")

    run(work)


def test_one_that_has_left_meanwhile_is_not_missed() -> None:
    async def work(rig: Rig) -> None:
        leaving = rig.peer("bob/2", b"bob.b\0")
        await rig.hears(leaving, b"bob.b\0")
        rig.rights.is_known = False
        alice = rig.peer("alice/1", b"alice.a\0")
        await until(lambda: ("alice/1", "alice.a") in rig.rights.asked, "it is asked")
        with Unread(rig.gate):
            # libzmq forgets the pipe of alice's subscription when another one ends.
            leaving.close()
            await until(lambda: rig.gate.has_messages, "it has left")
            rig.rights.is_known = True
            rig.gate.verdicts_changed()
        await rig.hears(alice, b"alice.a\0")
        assert rig.counters["feed_reconnected"] == 1

    run(work)


def test_everything_is_read_before_somebody_is_admitted() -> None:
    async def work(rig: Rig) -> None:
        alice = rig.peer("alice/1", b"alice.a\0")
        await rig.hears(alice, b"alice.a\0")
        with Unread(rig.gate) as unread:
            alice.send(b"\1alice.b\0")
            await unread.received(9)
            assert rig.gate.has_messages
            rig.peer("bob/2")
            await rig.until_connected(2)
            await until(lambda: not rig.gate.has_messages, "the subscription is read")
        await rig.hears(alice, b"alice.b\0")

    run(work)


def test_a_prefix_that_is_no_topic_is_refused_and_too_many_end_the_connection() -> None:
    async def work(rig: Rig) -> None:
        count = feed_gate._REFUSED_MAX + 1
        hostile = rig.peer(
            "mallory/1", b"", b"mallory.#", b"\xff", *(b"alice.%d\0" % number for number in range(count))
        )
        await until(lambda: rig.counters["feed_refused"], "it is disconnected")
        assert rig.counters["feed_names_invalid"] >= 3
        assert not rig.rights.listening
        hostile.close()

    run(work)


def test_names_with_and_without_a_zero_byte_are_the_same_subscription() -> None:
    async def work(rig: Rig) -> None:
        alice = rig.peer("alice/1", b"alice.a", b"alice.a\0", b"\1alice.a")
        await rig.hears(alice, b"alice.a\0")
        assert sorted(rig.rights.frames) == [b"\1alice.a\0", b"alice.a\0"]
        alice.send(b"\0alice.a")
        alice.send(b"\0\1alice.a")
        await until(lambda: rig.rights.frames == {b"alice.a\0"}, "one of them has ended")
        rig.gate.socket.send(b"alice.ab\0")
        await rig.hears(alice, b"alice.a\0")
        while alice.poll(50):
            assert alice.recv() == b"alice.a\0"

    run(work)


def test_connections_from_a_time_without_users_end_with_the_first_user() -> None:
    async def work(rig: Rig) -> None:
        rig.rights.verdict = lambda caller, topic: True  # type: ignore[method-assign]
        anybody = rig.peer("", b"alice.a\0")
        await rig.hears(anybody, b"alice.a\0")
        alice = rig.peer("alice/1", b"alice.a\0")
        await rig.hears(alice, b"alice.a\0")
        assert rig.counters["peers_cut_invalid"] == 1
        anybody.close()

    run(work)


def test_those_of_a_caller_and_of_a_topic_are_ended() -> None:
    async def work(rig: Rig) -> None:
        for caller in ("alice/1", "alice/2", "bob/3"):
            topic = f"{caller.partition('/')[0]}.t\0".encode()
            await rig.hears(rig.peer(caller, topic), topic)
        assert rig.gate.callers() == {"alice/1", "alice/2", "bob/3"}
        rig.gate.end_caller("alice/1")
        assert rig.counters["peers_cut_invalid"] == 1
        rig.gate.end_topic("alice", "alice.other")
        rig.gate.end_topic("alice", "bob.t")
        assert "feed_revoked" not in rig.counters.counts
        rig.gate.end_topic("bob", "bob.t")
        assert rig.counters["feed_revoked"]

    run(work)
