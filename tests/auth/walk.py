"""One example of every native command and operation, to be sent by users with and without the right to it.

The commands are sent by whatever a test gives: a broker in this process, or real connections.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from oncemq.auth import operations
from oncemq.auth.operations import NEEDS
from oncemq.protocol import commands, replies
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import (
    NO_CREDENTIAL,
    SESSION,
    START_EARLIEST,
    Command,
    Envelope,
    Hello,
    Keyed,
    Numbered,
    Operation,
)

#: Those who send. ANONYMOUS has no credentials, STRANGER no rights, OWNER all rights on `orders.#`, OTHER on `bills.#`.
ANONYMOUS, STRANGER, OWNER, OTHER, ROOT, GATE = "anonymous", "stranger", "owner", "other", "root", "gate"
RULES = {
    STRANGER: (),
    OWNER: ("all orders.#",),
    OTHER: ("all bills.#",),
    ROOT: ("role admin",),
    GATE: ("role gateway",),
}
#: How a refusal looks for those who may not know that something exists.
REFUSALS = {"FORBIDDEN", "TOPIC_GONE", "SESSION_UNKNOWN"}

Send = Callable[[str, Command, Sequence[bytes]], replies.Reply]

_PAYLOAD = encode_batch([b"one"])
_ENVELOPE = Envelope(1, len(_PAYLOAD), checksum(_PAYLOAD))
_GET_BYTES = 1_000_000


class Walk:
    """Everything that the examples are about, made by OWNER. Each walk has names of its own."""

    _counter = itertools.count(1)

    def __init__(self, send: Send) -> None:
        self._send = send
        self.number = next(self._counter)
        self.topic = f"orders.{self.number}"
        self.pattern = f"orders.{self.number}.#"
        self._numbers: dict[str, list[int]] = {}
        self._keys = itertools.count()
        stored = self.do(OWNER, commands.Put(self.topic, _ENVELOPE, True), [_PAYLOAD])
        assert isinstance(stored, replies.PutReply), stored
        self.topic_id = stored.topic_id
        for subscriber, sharing in (("kitchen", None), ("workers", commands.Sharing())):
            self._expect(self.do(OWNER, commands.Subscribe(self.topic, subscriber, START_EARLIEST, sharing)))
        self._expect(self.do(OWNER, commands.Subscribe(self.pattern, "kitchen")))
        self.do(OWNER, commands.Put(self.topic, _ENVELOPE), [_PAYLOAD])
        self.epoch = self._open(self.topic, "kitchen")
        self.shared_epoch = self._open(self.topic, "workers")
        self.pattern_epoch = self._open(self.pattern, "kitchen")
        taken = self.send(OWNER, self._take(1))
        assert isinstance(taken, replies.TakeReply), taken
        self.token = taken.token
        self.stage = f"stage-{self.number}"
        self.writer = f"writer-{self.number}"
        self._expect(self.do(OWNER, self._staged(self.stage), [_PAYLOAD]))
        self._expect(self.do(OWNER, self._staged(f"{self.stage}-0", 1), [_PAYLOAD]))
        self._expect(self.do(OWNER, commands.Commit(self.writer, 1, self.topic, ((f"{self.stage}-0", 1),))))
        self.victim = f"victim-{self.number}"
        begun = self.send(OWNER, Hello(self.victim, 0, 1, 8))
        assert isinstance(begun, replies.HelloReply), begun
        self.victim_epoch = begun.epoch

    # Sending.

    def send(self, who: str, command: Command, payloads: Sequence[bytes] = ()) -> replies.Reply:
        return self._send(who, command, payloads)

    def do(self, who: str, operation: Operation, payloads: Sequence[bytes] = ()) -> replies.Reply:
        """Send an operation under the next number of the sender's own session."""
        if who not in self._numbers:
            begun = self.send(who, Hello(self.session(who), 0, self.number, 64))
            self._numbers[who] = [begun.epoch, 0] if isinstance(begun, replies.HelloReply) else [1, 0]
        epoch_and_number = self._numbers[who]
        epoch_and_number[1] += 1
        epoch, number = epoch_and_number
        return self.send(who, Numbered(self.session(who), epoch, number, number, operation), payloads)

    def session(self, who: str) -> str:
        return f"walk-{self.number}-{who}"

    def _open(self, topic: str, subscriber: str) -> int:
        opened = self.do(OWNER, commands.Open(topic, subscriber))
        assert isinstance(opened, replies.OpenReply), opened
        return opened.epoch

    @staticmethod
    def _expect(reply: replies.Reply) -> None:
        assert not isinstance(reply, replies.Refusal | replies.NotNow), reply

    # Examples.

    def _staged(self, stage: str, batch: int = 2) -> commands.Stage:
        return commands.Stage(stage, self.topic, self.writer, batch, _ENVELOPE)

    def _take(self, number: int) -> commands.Take:
        epoch = self.shared_epoch
        return commands.Take(self.topic_id, "workers", epoch, f"member-{self.number}", number, 1, _GET_BYTES)

    def example(self, kind: type, who: str) -> replies.Reply:
        """Send the example of a command or an operation."""
        made: Any = self.examples()[kind]()
        command, payloads = made if isinstance(made, tuple) else (made, ())
        if kind is Numbered:
            return self.do(who, command, payloads)
        if kind is Keyed:
            key = f"{self.number}-{who}-{next(self._keys)}"
            return self.send(who, Keyed(OWNER, key, command), payloads)
        if kind in OPERATIONS:
            return self.do(who, command, payloads)
        return self.send(who, command, payloads)

    def examples(self) -> dict[type, Callable[[], Any]]:
        topic, by_id = self.topic, (self.topic_id, "kitchen", self.epoch)
        shared = (self.topic_id, "workers", self.shared_epoch)
        put = commands.Put(topic, _ENVELOPE)
        return {
            Hello: lambda: Hello(self.victim, 0, 7, 8),
            commands.Bye: lambda: commands.Bye(self.victim, self.victim_epoch, True),
            Numbered: lambda: (put, [_PAYLOAD]),
            Keyed: lambda: (put, [_PAYLOAD]),
            commands.Get: lambda: commands.Get(*by_id, 1, _GET_BYTES),
            commands.Ack: lambda: commands.Ack(*by_id, 2),
            commands.GetAny: lambda: commands.GetAny(self.pattern, "kitchen", self.pattern_epoch, (), _GET_BYTES),
            commands.Take: lambda: self._take(2),
            commands.Extend: lambda: commands.Extend(*shared, (self.token,)),
            commands.Leave: lambda: commands.Leave(*shared, f"member-{self.number}"),
            commands.Find: lambda: commands.Find(topic, 0),
            commands.Measure: lambda: commands.Measure(topic, 0, 1),
            commands.Schemas: lambda: commands.Schemas(topic),
            commands.Subscriptions: lambda: commands.Subscriptions(topic),
            commands.Read: lambda: commands.Read(topic, START_EARLIEST, _GET_BYTES),
            commands.Writer: lambda: commands.Writer(self.writer),
            commands.Topics: commands.Topics,
            commands.Patterns: commands.Patterns,
            commands.Sessions: commands.Sessions,
            commands.Shares: lambda: commands.Shares(commands.KEYS),
            commands.Keys: lambda: commands.Keys(OWNER),
            commands.RegistryList: lambda: commands.RegistryList("walk"),
            commands.Health: commands.Health,
            commands.Login: lambda: commands.Login(NO_CREDENTIAL),
            commands.AuthReload: commands.AuthReload,
            commands.Void: commands.Void,
            commands.CreateTopic: lambda: commands.CreateTopic(topic, quota_bytes=1_000_000, alter=True),
            commands.DeleteTopic: lambda: commands.DeleteTopic(topic),
            commands.Subscribe: lambda: commands.Subscribe(topic, "cellar"),
            commands.Unsubscribe: lambda: commands.Unsubscribe(topic, "kitchen"),
            commands.Open: lambda: commands.Open(topic, "kitchen"),
            commands.Close: lambda: commands.Close(*by_id),
            commands.Seek: lambda: commands.Seek(topic, "kitchen"),
            commands.Put: lambda: (put, [_PAYLOAD]),
            commands.Settle: lambda: commands.Settle(*shared, ((self.token, 0, 1),)),
            commands.Transact: lambda: (commands.Transact((commands.AckUpto(*by_id, 1),), (), (put,)), [_PAYLOAD]),
            commands.Stage: lambda: (self._staged(self.stage), [_PAYLOAD]),
            commands.Commit: lambda: commands.Commit(self.writer, 2, topic, ((self.stage, 1),)),
            commands.Abort: lambda: commands.Abort((self.stage,)),
            commands.RegistrySet: lambda: commands.RegistrySet("walk", f"key-{self.number}", b"value"),
            commands.RemoveSession: lambda: commands.RemoveSession(self.victim),
            commands.RemoveKeys: lambda: commands.RemoveKeys(OWNER, ("key",)),
            commands.PutSchema: lambda: commands.PutSchema(topic, None, "none"),
            commands.Assign: lambda: commands.Assign(SESSION, self.victim, OTHER),
        }


