"""A command between its submission and its reply: what the caller holds, and what the core keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oncemq.protocol import errors
from oncemq.protocol.commands import As, Command, Operation
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import Refusal, Reply


def again(error: errors.OnceMQError) -> errors.OnceMQError:
    """Return a copy of an error, to raise it once more without the traceback of the first time."""
    return type(error)(error.text)


class Pending:
    """The caller's handle for a command: it shows whether there is a reply, and which."""

    __slots__ = (
        "__weakref__",
        "deadline_ms",
        "done",
        "error",
        "give_up_ms",
        "number",
        "on_done",
        "payloads",
        "reply",
    )

    def __init__(self, give_up_ms: float, on_done: Callable[[Pending], None] | None = None) -> None:
        self.done = False
        self.reply: Reply | None = None
        self.payloads: Sequence[Frame] = ()
        self.error: errors.OnceMQError | None = None
        #: Called once, with this object, when it is done.
        self.on_done = on_done
        #: How long "not now" is retried, counted from the first time that the command is sent.
        self.give_up_ms = give_up_ms
        #: 0 until the command is sent for the first time.
        self.deadline_ms = 0.0
        #: Its number in the outbox; 0 if it is in none.
        self.number = 0

    def start(self, now_ms: float) -> None:
        """The command is sent: its time limit runs from the first time on."""
        if self.deadline_ms == 0.0:
            self.deadline_ms = now_ms + self.give_up_ms

    def result(self) -> Reply:
        """Return the reply. Raises the error with which the command failed."""
        if self.error is not None:
            # A copy: several callers may share this error, and each of them adds its own traceback.
            raise again(self.error)
        assert self.reply is not None, "the command has no reply yet"
        return self.reply

    def succeed(self, reply: Reply, payloads: Sequence[Frame] = ()) -> None:
        """Complete with a reply; a refusal becomes an error."""
        if isinstance(reply, Refusal):
            self.fail(errors.from_code(reply.code, reply.text))
            return
        self.reply = reply
        self.payloads = payloads
        self._finish()

    def fail(self, error: errors.OnceMQError) -> None:
        """Complete with an error."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        if self.on_done is not None:
            self.on_done(self)


class PendingCommand:
    """A command as the core keeps it: what to send, and in which requests it was sent."""

    __slots__ = (
        "body",
        "caller",
        "decided_count",
        "is_completed",
        "losses",
        "lost_ms",
        "must_send",
        "not_before_ms",
        "number",
        "outbox_number",
        "payloads",
        "pending",
        "request_ids",
        "sends_alone",
        "transfers",
    )

    def __init__(
        self,
        body: Operation | Command,
        payloads: tuple[Frame, ...],
        pending: Pending | None,
        outbox_number: int = 0,
        caller: str = "",
    ) -> None:
        self.body = body
        #: Of a gateway's numbered operation: for whom it is done.
        self.caller = caller
        #: In the order of the operation's envelopes.
        self.payloads = payloads
        #: None: no caller waits for it, but its number must still be used.
        self.pending = pending
        #: The number that it has in the outbox and is sent with; 0 if it is in none.
        self.outbox_number = outbox_number
        #: 0 until it has a number, and for commands that need none.
        self.number = 0
        #: A request that it shared was refused as a whole, so it gets a request of its own.
        self.sends_alone = False
        self.must_send = True
        self.not_before_ms = 0.0
        #: Requests that carried it, the newest last. A late answer to an older one counts too.
        self.request_ids: list[int] = []
        self.is_completed = False
        #: Attempts that were not answered in time, and how many of them ended during a transfer.
        self.losses = self.transfers = 0
        #: When the first of them ended, or the last one that ended during a transfer.
        self.lost_ms = 0.0
        #: Of a numbered command: they count since this many commands were decided.
        self.decided_count = 0

    @property
    def plain(self) -> Operation | Command:
        """What it does, whoever it is for."""
        return self.body.command if isinstance(self.body, As) else self.body

    @property
    def payload_bytes(self) -> int:
        return sum(map(len, self.payloads))
