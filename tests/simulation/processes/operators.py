"""Processes that create and delete topics, registry entries and sessions; and callers with idempotency keys."""

from __future__ import annotations

from collections.abc import Callable

from oncemq.client.core.commands.pending import Pending
from oncemq.client.producer.encoding import make_put
from oncemq.protocol import commands, errors, replies
from oncemq.protocol.frames import Frame, decode_response, encode_request
from tests.simulation.checks.history import Attempt
from tests.simulation.environment.users import GATEWAY
from tests.simulation.environment.world import Violation
from tests.simulation.processes.process import Context, Process

_EXPECTED = (
    errors.BrokerAway,
    errors.NotNow,
    errors.TopicUnknown,
    errors.TopicExists,
    errors.LimitReached,
    errors.RegistryConflict,
    errors.SessionUnknown,
)


class Operator(Process):
    def __init__(
        self, context: Context, name: str, kept: list[commands.CreateTopic], churned: str, victim: str
    ) -> None:
        super().__init__(context, name)
        #: Topics that are created at the start.
        self._kept = kept
        self._churned = churned
        self._victim = victim
        self._idle = True
        #: (key, version) → value
        self.registered: dict[tuple[str, int], bytes] = {}
        self._values = 0
        context.subscriptions.deletable_topics.add(churned)

    def rules(self) -> list[str]:
        return ["role admin"]

    def begin(self) -> None:
        for operation in self._kept:
            self._do(operation)

    @property
    def is_settled(self) -> bool:
        return self.core is not None and self._idle

    def _do(self, operation: commands.Operation, then: Callable[[replies.Reply], None] | None = None) -> None:
        self._idle = False
        self.submit(operation, None, lambda pending: self._did(pending, operation, then))

    def _did(
        self, pending: Pending, operation: commands.Operation, then: Callable[[replies.Reply], None] | None
    ) -> None:
        if self.is_over(pending):
            return
        outcome = pending.error.code if pending.error is not None else pending.reply
        self.world.note(f"{self.name}: {operation} → {outcome}")
        if pending.error is not None and not isinstance(pending.error, _EXPECTED):
            raise Violation(f"{self.name}: {operation} got {pending.error.code}: {pending.error}")
        if isinstance(operation, commands.CreateTopic) and isinstance(pending.reply, replies.TopicReply):
            self.context.subscriptions.stays.setdefault(operation.name, pending.reply.topic_id)
        if then is not None and pending.reply is not None:
            then(pending.reply)
        self._pause()

    def _pause(self) -> None:
        self._idle = True
        self.later(int(self.random.random() * 8 * self.world.faults.think_ms), self._act)

    def _act(self) -> None:
        if self.world.healed:
            return
        chance = self.random.random()
        if chance < 0.15:
            self._do(commands.CreateTopic(self._churned))
        elif chance < 0.28:
            self._do(commands.DeleteTopic(self._churned))
        elif chance < 0.36:
            self.context.sessions.may_be_deleted(self._victim)
            self._do(commands.RemoveSession(self._victim))
        elif chance < 0.39:
            # Of another principal than that of the caller, which repeats its requests.
            self._do(commands.RemoveKeys("former caller", tuple(f"key {number}" for number in range(40))))
        elif chance < 0.42:
            self._do(commands.CreateTopic(f"idle {int(self.random.random() * 9)}"))
        else:
            self._register()

    def _register(self) -> None:
        self._values += 1
        value = f"registry {self._values}".encode()
        key = f"key {int(self.random.random() * 4)}"
        if key == "key 3" and self.random.random() < 0.5:
            self._do(commands.RegistrySet("sim", key, None))
            return
        version = int(self.random.random() * 4) if self.random.random() < 0.3 else -1
        operation = commands.RegistrySet("sim", key, value, version)
        self._do(operation, lambda reply: self._registered(operation, reply))

    def _registered(self, operation: commands.RegistrySet, reply: replies.Reply) -> None:
        assert isinstance(reply, replies.RegistryReply)
        assert operation.value is not None
        if operation.key == "key 3":
            return
        known = self.registered.setdefault((operation.key, reply.version), operation.value)
        if known != operation.value:
            raise Violation(f"inconsistent: version {reply.version} of {operation.key} was assigned twice")
        if operation.version >= 0 and reply.version != operation.version + 1:
            raise Violation(f"inconsistent: {operation} was answered by {reply}")


#: The id of requests that must be refused.
MISUSE = 1 << 40