OPERATIONS = frozenset(Operation.__args__)


def role_of(kind: type) -> str:
    """Return who has the right to the example of a command."""
    verbs = {need.verb for need in NEEDS[kind]}
    if operations.ADMIN in verbs:
        return ROOT
    return GATE if operations.GATEWAY in verbs else OWNER


def is_for_anyone(kind: type) -> bool:
    return all(need.verb == operations.ANYONE for need in NEEDS[kind])


def check(walk: Walk, kind: type) -> None:
    """Send the example as everybody, last as those who may. `send` returns a refusal for ANONYMOUS in any case."""
    refused = walk.example(kind, ANONYMOUS)
    assert isinstance(refused, replies.Refusal), refused
    assert refused.code == "UNAUTHENTICATED"
    for who in (STRANGER, OTHER, *((OWNER,) if role_of(kind) != OWNER else ())):
        reply = walk.example(kind, who)
        if is_for_anyone(kind):
            assert not isinstance(reply, replies.Refusal), reply
            assert who == OWNER or walk.topic not in repr(reply), "it shows what the user may not see"
        else:
            assert isinstance(reply, replies.Refusal), (who, reply)
            assert reply.code in REFUSALS, (who, reply)
    reply = walk.example(kind, role_of(kind))
    if kind is commands.Login:
        # The gateway may ask, and the answer is about somebody without a credential.
        assert isinstance(reply, replies.Refusal)
        assert reply.code == "UNAUTHENTICATED"
    elif kind is commands.PutSchema:
        assert isinstance(reply, replies.Refusal)
        assert reply.code not in REFUSALS
    else:
        assert not isinstance(reply, replies.Refusal | replies.NotNow), reply
