"""A user who overhears what others send, and tries to do the same: in their sessions and with their keys, on their
subscriptions, stages and writers, or in their names. Everything must be refused, and no list may show what is theirs.

It never takes a name that nobody has: that is everybody's right, and the others would find their names taken.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from oncemq.auth.users import Quotas, user_of
from oncemq.protocol import commands, replies
from oncemq.protocol.commands import As, Command, Keyed, Numbered, Operation
from oncemq.protocol.frames import Frame, decode_request, decode_response, encode_request
from oncemq.protocol.patterns import is_pattern
from tests.simulation.environment.world import Violation
from tests.simulation.processes.process import Context

#: The topic of its own.
OWN_TOPIC = "spy"
#: What it does with one overheard request.
ATTACKS_MAX = 4
#: The intruder is a small user, so that the others find space for their keys.
QUOTAS = Quotas(keys=4)
_BY_ID = (
    commands.Get | commands.Ack | commands.Take | commands.Extend | commands.Leave | commands.Settle | commands.Close
)
#: Refusals of what does not exist any more, for a user who may see the topic.
_GONE = frozenset({"NOT_SUBSCRIBED", "SUBSCRIPTION_EXPIRED", "TOPIC_UNKNOWN", "TOPIC_GONE", "STAGE_UNKNOWN"})
_replace = msgspec.structs.replace


class Intruder:
    is_settled = True

    def __init__(self, context: Context, name: str, short_lived: frozenset[str]) -> None:
        """`short_lived`: sessions that may be deleted, so that their names may be free."""
        self.context = context
        self.world = context.world
        self.name = self.user = name
        self.random = self.world.random(f"intruder {name}")
        #: It has the rights of all others on their topics. Only what is theirs is protected from it.
        self._is_equal = self.random.random() < 0.4
        self._short_lived = short_lived
        self._peer = b""
        self._requests: list[Command] = []
        self._keys = 0
        #: Where the lists continue.
        self._after: dict[type, str] = {}

    def rules(self) -> list[str]:
        return ["all #"] if self._is_equal else [f"all {OWN_TOPIC}"]

    def problem(self) -> str:
        return ""

    def start(self) -> None:
        self._act()

    def _act(self) -> None:
        if self.world.healed:
            return
        if not self._peer or self.random.random() < 0.1:
            turn = int(self.random.random() * 2)
            caller = self.context.users.caller(self.user)
            self._peer = self.context.network.connect(self._receive, turn, caller=caller)
        self._send(self._look(), ())
        self._attack()
        self.world.after(1 + int(self.random.random() * self.world.faults.think_ms / 2), self._act)

    def _send(self, command: Command, payloads: tuple[Frame, ...]) -> None:
        self._requests.append(command)
        frames = encode_request(len(self._requests) - 1, (command,), payloads)
        self.context.network.request(self._peer, frames)

    # Attacks.

    def _attack(self) -> None:
        """Try some of what can be done with the last command of some kind."""
        overheard: dict[type, tuple[str, Command, tuple[Frame, ...]]] = {}
        for caller, frames in self.context.wire:
            request, payloads = decode_request(frames)
            for command, payload in zip(request.commands, payloads, strict=True):
                kind = type(command.operation if isinstance(command, Numbered) else command)
                overheard[kind] = (caller, command, payload)
        if not overheard:
            return
        caller, command, payload = self.random.choice(list(overheard.values()))
        attacks = list(self._attacks(caller, command))
        self.random.shuffle(attacks)
        for attack in attacks[:ATTACKS_MAX]:
            self._send(attack, payload if commands.payloads_of(attack) else ())

    def _attacks(self, caller: str, command: Command) -> Iterator[Command]:
        """Return what can be done with a command of somebody else."""
        if isinstance(command, As):
            yield command
            caller, command = command.caller, command.command
        if isinstance(command, Numbered):
            yield from self._with_session(command)
            yield from self._with_operation(user_of(caller), command.operation)
            yield As(caller, _replace(command, session=self.name), True)
        elif isinstance(command, Keyed):
            key = (command.principal, command.key)
            yield from (command, Keyed(*key, commands.Void()), commands.Keys(command.principal))
            yield self._keyed(commands.RemoveKeys(command.principal, (command.key,)))
        elif isinstance(command, _BY_ID):
            yield from self._with_subscription(command)
        elif isinstance(command, commands.GetAny):
            yield from (command, _replace(command, epoch=command.epoch + 1))
        elif not self._is_equal and isinstance(command, commands.Read):
            yield command
        yield As(caller, command)

    def _with_session(self, command: Numbered) -> Iterator[Command]:
        session, epoch, number = command.session, command.epoch, command.number
        yield command
        yield _replace(command, epoch=epoch + 1)
        yield _replace(command, number=number + 1, seen_below=number + 1)
        yield Numbered(session, epoch, number + 1, number + 1, commands.Void())
        yield commands.Hello(session, epoch, self._nonce(), 8)
        if "~" not in session and session not in self._short_lived:
            yield commands.Hello(session, 0, self._nonce(), 8)
            yield commands.Bye(session, epoch, True)
            yield self._keyed(commands.RemoveSession(session))
            yield self._keyed(commands.Assign(commands.SESSION, session, self.user))

    def _with_operation(self, victim: str, operation: Operation) -> Iterator[Command]:
        if not self._takes_free_name(operation):
            yield self._keyed(operation)
            yield Keyed(victim, f"key of {self.name}", operation)
        if isinstance(operation, commands.Subscribe | commands.Open):
            subscription = (operation.topic, operation.subscriber)
            yield self._keyed(commands.Open(*subscription, 300))
            yield self._keyed(commands.Unsubscribe(*subscription))
            yield self._keyed(commands.Seek(*subscription, commands.START_NEW))
        elif isinstance(operation, commands.Stage):
            yield self._keyed(commands.Abort((operation.stage,)))
            stages = ((operation.stage, operation.envelope.count),)
            yield self._keyed(commands.Commit("", 0, operation.topic, stages))
        if isinstance(operation, commands.Stage | commands.Commit) and operation.writer and operation.batch:
            yield commands.Writer(operation.writer)
            yield self._keyed(commands.Commit(operation.writer, operation.batch, "", ()))

    def _with_subscription(self, command: commands.Command) -> Iterator[Command]:
        assert isinstance(command, _BY_ID)
        place = (command.topic_id, command.subscriber, command.epoch)
        yield command
        yield _replace(command, epoch=command.epoch + 1)
        yield commands.Ack(*place, 1_000)
        yield self._keyed(commands.Close(*place))
        yield self._keyed(commands.Transact((commands.AckUpto(*place, 1_000),)))
        if isinstance(command, commands.Take):
            yield commands.Leave(*place, command.member)
            yield _replace(command, member=self.name, number=1)
        elif isinstance(command, commands.Extend):
            yield self._keyed(commands.Settle(*place, tuple((token, 0, 1_000) for token in command.tokens)))

    def _takes_free_name(self, operation: Operation) -> bool:
        """Return whether everybody with the same rights may do this, unless the name is taken."""
        if isinstance(operation, commands.Commit) and not operation.by_topic():
            return operation.batch == 0
        if not self._is_equal:
            return False
        if isinstance(operation, commands.Subscribe):
            certain = self.context.subscriptions.certain.get(operation.topic, ())
            return is_pattern(operation.topic) or operation.subscriber not in certain
        if isinstance(operation, commands.Stage | commands.Commit):
            # Batch 0 may be the first one of its writer.
            return not operation.writer or operation.batch == 0
        return isinstance(
            operation, commands.Put | commands.CreateTopic | commands.DeleteTopic | commands.PutSchema | commands.Abort
        )

    def _keyed(self, operation: Operation) -> Keyed:
        """An operation in its own name."""
        self._keys += 1
        return Keyed(self.user, f"key {self._keys}", operation)

    def _nonce(self) -> int:
        return self.random.getrandbits(62) + 1

    def _look(self) -> Command:
        """Look at what there is, and try what only gateways and administrators may do."""
        looks: list[Command] = [
            commands.Topics(limit=2),
            commands.Sessions(limit=2),
            commands.Patterns(),
            commands.Shares(commands.KEYS),
            commands.Shares(commands.REGISTRY),
            commands.Keys("caller"),
            commands.RegistryList("sim"),
            commands.Login(commands.NO_CREDENTIAL),
            commands.AuthReload(),
            commands.Health(),
            Keyed(self.user, "its topic", commands.CreateTopic(OWN_TOPIC)),
            self._keyed(commands.RegistrySet("sim", "key 0", b"its own")),
        ]
        if not self._is_equal:
            looks += [commands.Subscriptions("orders"), commands.Find("orders", 0), commands.Schemas("orders")]
        look = self.random.choice(looks)
        if isinstance(look, commands.Topics | commands.Sessions):
            return _replace(look, after=self._after.pop(type(look), ""))
        return look

    # Replies.

    def _receive(self, frames: list[Frame]) -> None:
        response, _ = decode_response(frames)
        command = self._requests[response.request_id]
        [reply] = response.replies
        code = reply.code if isinstance(reply, replies.Refusal | replies.NotNow) else type(reply).__name__
        self.world.tally[f"intruder: {code}"] += 1
        if isinstance(reply, replies.NotNow):
            return
        if isinstance(reply, replies.Refusal):
            is_right = reply.code in self._refusals(command)
        else:
            is_right = self._is_harmless(command, reply)
        if not is_right:
            raise Violation(f"{self.name} sent {command} and got {reply}")

    def _refusals(self, command: Command) -> frozenset[str]:
        """Return the codes that tell no more than the user may know."""
        if isinstance(command, Numbered):
            return frozenset({"SESSION_UNKNOWN"})
        codes = frozenset({"FORBIDDEN", "SESSION_UNKNOWN"})
        plain: Command | Operation = command
        if isinstance(command, Keyed) and command.principal == self.user:
            plain = command.operation
            codes |= {"QUOTA_REACHED", "LIMIT_REACHED"}
        if isinstance(plain, _BY_ID | commands.Transact):
            # It is not forbidden: a topic that the user may not see does not exist.
            codes = codes - {"FORBIDDEN"} | {"TOPIC_GONE"}
        return codes | _GONE | {"FORBIDDEN"} if self._is_equal else codes

    def _is_harmless(self, command: Command, reply: replies.Reply) -> bool:
        if isinstance(reply, replies.TopicsReply | replies.SessionsReply):
            self._after[type(command)] = reply.after
        if isinstance(reply, replies.TopicsReply):
            return self._is_equal or self._shows_own([info.name for info in reply.topics], reply.after, OWN_TOPIC)
        if isinstance(reply, replies.SessionsReply):
            return self._shows_own([info.name for info in reply.sessions], reply.after, self.name)
        if isinstance(reply, replies.PatternsReply):
            return self._is_equal or not reply.patterns
        if isinstance(reply, replies.SharesReply):
            return self._shows_own([info.owner for info in reply.shares], reply.after, self.name)
        if isinstance(reply, replies.HealthReply):
            return not reply.journal and not reply.counters
        if isinstance(reply, replies.TopicReply):
            return isinstance(command, Keyed) and command.operation == commands.CreateTopic(OWN_TOPIC)
        # An abort of stages that do not exist any more has no effect. If they do, their writer will miss them.
        is_void = isinstance(command, Keyed) and isinstance(command.operation, commands.Abort | commands.Void)
        return is_void and isinstance(reply, replies.Done)

    @staticmethod
    def _shows_own(names: list[str], after: str, own: str) -> bool:
        """Return whether a page has nothing but this name, also as the end of the page."""
        return set(names) <= {own} and (after in ("", own) or after.startswith("\0"))