class KeyedCaller:
    """Sends requests as a gateway does: without a session, with a key, repeated until there is a reply or a timeout.

    The timeout is much shorter than the lifetime of a key. After a timeout the outcome is unknown."""

    TIMEOUT_MS = 60
    GIVE_UP_MS = 400

    def __init__(self, context: Context, name: str, topic: str) -> None:
        self.context = context
        self.world = context.world
        self.name = name
        self.topic = topic
        self.user = name
        self.caller = context.users.caller(name)
        self.random = self.world.random(f"caller {name}")
        #: It is connected as a gateway, and sends everything for the user.
        self._is_gateway = context.users.exist and self.random.random() < 0.5
        self._peer = b""
        self._connects = 0
        self._count = 0
        self._request_id = 0
        self._frames: list[Frame] = []
        self._attempt: Attempt | None = None
        self._verdict: replies.Reply | None = None
        self._since_ms = 0
        self._repeats = 0
        self._is_topic_certain = False
        self.is_settled = True

    def rules(self) -> list[str]:
        return [f"write {self.topic}"]

    def problem(self) -> str:
        return f"{self.name} waits for its answer"

    def start(self) -> None:
        self._connect()
        self._pause()

    def _connect(self) -> None:
        """Connect to the next address, if there are several. Late replies still arrive."""
        if not self._peer or len(self.context.network.listeners) > 1:
            caller = self.context.users.caller(GATEWAY) if self._is_gateway else self.caller
            self._peer = self.context.network.connect(self.receive, self._connects, caller=caller)
            self._connects += 1

    def _pause(self) -> None:
        self.is_settled = True
        self.world.after(int(self.random.random() * 6 * self.world.faults.think_ms), self._act)

    def _act(self) -> None:
        if self.world.healed:
            return
        self.is_settled = False
        self._count += 1
        self._is_topic_certain = self.context.subscriptions.is_topic_certain(self.topic)
        value = f"{self.name}.{self._count}".encode()
        operation, payload = make_put(self.topic, False, [value])
        self._attempt = self.context.history.attempt(f"keyed put {value!r}", self.topic, [value])
        self._attempt.open += 1
        self._verdict = None
        self._since_ms = self.world.now_ms
        self._repeats = int(self.random.random() * 3)
        self._request_id += 1
        self._frames = encode_request(self._request_id, (self._command(operation),), (payload,))
        self._send()

    def _command(self, operation: commands.Operation) -> commands.Command:
        keyed = commands.Keyed(self.name, f"key {self._count}", operation)
        return commands.As(self.caller, keyed) if self._is_gateway else keyed

    def _send(self) -> None:
        self.context.wire.append((self.caller, self._frames))
        self.context.network.request(self._peer, self._frames)
        number, answered = self._count, self._verdict is not None
        self.world.after(self.TIMEOUT_MS, lambda: self._overdue(number, answered))

    def _overdue(self, number: int, answered: bool) -> None:
        if number != self._count or self.is_settled or answered != (self._verdict is not None):
            return
        if self.world.now_ms - self._since_ms > self.GIVE_UP_MS and not self.world.healed:
            self.world.note(f"{self.name} gave up key {self._count}")
            self._pause()
        else:
            self._connect()
            self._send()

    def _misuse(self) -> None:
        """Send a different body under a used key."""
        value = f"{self.name}.misused {self._count}".encode()
        operation, payload = make_put(self.topic, False, [value])
        self.context.history.attempt(f"another body under key {self._count}", self.topic, [value])
        self.context.network.request(self._peer, encode_request(MISUSE, (self._command(operation),), (payload,)))

    def receive(self, frames: list[Frame]) -> None:
        response, _ = decode_response(frames)
        reply = response.replies[0]
        if response.request_id == MISUSE:
            if not isinstance(reply, replies.NotNow) and getattr(reply, "code", "") != "KEY_REUSED":
                raise Violation(f"unexpected: another body under a used key was answered by {reply}")
            return
        if response.request_id != self._request_id or isinstance(reply, replies.NotNow) or self.is_settled:
            return
        attempt = self._attempt
        assert attempt is not None
        if self._verdict is None:
            self._verdict = reply
            self.world.note(f"{attempt.label} → {reply}")
            attempt.open -= 1
            if isinstance(reply, replies.PutReply):
                attempt.done += 1
                self.context.history.acknowledged(attempt, reply)
            else:
                attempt.dead += 1
                self._check_refusal(reply)
        elif self._verdict != reply:
            raise Violation(f"inconsistent: {attempt.label} was answered by {self._verdict} and then by {reply}")
        if self._repeats and self.world.now_ms - self._since_ms < self.GIVE_UP_MS:
            self._repeats -= 1
            self._send()
            if self.random.random() < 0.3:
                self._misuse()
        else:
            self._pause()

    def _check_refusal(self, reply: replies.Reply) -> None:
        gone = isinstance(reply, replies.Refusal) and reply.code == "TOPIC_UNKNOWN"
        if not gone or self._is_topic_certain:
            raise Violation(f"{self.name} was answered by {reply}")
