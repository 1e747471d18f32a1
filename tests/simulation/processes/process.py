"""A client process: the real client core and driver in virtual time. Everything that they send and receive is observed.

A crash loses its memory. The reply to the next hello then decides the commands that were in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf, isinf

import msgspec

from oncemq.client.core.commands.pending import Pending
from oncemq.client.core.core import Core
from oncemq.client.core.options import Options
from oncemq.client.runtime.driver import Driver
from oncemq.protocol import errors, replies
from oncemq.protocol.commands import (
    As,
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
from tests.simulation.environment.users import SimUsers
from tests.simulation.environment.world import Violation, World
from tests.simulation.processes.transports import (
    ObservedTransport,
    PacketTransport,
    SimDriver,
    SimStreamTransport,
    SimTransport,
)

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
Payload = bytes | tuple[bytes, ...] | None
#: Requests that can be overheard.
WIRE_MAX = 40


def _plain(command: Command) -> Command:
    """Return a command without the one for whom a gateway sends it."""
    return command.command if isinstance(command, As) else command


class Context:
    """What all processes of a run share."""

    def __init__(self, world: World, network: SimNetwork, users: SimUsers) -> None:
        self.world = world
        self.network = network
        self.users = users
        #: The last requests that were sent, and who has sent them.
        self.wire: deque[tuple[str, list[Frame]]] = deque(maxlen=WIRE_MAX)
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
        #: Whether its bytes are a stream. Otherwise they are packets.
        self._is_stream = self.world.random(f"transport {name}").random() < self.world.stream_faults.share
        self._transport: SimTransport | None = None
        self._driver: Driver | None = None
        self._alarm_ms: float = inf
        self._alarms = 0
        self._submits = 0
        self._requests: dict[int, tuple[Command, ...]] = {}
        self._done: list[tuple[Answered, Pending]] = []

    # In runs with users.

    @property
    def user(self) -> str:
        """Its user. It shares what it owns with its rival."""
        return self.name.rstrip("'")

    @property
    def caller(self) -> str:
        return self.context.users.caller(self.user)

    @property
    def token(self) -> str:
        return self.context.users.token(self.user)

    def rules(self) -> list[str]:
        """The rights that it needs."""
        raise NotImplementedError

    # Start and end.

    def session(self) -> str:
        return f"{self.name}~{self.incarnation}" if self.anonymous else self.name

    def start(self) -> None:
        self.incarnation += 1
        self.core = Core(self.session(), self.anonymous, self.random.getrandbits(62) + 1, OPTIONS)
        if self.anonymous:
            self.context.sessions.may_be_deleted(self.core.session)
        self._connect(self.core)
        self.begin()
        self.pump()

    def crash(self) -> None:
        if self.core is None:
            return
        self.world.note(f"{self.name} crashes")
        self.world.tally["client: crash"] += 1
        self.stop(is_silent=self._is_stream and self.random.random() < 0.3)
        self.world.after(20 + int(self.random.random() ** 2 * 500), self.start)

    def stop(self, *, is_silent: bool = False) -> None:
        """End the process. `is_silent`: by a power loss, which the broker is not told."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.crash(is_silent=is_silent)
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

    def submit(self, operation: Operation, payload: Payload, answered: Answered) -> Pending:
        assert self.core is not None
        self._submits += 1
        if self._submits % 2 and isinstance(operation, Put) and isinstance(payload, bytes):
            # The short path of a blocking client, where it can be used.
            now_ms = float(self.world.now_ms)
            frames = self.core.alone(operation, payload, now_ms)
            if frames is not None:
                self.world.tally["client: put alone"] += 1
                self._send(frames)
                return self._watch(self.core.sent_alone(operation, payload, frames, now_ms), answered)
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

    def _connect(self, core: Core) -> None:
        network, turn = self.context.network, self.incarnation - 1
        kind = SimStreamTransport if self._is_stream else PacketTransport
        self._transport = kind(network, self, turn)
        self._driver = SimDriver(core, self._observed())

    def _observed(self) -> ObservedTransport:
        assert self._transport is not None
        return ObservedTransport(self._transport, self.world, self._send, self._observe)

    def cut_off(self, duration_ms: int) -> None:
        if self._transport is not None:
            self._transport.cut_off(duration_ms)

    def wake(self) -> None:
        self.pump()

    def sleep(self, duration_ms: float) -> None:
        raise AssertionError("this process does not block")

    def pump(self) -> None:
        """Drive the core, and handle what was answered."""
        while self.core is not None:
            assert self._driver is not None
            assert self._transport is not None
            self._transport.wait(0.0)
            self._driver.pump()
            if not self._done:
                is_ready = self._transport.is_ready
                due_ms = min(self.core.next_deadline_ms(), self._transport.retry_ms)
                self._set_alarm(self.world.now_ms if is_ready else due_ms)
                return
            self._handle_done()

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
        self.context.wire.append((self.caller, frames))
        request = _decode_request(frames[0])
        self._requests[request.request_id] = request.commands
        for command in map(_plain, request.commands):
            if isinstance(command, Numbered):
                self.context.sessions.model(command.session).sent(command, self.context.attempts_of(command.operation))
                self._on_sent(command)
        if self._transport is not None:
            self._transport.send(frames)

    def _observe(self, frames: Sequence[Frame]) -> None:
        try:
            response = _decode_response(frames[0])
        except (msgspec.MsgspecError, ValueError) as error:
            raise Violation(f"{self.name} got a reply that it can't decode: {error}") from None
        commands = self._requests.get(response.request_id)
        if commands is None:
            raise Violation(f"{self.name} got a reply to request {response.request_id}, which it did not send")
        if len(commands) != len(response.replies):
            raise Violation(f"{self.name} sent {len(commands)} commands and got {response.replies}")
        for command, reply in zip(map(_plain, commands), response.replies, strict=True):
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
