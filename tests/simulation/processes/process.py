"""A client process: the real client core, driven by virtual time, with all of its packets observed.

A crash loses its memory. The reply to the next hello then decides the commands that were in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isinf

import msgspec

from oncemq.client.core.commands.pending import Pending
from oncemq.client.core.commands.wire import WireBytes
from oncemq.client.core.core import Core
from oncemq.client.core.options import Options
from oncemq.protocol import errors, replies
from oncemq.protocol.commands import (
    Command,
    Commit,
    Hello,
    Numbered,
    Operation,
    Put,
    Seek,
    Settle,
    Transact,
    envelopes_of,
)
from oncemq.protocol.frames import Frame, Request, Response
from tests.simulation.checks.history import Attempt, History
from tests.simulation.checks.leases import Leases
from tests.simulation.checks.sessions import Sessions
from tests.simulation.checks.subscriptions import Subscriptions
from tests.simulation.environment.network import SimNetwork
from tests.simulation.environment.world import Violation, World

OPTIONS = Options(
    timeout_ms=60.0,
    tries=4,
    window=6,
    pause_ms=20.0,
    pause_short_ms=5.0,
    pause_ms_max=100.0,
    wait_slack_ms=60.0,
    request_commands_max=4,
    next_address_ms=15.0,
)

_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_response = msgspec.msgpack.Decoder(Response).decode

Answered = Callable[[Pending], None]


class Context:
    """What all processes of a run share."""

    def __init__(self, world: World, network: SimNetwork) -> None:
        self.world = world
        self.network = network
        self.history = History(world)
        self.sessions = Sessions(world, self.history, self._begun, self._decided)
        self.subscriptions = Subscriptions()
        self.leases = Leases(world, self.history)
        #: The attempt of an operation, by checksum of its payload or by commit.
        self.attempts: dict[object, Attempt] = {}
        self.commits: dict[Commit, tuple[Attempt, ...]] = {}
        #: (topic, subscriber) of subscriptions that may be moved by a seek.
        self.seekable: list[tuple[str, str]] = []
        #: Topics whose messages may be deleted by time to live or quota.
        self.lossy: set[str] = set()

    def attempts_of(self, operation: Operation) -> tuple[Attempt, ...]:
        """Return the attempts of an operation."""
        if isinstance(operation, Commit):
            return self.commits.get(operation, ())
        if isinstance(operation, Put | Transact):
            return tuple(self.attempts[envelope.checksum] for envelope in envelopes_of(operation))
        return ()

    def _begun(self, operation: Operation) -> None:
        if isinstance(operation, Settle | Transact):
            self.leases.sent(operation)
        elif isinstance(operation, Seek):
            self.subscriptions.seek_sent(operation)

    def _decided(self, operation: Operation, verdict: replies.Verdict | None) -> None:
        if isinstance(operation, Settle | Transact):
            self.leases.decided(operation, verdict)
        elif isinstance(operation, Seek):
            self.subscriptions.sought(operation, verdict)
        elif isinstance(verdict, replies.CommitReply) and verdict.before:
            self._committed_before(operation)

    @staticmethod
    def _committed_before(operation: Operation) -> None:
        if isinstance(operation, Commit) and not operation.writer:
            raise Violation(f"lost: {operation} is a one-off, but was answered as a repeated one")


class Process:
    """One client. Subclasses implement the workload: `begin`, which runs after each start, and `is_settled`."""

    anonymous = False
    #: The bandwidth of its connection, in each direction; 0: unlimited.
    bytes_per_ms = 0

    def __init__(self, context: Context, name: str) -> None:
        self.context = context
        self.world = context.world
        self.name = name
        self.random = self.world.random(f"process {name}")
        self.incarnation = 0
        self.core: Core | None = None
        self._peer = b""
        #: Index of the next address to connect to.
        self._connects = 0
        self._alarm_ms: float = inf
        self._alarms = 0
        self._requests: dict[int, tuple[Command, ...]] = {}
        self._done: list[tuple[Answered, Pending]] = []

    # Start and end.

    def session(self) -> str:
        return f"{self.name}~{self.incarnation}" if self.anonymous else self.name

    def start(self) -> None:
        self.incarnation += 1
        self.core = Core(self.session(), self.anonymous, self.random.getrandbits(62) + 1, OPTIONS)
        if self.anonymous:
            self.context.sessions.may_be_deleted(self.core.session)
        self._connect()
        self.begin()
        self.pump()

    def crash(self) -> None:
        if self.core is None:
            return
        self.world.note(f"{self.name} crashes")
        self.world.tally["client: crash"] += 1
        self.stop()
        self.world.after(20 + int(self.random.random() ** 2 * 500), self.start)

    def stop(self) -> None:
        self.context.network.disconnect(self._peer)
        self.core = None
        self._alarms += 1
        self._alarm_ms = inf
        self._requests = {}
        self._done = []

    def begin(self) -> None:
        raise NotImplementedError

    @property
    def is_settled(self) -> bool:
        raise NotImplementedError

    def problem(self) -> str:
        """Describe what it waits for."""
        core = self.core
        waiting = (
            ""
            if core is None
            else f", {len(core._window)} numbered and {len(core._commands.unnumbered)} other commands"
        )
        return f"{self.name} is not settled{waiting}"

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run an action later, unless the process crashes before."""
        started = self.incarnation

        def act() -> None:
            if self.core is not None and self.incarnation == started:
                action()
                self.pump()

        self.world.after(delay_ms, act)

    # Commands.

    def submit(self, operation: Operation, payload: bytes | tuple[bytes, ...] | None, answered: Answered) -> Pending:
        assert self.core is not None
        return self._watch(self.core.submit(operation, payload), answered)

    def ask(self, command: Command, answered: Answered) -> Pending:
        assert self.core is not None
        return self._watch(self.core.ask(command), answered)

    def _watch(self, pending: Pending, answered: Answered) -> Pending:
        if pending.done:
            self._done.append((answered, pending))
        else:
            pending.on_done = lambda done: self._done.append((answered, done))
        return pending

    # Driving the core.

    def _connect(self) -> None:
        self.context.network.disconnect(self._peer)
        self._peer = self.context.network.connect(self.receive, self._connects, self.bytes_per_ms)
        self._connects += 1

    def cut_off(self, duration_ms: int) -> None:
        self.context.network.cut_off(self._peer, duration_ms)

    def pump(self) -> None:
        """Drive the core, as the driver of the client does."""
        core = self.core
        while core is not None:
            now_ms = float(self.world.now_ms)
            for frames in core.outgoing(now_ms):
                self._send(frames)
            deadline_ms = core.next_deadline_ms()
            if deadline_ms <= now_ms and core.check(now_ms, self.wire_bytes()):
                self.world.tally["client: reconnect"] += 1
                self._connect()
            elif not self._done:
                self._set_alarm(deadline_ms if deadline_ms > now_ms else core.next_deadline_ms())
                return
            self._handle_done()
            core = self.core

    def wire_bytes(self) -> WireBytes:
        """What the system would count."""
        return self.context.network.wire_bytes(self._peer)

    def _handle_done(self) -> None:
        while self._done:
            done, self._done = self._done, []
            for answered, pending in done:
                if self.core is not None:
                    answered(pending)

    def _set_alarm(self, time_ms: float) -> None:
        if time_ms >= self._alarm_ms or isinf(time_ms):
            return
        self._alarm_ms = time_ms
        self._alarms += 1
        number = self._alarms
        self.world.at(max(self.world.now_ms + 1, int(time_ms)), lambda: self._alarm(number))

    def _alarm(self, number: int) -> None:
        if number == self._alarms and self.core is not None:
            self._alarm_ms = inf
            self.pump()

    def _send(self, frames: list[Frame]) -> None:
        request = _decode_request(frames[0])
        self._requests[request.request_id] = request.commands
        for command in request.commands:
            if isinstance(command, Numbered):
                self.context.sessions.model(command.session).sent(command, self.context.attempts_of(command.operation))
                self._on_sent(command)
        self.context.network.request(self._peer, frames)

    def receive(self, frames: list[Frame]) -> None:
        core = self.core
        if core is None:
            return
        self._observe(frames)
        core.receive(float(self.world.now_ms), frames)
        self._handle_done()
        self.pump()

    def _observe(self, frames: list[Frame]) -> None:
        response = _decode_response(frames[0])
        commands = self._requests[response.request_id]
        if len(commands) != len(response.replies):
            raise Violation(f"{self.name} sent {len(commands)} commands and got {response.replies}")
        for command, reply in zip(commands, response.replies, strict=True):
            if isinstance(reply, replies.NotNow):
                self.world.tally["not now: " + reply.code] += 1
            elif isinstance(reply, replies.Refusal):
                self.world.tally["refused: " + reply.code] += 1
                if reply.code in ("BROKER_BUG", "RECORD_CORRUPT"):
                    raise Violation(f"{self.name}: {command} was answered by {reply}")
            if isinstance(command, Numbered):
                self.context.sessions.model(command.session).answered(command, reply)
            elif isinstance(command, Hello) and isinstance(reply, replies.HelloReply):
                self.context.sessions.model(command.session).on_hello(command, reply)
            self._on_reply(command, reply)

    def _on_sent(self, command: Numbered) -> None:
        """Hook: a numbered command was sent."""

    def _on_reply(self, command: Command, reply: replies.Reply) -> None:
        """Hook: a command was answered."""

    # Errors.

    def is_over(self, pending: Pending) -> bool:
        """Return whether the session has ended for this process. Then it stops, or restarts later."""
        error = pending.error
        assert self.core is not None
        if self.core.finished is None or not isinstance(error, errors.Fenced | errors.SessionUnknown):
            return False
        self.world.note(f"{self.name} is finished: {error.code}")
        self.world.tally["client: " + error.code] += 1
        self.stop()
        if not (self.world.healed and self.gives_way):
            self.world.after(50 + int(self.random.random() * 400), self._start_again)
        return True

    def _start_again(self) -> None:
        if self.core is None and not (self.world.healed and self.gives_way):
            self.start()

    @property
    def gives_way(self) -> bool:
        """Whether it leaves the subscription to its rival in the end.

        All others restart, because a late hello of a dead process may fence its successor.
        """
        return self.name.endswith("'")
