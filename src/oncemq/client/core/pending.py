"""One command's way to its answer. Knows nothing of sockets, numbers or time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oncemq.protocol import errors
from oncemq.protocol.commands import Command, Operation
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import Refusal, Reply


def again(error: errors.OnceMQError) -> errors.OnceMQError:
    """The same error, to be raised once more."""
    return type(error)(error.text)


class Pending:
    """What a caller holds while the core looks after a command."""

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
        #: Called once, when it is done, with the pending itself.
        self.on_done = on_done
        #: How long "not now" is taken for an answer, from the first sending on.
        self.give_up_ms = give_up_ms
        self.deadline_ms = 0.0
        #: In the outbox; 0 = it is in none.
        self.number = 0

    def result(self) -> Reply:
        """The answer; raises what the broker refused it with."""
        if self.error is not None:
            # A fresh one: several callers may share this error, and each adds its own traceback.
            raise again(self.error)
        assert self.reply is not None, "asked for a result before there was one"
        return self.reply

    def succeed(self, reply: Reply, payloads: Sequence[Frame] = ()) -> None:
        if isinstance(reply, Refusal):
            self.fail(errors.from_code(reply.code, reply.text))
            return
        self.reply = reply
        self.payloads = payloads
        self._finish()

    def fail(self, error: errors.OnceMQError) -> None:
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        if self.on_done is not None:
            self.on_done(self)


class Entry:
    """A command as the core keeps it: what to send, and where it was sent."""

    __slots__ = (
        "body",
        "goes_alone",
        "kept_number",
        "must_send",
        "not_before_ms",
        "number",
        "payloads",
        "pending",
        "request_ids",
        "settled",
    )

    def __init__(
        self,
        body: Operation | Command,
        payloads: tuple[Frame, ...],
        pending: Pending | None,
        kept_number: int = 0,
    ) -> None:
        self.body = body
        #: In the order of the operation's envelopes.
        self.payloads = payloads
        #: None: nobody waits for it; the number still has to be used.
        self.pending = pending
        #: The number that it has in the outbox, and will be sent with; 0 = it is in none.
        self.kept_number = kept_number
        #: 0 until it has one, and for what needs none.
        self.number = 0
        #: A request that it shared was refused as a whole.
        self.goes_alone = False
        self.must_send = True
        self.not_before_ms = 0.0
        #: Requests that carried it, the newest last: a late answer to an old one is as good.
        self.request_ids: list[int] = []
        self.settled = False

    @property
    def payload_bytes(self) -> int:
        return sum(map(len, self.payloads))


class Sent:
    """A request on its way."""

    __slots__ = ("at_ms", "entries", "greeting", "is_probe", "live_count", "open_count", "patience_ms", "request_id")

    def __init__(self, request_id: int, entries: list[Entry], at_ms: float, patience_ms: float) -> None:
        self.request_id = request_id
        self.entries = entries
        self.at_ms = at_ms
        self.patience_ms = patience_ms
        #: Entries that were not sent again since.
        self.live_count = len(entries)
        #: Entries that are not settled.
        self.open_count = len(entries)
        #: The highest number seen answered when this hello was sent; -1 = not a hello.
        self.greeting = -1
        #: A hello that only asks whether the session is known.
        self.is_probe = False
