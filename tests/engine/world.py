"""An engine with a client, for tests: no journal, and a clock that tests advance."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

import msgspec

from oncemq.engine.caller import Caller
from oncemq.engine.decide.decision import Decision
from oncemq.engine.engine import Engine
from oncemq.engine.events import Delayed, Event, Staged, Stored, Transacted
from oncemq.engine.state.batch_index import Slice
from oncemq.engine.state.topic import Topic
from oncemq.journal.contract import WriteSlot, record_bytes
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import Limits

EXTENT_BYTES = 1 << 20
ROOMY = 1 << 30


class User:
    """A caller that sees what it is told to see. Implements `engine.caller.Caller`."""

    def __init__(self, user: str, *, is_viewer: bool = True, topics: Collection[str] | None = None) -> None:
        self.user = user
        self.is_viewer = is_viewer
        self._topics = topics

    def sees(self, topic: str) -> bool:
        return self._topics is None or topic in self._topics

    def seal(self, number: int) -> str:
        return str(number)

    def unseal(self, text: str) -> int | None:
        return int(text) if text.isdecimal() else None


#: Those for whom random commands are decided.
USERS = [None, User("ann"), User("ben")]


class World:
    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.engine = Engine("broker", 1, EXTENT_BYTES, self.limits)
        self.now_ms = 1_000
        self.position = EXTENT_BYTES
        self.writable_bytes = ROOMY
        self.free_bytes = ROOMY
        self.reserve_bytes = 0
        self.log: list[tuple[int, Event]] = []
        #: For whom commands are decided.
        self.caller: Caller | None = None
        self.numbers: dict[str, int] = {}
        self.epochs: dict[str, int] = {}

    def send(self, command: commands.Command) -> Decision:
        place = WriteSlot(self.position, self.free_bytes, self.writable_bytes, self.reserve_bytes)
        decision = self.engine.step(self.now_ms, place, command, None, self.caller)
        if decision.event is not None:
            self.log.append((self.now_ms, decision.event))
        if decision.owned is not None:
            self.log.append((self.now_ms, decision.owned))
        event = decision.event
        for part in event.parts if isinstance(event, Transacted) else (event,):
            if isinstance(part, Stored | Staged | Delayed) and part.position:
                self.position += record_bytes(part.size)
        return decision

    def tick(self, forward_ms: int = 0) -> list[Event]:
        self.now_ms += forward_ms
        events = self.engine.tick(self.now_ms)
        self.log += [(self.now_ms, event) for event in events]
        return events

    def hello(self, session: str = "alice", epoch: int = 0, nonce: int = 1, anonymous: bool = False) -> replies.Reply:
        reply = self.send(commands.Hello(session, epoch, nonce, 8, anonymous)).reply
        if isinstance(reply, replies.HelloReply):
            self.epochs[session] = reply.epoch
            self.numbers.setdefault(session, reply.last_number)
        return reply

    def do(self, operation: commands.Operation, session: str = "alice") -> replies.Reply:
        """Send the next command of the session. Creates the session if it does not exist."""
        if session not in self.epochs:
            self.hello(session)
        self.numbers[session] += 1
        return self.again(operation, session)

    def again(self, operation: commands.Operation, session: str = "alice", number: int = 0) -> replies.Reply:
        """Send a command under the last number, or a given one."""
        number = number or self.numbers[session]
        return self.send(commands.Numbered(session, self.epochs[session], number, number, operation)).reply

    def open(self, topic: str, subscriber: str) -> replies.OpenReply:
        reply = self.do(commands.Open(topic, subscriber), session="consumer")
        assert isinstance(reply, replies.OpenReply)
        return reply

    def get(self, owner: replies.OpenReply, subscriber: str, position: int = -1, ack: int = -1) -> Decision:
        if position < 0:
            position = owner.acked
        return self.send(commands.Get(owner.topic_id, subscriber, owner.epoch, position, ROOMY, 0, ack))

    def offsets(self, owner: replies.OpenReply, subscriber: str, position: int = -1) -> list[int]:
        return offsets_of(self.get(owner, subscriber, position).slices)

    def topic_of(self, name: str = "orders") -> Topic:
        return self.engine.state.topics[name]

    def get_any(
        self, owner: replies.OpenReply, pattern: str, subscriber: str, positions: Mapping[int, int] | None = None
    ) -> dict[str, list[int]]:
        """Return offsets by topic, in the order of a pattern get."""
        asked = tuple((positions or {}).items())
        decision = self.send(commands.GetAny(pattern, subscriber, owner.epoch, asked, ROOMY))
        assert isinstance(decision.reply, replies.GetAnyReply), decision.reply
        slices = iter(decision.slices)
        return {
            part.topic: offsets_of(islice(slices, count))
            for part, count in zip(decision.reply.parts, decision.counts, strict=True)
        }

    def ack_any(
        self, owner: replies.OpenReply, pattern: str, subscriber: str, acks: Mapping[int, int]
    ) -> replies.Reply:
        return self.send(commands.GetAny(pattern, subscriber, owner.epoch, (), 0, 0, tuple(acks.items()))).reply

    def image(self) -> list[object]:
        return image_of(self.engine)

    def replayed(self) -> Engine:
        """Return another engine that has applied the same events."""
        replica = Engine("broker", 1, EXTENT_BYTES, self.limits)
        for time_ms, event in self.log:
            replica.apply(time_ms, event)
        return replica


def image_of(engine: Engine) -> list[object]:
    """Return the content of a snapshot in a comparable form."""
    capture = engine.capture()
    images: list[object] = []
    while (chunk := capture.chunk()) is not None:
        images += msgspec.msgpack.decode(chunk)
    return images


def put(
    topic: str = "orders",
    count: int = 1,
    size: int = 100,
    create: bool = False,
    checksum: int = 0,
    *,
    ttl_ms: int = 0,
    due_ms: int = 0,
) -> commands.Put:
    return commands.Put(topic, commands.Envelope(count, size, checksum, ttl_ms, due_ms), create)


def offsets_of(slices: Iterable[Slice]) -> list[int]:
    return [offset for s in slices for offset in range(s.first_offset, s.first_offset + s.count)]


def code(reply: replies.Reply) -> str:
    assert isinstance(reply, replies.Refusal | replies.NotNow), reply
    return reply.code
