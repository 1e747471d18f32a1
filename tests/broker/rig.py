"""A broker with a network, a clock and a journal that a test controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from oncemq.broker.housekeeping import Policy
from oncemq.broker.loop import Broker
from oncemq.broker.network import Arrival
from oncemq.broker.security.security import Security
from oncemq.journal.contract import Group, Journal, RecordRef
from oncemq.journal.memory import MemoryJournal
from oncemq.protocol import errors, replies
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import (
    START_EARLIEST,
    Ack,
    Command,
    Envelope,
    Get,
    Hello,
    Leave,
    Numbered,
    Open,
    Operation,
    Put,
    Settle,
    Sharing,
    Subscribe,
    Take,
)
from oncemq.protocol.frames import Frame, decode_response, encode_request
from oncemq.protocol.limits import Limits

_T = TypeVar("_T")

GET_BYTES = 1 << 20


class FakeNetwork:
    def __init__(self, story: list[str] | None = None) -> None:
        self.arriving: list[Arrival] = []
        self.sent: list[tuple[bytes, list[Frame]]] = []
        #: Peer → the caller that it has logged in as.
        self.callers: dict[bytes, str] = {}
        self._story = story if story is not None else []

    def take(self, wait_ms: int) -> list[Arrival]:
        arrived, self.arriving = self.arriving, []
        return arrived

    def when_gone(self, call: Callable[[bytes], None]) -> None:
        self.gone = call

    def caller_of(self, peer: bytes) -> str:
        return self.callers.get(peer, "")

    def drop_invalid(self) -> None: ...

    def is_reading(self, peer: bytes) -> bool:
        return True

    def send(self, peer: bytes, frames: Sequence[Frame]) -> None:
        self._story.append("send")
        self.sent.append((peer, list(frames)))


class FakeClock:
    def __init__(self) -> None:
        self.time_ms = 1_000_000

    def now_ms(self) -> int:
        return self.time_ms

    def continue_from(self, time_ms: int) -> None:
        self.time_ms = time_ms


class TellingJournal(MemoryJournal):
    """Records the calls that it gets, and fails on demand."""

    def __init__(self, story: list[str], extent_bytes: int = 1 << 20) -> None:
        super().__init__(extent_bytes=extent_bytes)
        self.story = story
        self.fails = ""

    def append(self, group: Group) -> None:
        self.story.append("append")
        if self.fails == "append":
            raise errors.JournalFailed("a write failed")
        super().append(group)

    def sync(self) -> None:
        self.story.append("sync")
        if self.fails == "sync":
            raise errors.JournalFailed("a sync failed")
        super().sync()

    def read(self, wanted: Sequence[RecordRef]) -> list[tuple[bytes, int]]:
        self.story.append("read")
        return super().read(wanted)


class Rig:
    """A broker, and any number of peers."""

    def __init__(
        self,
        journal: Journal | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        security: Security | None = None,
    ) -> None:
        self.story: list[str] = []
        self.journal = journal if journal is not None else TellingJournal(self.story)
        self.network = FakeNetwork(self.story)
        self.clock = FakeClock()
        self.limits = limits or Limits()
        self.policy = policy or Policy(look_every_ms=0)
        self.trust_clock = False
        self.security = security
        self.broker = self._broker()
        self.numbers: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self._requests = 0

    def _broker(self) -> Broker:
        return Broker(
            self.journal,
            self.network,
            self.clock,
            self.limits,
            self.policy,
            trust_clock=self.trust_clock,
            security=self.security,
        )

    def restart(self) -> None:
        """Crash: only what was synced is kept."""
        assert isinstance(self.journal, MemoryJournal)
        self.journal = self.journal.reopen()
        self.network.arriving.clear()
        self.broker = self._broker()

    # Raw requests.

    def post(self, commands: Sequence[Command], payloads: Sequence[Frame] = (), peer: bytes = b"peer") -> int:
        """Send a request to the broker. Return its id."""
        self._requests += 1
        self.network.arriving.append((peer, encode_request(self._requests, commands, payloads)))
        return self._requests

    def rounds(self, count: int = 1, forward_ms: int = 0) -> None:
        self.clock.time_ms += forward_ms
        for _ in range(count):
            self.broker.run_once()

    def answers(self) -> dict[int, tuple[list[replies.Reply], list[list[Frame]]]]:
        """Return the responses since the last call, by request id."""
        sent, self.network.sent = self.network.sent, []
        found: dict[int, tuple[list[replies.Reply], list[list[Frame]]]] = {}
        for _, frames in sent:
            response, payloads = decode_response(frames)
            assert response.request_id not in found, "a request was answered twice"
            found[response.request_id] = (list(response.replies), payloads)
        return found

    def ask(self, command: Command, payload: Frame | None = None) -> replies.Reply:
        """Send one command, run one round, and return the reply."""
        request_id = self.post([command], [] if payload is None else [payload])
        self.rounds()
        [reply], _ = self.answers()[request_id]
        return reply

    # What clients do.

    def hello(self, session: str = "alice", nonce: int = 1) -> replies.HelloReply:
        reply = expect(replies.HelloReply, self.ask(Hello(session, 0, nonce, 1000)))
        self.epochs[session] = reply.epoch
        self.numbers[session] = reply.last_number
        return reply

    def numbered(self, operation: Operation, session: str = "alice") -> Numbered:
        if session not in self.epochs:
            self.hello(session)
        self.numbers[session] += 1
        number = self.numbers[session]
        return Numbered(session, self.epochs[session], number, number, operation)

    def do(self, operation: Operation, session: str = "alice", payload: bytes | None = None) -> replies.Reply:
        return self.ask(self.numbered(operation, session), payload)

    def put(self, *values: bytes, topic: str = "orders", session: str = "alice") -> replies.PutReply:
        command, payload = self.put_command(*values, topic=topic, session=session)
        return expect(replies.PutReply, self.ask(command, payload))

    def put_command(
        self, *values: bytes, topic: str = "orders", session: str = "alice", create: bool = False, due_ms: int = 0
    ) -> tuple[Numbered, bytes]:
        payload = encode_batch(values)
        envelope = Envelope(len(values), len(payload), checksum(payload), 0, due_ms)
        return self.numbered(Put(topic, envelope, create), session), payload

    def subscribe(self, topic: str = "orders", subscriber: str = "kitchen") -> Owner:
        self.do(Subscribe(topic, subscriber, START_EARLIEST))
        return self.open(topic, subscriber)

    def share(self, topic: str = "orders", subscriber: str = "workers", lease_ms: int = 1_000) -> Workers:
        self.do(Subscribe(topic, subscriber, START_EARLIEST, Sharing(lease_ms)))
        return Workers(subscriber, self.open(topic, subscriber).opened)

    def open(self, topic: str = "orders", subscriber: str = "kitchen") -> Owner:
        reply = expect(replies.OpenReply, self.do(Open(topic, subscriber), session=f"owner of {subscriber}"))
        return Owner(subscriber, reply)


class Owner:
    """A subscription, as its owner uses it."""

    def __init__(self, subscriber: str, opened: replies.OpenReply) -> None:
        self.subscriber = subscriber
        self.opened = opened

    def get(self, position: int | None = None, *, wait_ms: int = 0, ack: int = -1) -> Get:
        opened = self.opened
        position = opened.acked if position is None else position
        return Get(opened.topic_id, self.subscriber, opened.epoch, position, GET_BYTES, wait_ms, ack)

    def ack(self, upto: int) -> Ack:
        return Ack(self.opened.topic_id, self.subscriber, self.opened.epoch, upto)


class Workers:
    """A shared subscription, as its members use it."""

    def __init__(self, subscriber: str, opened: replies.OpenReply) -> None:
        self.subscriber = subscriber
        self.opened = opened

    def take(self, member: str, number: int = 1, *, count: int = 1, wait_ms: int = 0) -> Take:
        opened = self.opened
        return Take(opened.topic_id, self.subscriber, opened.epoch, member, number, count, GET_BYTES, wait_ms)

    def settle(self, token: int, *offsets: int, return_ms: int | None = None) -> Settle:
        """Settle messages: as done, or nacked with a delay."""
        done = [(token, offset, 1) for offset in offsets if return_ms is None]
        returned = [(token, offset, 1, return_ms) for offset in offsets if return_ms is not None]
        opened = self.opened
        return Settle(opened.topic_id, self.subscriber, opened.epoch, tuple(done), tuple(returned))

    def leave(self, member: str) -> Leave:
        return Leave(self.opened.topic_id, self.subscriber, self.opened.epoch, member)


def expect(kind: type[_T], reply: replies.Reply) -> _T:
    assert isinstance(reply, kind), reply
    return reply


def code(reply: replies.Reply) -> str:
    assert isinstance(reply, replies.Refusal | replies.NotNow), reply
    return reply.code


def offsets(reply: replies.Reply) -> list[int]:
    got = expect(replies.GetReply, reply)
    return [offset for head in got.batches for offset in range(head.first_offset, head.first_offset + head.count)]


def tasks(reply: replies.Reply) -> list[int]:
    got = expect(replies.TakeReply, reply)
    return [offset for head in got.heads for offset in range(head.first_offset, head.first_offset + head.count)]
