"""How a session is opened: the hello of each connection, and what its answer means.

The first hello of a session has epoch 0 and takes the session over. Later ones carry its epoch and resume it. The core
of an outbox that was connected before sends a *probe* first, which shows whether this is the outbox's broker and
whether it knows the session: a hello with epoch 0 would create the session again.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.client.core.commands.command_table import CommandTable
from oncemq.client.core.commands.outbox_queue import OutboxQueue
from oncemq.client.core.commands.pending import PendingCommand
from oncemq.client.core.commands.requests import SentRequest
from oncemq.client.core.failover import Failover
from oncemq.client.core.options import Options
from oncemq.client.outbox.contract import is_transient
from oncemq.protocol import errors
from oncemq.protocol.commands import Command, Health, Hello
from oncemq.protocol.frames import Frame, encode_request
from oncemq.protocol.replies import Done, HealthReply, HelloReply, NotNow, Refusal, Reply

#: How often an outbox tries to connect with credentials that were refused. A broker counts such attempts, and limits
#: them for all clients of an address.
_REFUSED_PAUSE_MS = 5_000.0


class Handshake:
    """Sends hellos and probes, and opens the session with their answers."""

    def __init__(self, options: Options, commands: CommandTable, failover: Failover) -> None:
        self._options = options
        self._commands = commands
        self._failover = failover
        self._session = commands.session
        self._window = commands.window
        self._requests = commands.requests
        self._backoff = commands.backoff
        self._outbox = outbox = commands.outbox
        self._must_probe = outbox is not None and bool(outbox.outbox.broker_id)

    # The hello.

    @property
    def due_ms(self) -> float:
        """When a hello may be sent; infinite if none is needed or one is under way."""
        session = self._session
        if session.is_open or session.hello is not None:
            return float("inf")
        is_wanted = session.epoch or session.waiters or self._waiting_commands()
        return session.hello_not_before_ms if is_wanted else float("inf")

    def _waiting_commands(self) -> list[PendingCommand]:
        """Commands that can't be sent before the session is open."""
        return self._commands.all() if self._failover.holds_unnumbered else list(self._window)

    def request(self, now_ms: float) -> list[Frame]:
        """The next hello, or probe."""
        session, window_size, is_probe = self._session, self._options.window, self._must_probe
        answered_number = self._window.seen_below - 1
        sent = self._requests.add_hello(now_ms, self._options.timeout_ms, answered_number, is_probe=is_probe)
        session.hello = sent
        for pending in [*session.waiters, *(command.pending for command in self._waiting_commands())]:
            if pending is not None:
                pending.start(now_ms)
        hello = Hello(session.name, session.epoch, session.nonce, window_size, session.anonymous)
        commands: tuple[Command, ...] = (hello,)
        if is_probe:
            # A hello with epoch 1 creates nothing: it is fenced, answered, or the session is unknown.
            commands = (Health(), Hello(session.name, 1, session.nonce, window_size))
        return self._requests.encoded(sent, encode_request(sent.request_id, commands))

    def restart(self) -> bool:
        """An idle anonymous session has expired, and nothing of it is in doubt: continue under a new name. False: the
        session has a name of its own."""
        if not self._session.renew():
            return False
        self._backoff.reset()
        self._failover.forget_numbers()
        given_up = [command for command in self._window if command.pending is None]
        self._requests.forget([*self._window.requeue_all(), *given_up])
        return True

    # Its answer.

    def fits(self, sent: SentRequest, replies: Sequence[Reply]) -> bool:
        """Whether these replies can be the answer to this hello or probe."""
        if not sent.is_probe:
            return len(replies) == 1 and self._fits_hello(replies[0])
        if len(replies) == 1:
            return isinstance(replies[0], Refusal)
        return (
            len(replies) == 2
            and isinstance(replies[0], HealthReply)
            and isinstance(replies[1], HelloReply | NotNow | Refusal)
        )

    def _fits_hello(self, reply: Reply) -> bool:
        if isinstance(reply, HelloReply):
            return self._session.epoch in (0, reply.epoch)
        return isinstance(reply, NotNow | Refusal)

    def receive(self, now_ms: float, sent: SentRequest, replies: Sequence[Reply]) -> None:
        """Process the answer to a hello or probe."""
        reply = replies[0]
        if sent.is_probe:
            self._receive_probe(now_ms, sent, replies)
        elif isinstance(reply, HelloReply):
            self._receive_hello(now_ms, sent, reply)
        else:
            self._receive_no(now_ms, sent, reply)

    def _receive_probe(self, now_ms: float, sent: SentRequest, replies: Sequence[Reply]) -> None:
        outbox = self._outbox
        if not self._must_probe or outbox is None:
            return
        health, answer = replies[0], replies[-1]
        wrong_broker = outbox.wrong_broker(health.broker_id) if isinstance(health, HealthReply) else None
        code = answer.code if isinstance(answer, Refusal) else ""
        if wrong_broker is not None:
            self._commands.finish(wrong_broker)
        elif code == "SESSION_UNKNOWN":
            self._commands.finish(outbox.session_unknown())
        elif isinstance(answer, HelloReply) or code == "FENCED":
            self._must_probe = False
            self._session.hello = None
        elif sent is self._session.hello:
            self._refused(now_ms, answer)

    def _receive_hello(self, now_ms: float, sent: SentRequest, reply: HelloReply) -> None:
        session = self._session
        if sent is session.hello:
            self._open(now_ms, sent, reply)
        elif session.epoch:
            self._take_verdicts(now_ms, reply)

    def _receive_no(self, now_ms: float, sent: SentRequest, reply: Reply) -> None:
        session = self._session
        code = reply.code if isinstance(reply, Refusal) else ""
        # Fenced before the first answer arrived: another client took the session over after this one.
        if isinstance(reply, Refusal) and (code == "FENCED" or (code == "SESSION_UNKNOWN" and session.epoch)):
            if code == "SESSION_UNKNOWN" and not self._window.is_in_doubt and self.restart():
                return
            self._commands.finish(errors.from_code(code, reply.text))
        elif sent is session.hello:
            self._refused(now_ms, reply)

    def _refused(self, now_ms: float, reply: Reply) -> None:
        assert isinstance(reply, Refusal | NotNow)
        self._session.hello = None
        error = errors.from_code(reply.code, reply.text)
        if isinstance(reply, Refusal):
            self._failover.give_up(error)
            if not self._failover.is_away:
                self._pause(now_ms, error)
            return
        self._pause(now_ms, error)
        self._failover.give_up_overdue(now_ms, error, self._waiting_commands())

    def connection_refused(self, now_ms: float, error: errors.OnceMQError) -> None:
        """No connection can be opened. What was sent over the last one, and not answered, fails too."""
        self._commands.disconnect()
        self._failover.give_up(error)
        if not self._failover.is_away:
            self._backoff.obstacle = error
            self._session.hello_not_before_ms = now_ms + _REFUSED_PAUSE_MS

    def _pause(self, now_ms: float, error: errors.OnceMQError) -> None:
        self._backoff.pause(now_ms, error)
        self._session.hello_not_before_ms = self._backoff.until_ms

    # The open session.

    def _open(self, now_ms: float, sent: SentRequest, reply: HelloReply) -> None:
        session, window = self._session, self._window
        session.hello = None
        if session.epoch == 0 and self._outbox is not None:
            if not self._open_outbox(now_ms, self._outbox, reply):
                return
        elif session.epoch == 0:
            window.next_number = reply.last_number + 1
        elif reply.last_number < sent.answered_number:
            self._commands.finish(
                errors.SessionUnknown(
                    f"the broker's memory of this session ends at number {reply.last_number}, "
                    f"and {sent.answered_number} was answered before"
                )
            )
            return
        self._failover.term = max(self._failover.term, reply.term)
        session.opened(reply)
        window.size = max(1, min(self._options.window, reply.window))
        self._backoff.reset()
        self._take_verdicts(now_ms, reply)
        window.resend_from(0)
        for pending in session.take_waiters():
            pending.succeed(Done())

    def _open_outbox(self, now_ms: float, queue: OutboxQueue, reply: HelloReply) -> bool:
        """Write to the outbox that it is sent from here on. False: it does not match the broker, or can't be
        written."""
        error = queue.mismatch(reply)
        try:
            if error is None:
                queue.outbox.connected(reply.broker_id)
            else:
                # Another process may have opened the outbox and sent from it. Then this one is fenced, which this
                # read reports, and the outbox is intact.
                queue.outbox.entries(1, 1, 0)
        except errors.OnceMQError as raised:
            error = raised
        if error is None:
            return True
        if is_transient(error):
            self._refused(now_ms, NotNow(error.code, error.text))
        else:
            self._commands.finish(error)
        return False

    def _take_verdicts(self, now_ms: float, reply: HelloReply) -> None:
        for number, verdict in reply.verdicts:
            command = self._window.get(number)
            if command is not None and self._session.finished is None:
                self._commands.complete(now_ms, command, verdict)
