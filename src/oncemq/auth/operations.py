"""The table of what each native command and operation needs. The broker enforces it (broker/security/authorizer.py).
docs/reference/operations.md and the tests are generated from it. What has no row is refused.

http_operations.py is the same for the endpoints of the HTTP gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from oncemq.auth.rules import CONFIGURE, CONSUME, CREATE, DELETE, DESCRIBE, READ, WRITE
from oncemq.protocol import commands
from oncemq.protocol.patterns import is_pattern

#: Kinds of resources. Topics, by name: a verb on them must be granted.
TOPIC = "topic"
#: A topic by its name, if it does not exist.
NEW_TOPIC = "topic that does not exist"
#: A topic by its name, if it exists.
OLD_TOPIC = "topic that exists"
#: A topic by its name, if it exists only as long as it has subscriptions.
PASSING_TOPIC = "topic that goes with its last subscription"
#: Some topic, whichever.
ANY_TOPIC = "some topic"
#: Resources that belong to a user: only their owner may use them.
SESSION = "session"
#: A session that must have the user as its owner: nobody's is not enough.
OWNED_SESSION = "session of the user"
SUBSCRIPTION = "subscription"
#: A subscription by the id of its topic. The subscriber may be that of a pattern on the topic.
SUBSCRIPTION_ID = "subscription of a topic's id"
PRINCIPAL = "principal"
STAGE = "stage"
WRITER = "writer"
ENTRY = "registry entry"
#: Nothing but a user.
BROKER = "broker"

#: What is needed on resources that are not topics.
OWN = "own"
#: Roles of the caller. ANYONE is every user who is logged in.
ANYONE = "any user"
GATEWAY = "gateway"
ADMIN = "admin"


class Need(msgspec.Struct, frozen=True):
    """What a command needs: a verb on topics, or to own something, or a role."""

    verb: str
    kind: str
    #: Returns the resources in a command: names, or tuples for subscriptions and registry entries.
    of: Callable[[Any], Iterable[Any]] = lambda _: ("",)
    #: When it is needed, for people; empty = always.
    when: str = ""

    def __str__(self) -> str:
        text = self.verb if self.kind == BROKER else f"{self.verb} {self.kind}"
        if self.kind in (SUBSCRIPTION, SUBSCRIPTION_ID):
            text = "own subscription" if self.verb == OWN else f"{self.verb} topic, own subscription"
        return f"{text} ({self.when})" if self.when else text


def _each(name: str) -> Callable[[Any], Iterable[Any]]:
    return lambda command: (getattr(command, name),)


def _pair(first: str, second: str) -> Callable[[Any], Iterable[tuple[Any, Any]]]:
    return lambda command: ((getattr(command, first), getattr(command, second)),)


def _if(condition: Callable[[Any], object], of: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Iterable[Any]]:
    return lambda command: of(command) if condition(command) else ()


_TOPIC = _each("topic")
_NAME = _each("name")
_BY_NAME = _pair("topic", "subscriber")
_BY_ID = _pair("topic_id", "subscriber")

_USES_ID = (Need(CONSUME, SUBSCRIPTION_ID, _BY_ID),)
_DESCRIBES = (Need(DESCRIBE, TOPIC, _TOPIC),)
_LISTS = (Need(ANYONE, BROKER, when="the list has what the user may see"),)


def _stage_writer(command: commands.Stage | commands.Commit) -> Iterable[str]:
    return (command.writer,) if command.writer else ()


def _dead_topic(command: commands.Subscribe) -> Iterable[str]:
    return (command.sharing.dead_topic,) if command.sharing is not None and command.sharing.dead_topic else ()


def _commit_topics(command: commands.Commit) -> Iterable[str]:
    return [topic for topic, _ in command.by_topic()]


def _commit_stages(command: commands.Commit) -> Iterable[str]:
    return [name for _, stages in command.by_topic() for name, _ in stages]


def _created_puts(command: commands.Transact) -> Iterable[str]:
    return [put.topic for put in command.puts if put.create]


def _transacted(command: commands.Transact) -> Iterable[tuple[int, str]]:
    acks = [(ack.topic_id, ack.subscriber) for ack in command.acks]
    return acks + [(settle.topic_id, settle.subscriber) for settle in command.settles]


#: Commands, and the operations of `Numbered` and `Keyed` commands. These two need their row and that of the operation.
NEEDS: dict[type, tuple[Need, ...]] = {
    commands.Hello: (Need(OWN, SESSION, _each("session")),),
    commands.Bye: (Need(OWN, SESSION, _each("session")),),
    commands.Numbered: (Need(OWN, SESSION, _each("session")),),
    commands.Keyed: (Need(OWN, PRINCIPAL, _each("principal")),),
    commands.Get: _USES_ID,
    commands.Ack: _USES_ID,
    commands.GetAny: (Need(CONSUME, SUBSCRIPTION, _pair("pattern", "subscriber")),),
    commands.Take: _USES_ID,
    commands.Extend: _USES_ID,
    commands.Leave: _USES_ID,
    commands.Find: _DESCRIBES,
    commands.Measure: _DESCRIBES,
    commands.Schemas: _DESCRIBES,
    commands.Subscriptions: _DESCRIBES,
    commands.Read: (Need(READ, TOPIC, _TOPIC),),
    commands.Writer: (Need(OWN, WRITER, _each("writer")),),
    commands.Topics: _LISTS,
    commands.Patterns: _LISTS,
    commands.Sessions: _LISTS,
    commands.Shares: _LISTS,
    commands.Keys: (Need(OWN, PRINCIPAL, _each("principal")),),
    commands.RegistryList: (Need(GATEWAY, BROKER, when="the list has what the user may see"),),
    commands.Health: (Need(ANYONE, BROKER, when="where the journal is, is only shown to viewers"),),
    commands.Login: (Need(GATEWAY, BROKER),),
    commands.AuthReload: (Need(ADMIN, BROKER),),
    # Operations.
    commands.Void: (Need(ANYONE, BROKER),),
    commands.CreateTopic: (
        # In this order: a refusal does not tell whether the topic exists.
        Need(DESCRIBE, TOPIC, _NAME),
        Need(CREATE, NEW_TOPIC, _NAME),
        Need(CONFIGURE, OLD_TOPIC, _if(lambda command: command.alter, _NAME), when="with `alter`"),
        Need(CONFIGURE, PASSING_TOPIC, _NAME),
    ),
    commands.DeleteTopic: (Need(DELETE, TOPIC, _NAME),),
    commands.Subscribe: (
        Need(CONSUME, SUBSCRIPTION, _BY_NAME),
        Need(CREATE, NEW_TOPIC, _if(lambda command: not is_pattern(command.topic), _TOPIC)),
        Need(WRITE, TOPIC, _dead_topic, when="the dead-letter topic"),
    ),
    commands.Unsubscribe: (Need(OWN, SUBSCRIPTION, _BY_NAME),),
    commands.Open: (Need(CONSUME, SUBSCRIPTION, _BY_NAME),),
    commands.Close: (Need(OWN, SUBSCRIPTION_ID, _BY_ID),),
    commands.Seek: (Need(CONSUME, SUBSCRIPTION, _BY_NAME),),
    commands.Put: (
        Need(WRITE, TOPIC, _TOPIC),
        Need(CREATE, NEW_TOPIC, _if(lambda command: command.create, _TOPIC), when="with `create`"),
    ),
    commands.Settle: _USES_ID,
    commands.Transact: (
        Need(CONSUME, SUBSCRIPTION_ID, _transacted, when="of each ack"),
        Need(WRITE, TOPIC, lambda command: [put.topic for put in command.puts], when="of each put"),
        Need(CREATE, NEW_TOPIC, _created_puts, when="of each put with `create`"),
    ),
    commands.Stage: (
        Need(WRITE, TOPIC, _TOPIC),
        Need(OWN, STAGE, _each("stage")),
        Need(OWN, WRITER, _stage_writer),
    ),
    commands.Commit: (
        Need(WRITE, TOPIC, _commit_topics, when="each of them"),
        Need(WRITE, ANY_TOPIC, _if(lambda command: not command.by_topic(), lambda _: ("",)), when="without a topic"),
        Need(OWN, STAGE, _commit_stages, when="each of them"),
        Need(OWN, WRITER, _stage_writer),
    ),
    commands.Abort: (Need(OWN, STAGE, lambda command: command.stages, when="each of them"),),
    commands.RegistrySet: (Need(GATEWAY, BROKER), Need(OWN, ENTRY, _pair("namespace", "key"))),
    commands.RemoveSession: (Need(OWN, OWNED_SESSION, _each("session")),),
    commands.RemoveKeys: (Need(OWN, PRINCIPAL, _each("principal")),),
    commands.PutSchema: (Need(CONFIGURE, TOPIC, _TOPIC),),
    commands.Assign: (Need(ADMIN, BROKER),),
}
