"""The outbox as the core uses it: commands come from it into the in-flight window, and answers are written to it.

Only what is sent next is held in memory. What an earlier process has left is sent unchanged, except for `Open`: the
process that owned the subscription then is gone, so only the number is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from weakref import WeakValueDictionary

from oncemq.client.core.commands.inflight import InflightWindow
from oncemq.client.core.commands.pending import Pending, PendingCommand
from oncemq.client.outbox.contract import Outbox
from oncemq.protocol import errors
from oncemq.protocol.commands import Open, Operation, Void
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import Done, HelloReply, Refusal, Reply

#: Maximum number of commands in memory, and maximum size of their payloads beyond the first one.
_COUNT_MAX = 256
_BYTES_MAX = 32 * 1024 * 1024


class OutboxQueue:
    """The commands of an outbox, in the order of their numbers."""

    def __init__(self, outbox: Outbox, window: InflightWindow) -> None:
        self.outbox = outbox
        self._window = window
        #: Everything below is in the window, or was decided.
        self._loaded_below = 1
        #: Numbers below were assigned by earlier processes.
        self._own_from = outbox.next_number
        #: Callers of commands that are not in memory. A caller that only holds its Pending is not kept alive by it.
        self._listeners: dict[int, Pending] = {}
        self._holders: WeakValueDictionary[int, Pending] = WeakValueDictionary()
        window.next_number = outbox.next_number
        self.load()

    # Before it is sent.

    def append(self, operations: Sequence[tuple[Operation, tuple[Frame, ...]]], pendings: Sequence[Pending]) -> None:
        """Store operations durably. Raises what the outbox raises; then nothing was stored."""
        numbers = self.outbox.append(operations)
        for number, (operation, payloads), pending in zip(numbers, operations, pendings, strict=True):
            pending.number = number
            if number == self._loaded_below and self._has_room():
                self._window.add(PendingCommand(operation, payloads, pending, number))
                self._loaded_below = number + 1
            elif pending.on_done is not None:
                self._listeners[number] = pending
            else:
                self._holders[number] = pending

    def load(self) -> None:
        """Bring what is sent next into memory. Raises what the outbox raises."""
        while self._loaded_below < self.outbox.next_number and self._has_room():
            page = self.outbox.entries(self._loaded_below, _COUNT_MAX, _BYTES_MAX)
            for entry in page:
                is_void = entry.number < self._own_from and isinstance(entry.operation, Open)
                operation = Void() if is_void else entry.operation
                caller = self._take_caller(entry.number)
                self._window.add(PendingCommand(operation, entry.payloads, caller, entry.number))
            self._loaded_below = page[-1].number + 1 if page else self.outbox.next_number

    def _has_room(self) -> bool:
        window = self._window
        return len(window) < _COUNT_MAX and (not len(window) or window.payload_bytes < _BYTES_MAX)

    def _take_caller(self, number: int) -> Pending | None:
        return self._listeners.pop(number, None) or self._holders.pop(number, None)

    def fail_callers(self, error: errors.OnceMQError, *, everyone: bool) -> None:
        """Fail callers with a time limit, or all callers. Their operations stay in the outbox."""
        for pending in [*self._listeners.values(), *self._holders.values()]:
            if everyone or not isinf(pending.give_up_ms):
                self.forget_caller(pending)
                pending.fail(error)

    def forget_caller(self, pending: Pending) -> bool:
        """False: no caller with this number waits here."""
        return self._take_caller(pending.number) is not None

    # The broker.

    def wrong_broker(self, broker_id: str) -> errors.OnceMQError | None:
        """Why this is not the broker that the outbox belongs to."""
        expected = self.outbox.broker_id
        if expected in ("", broker_id):
            return None
        return errors.OutboxForeign(f"the outbox belongs to broker {expected}, and this is broker {broker_id}")

    def session_unknown(self) -> errors.SessionUnknown:
        return errors.SessionUnknown(
            f"the broker has forgotten the session '{self.outbox.session}' of this outbox. Operations from number "
            f"{self.outbox.answered_number + 1} on may or may not have been executed. Create another outbox"
        )

    def mismatch(self, reply: HelloReply) -> errors.OnceMQError | None:
        """Why outbox and broker contradict each other, when the session is taken over."""
        outbox = self.outbox
        wrong_broker = self.wrong_broker(reply.broker_id)
        if wrong_broker is not None:
            return wrong_broker
        if reply.last_number >= outbox.sent_below:
            return errors.OutboxRewound(
                f"the broker has decided up to number {reply.last_number}, and this outbox has sent "
                f"no more than {outbox.sent_below - 1}: it was restored from a copy"
            )
        if reply.last_number < outbox.answered_number:
            return errors.SessionUnknown(
                f"the broker's memory of this outbox ends at number {reply.last_number}, "
                f"and {outbox.answered_number} was answered before"
            )
        return None

    # Answers.

    def record(self, command: PendingCommand, reply: Reply) -> Reply:
        """Write down how a command ended. Return the reply for its caller.

        Raises what the outbox raises, and OutboxRewound."""
        number = command.outbox_number
        if isinstance(reply, Refusal):
            reply = self._interpret(number, reply)
        if isinstance(command.body, Void) and isinstance(reply, Done | Refusal):
            self.outbox.complete_void(number)
        elif isinstance(reply, Refusal):
            self.outbox.refuse(number, reply.code, reply.text)
        else:
            self.outbox.complete(number)
        return reply

    def record_void(self, command: PendingCommand, refusal: Refusal) -> Reply:
        """Write down that a command was refused and its number is sent as a void. Raises what the outbox raises."""
        self.outbox.void(command.outbox_number, refusal.code, refusal.text)
        return refusal

    def _interpret(self, number: int, refusal: Refusal) -> Reply:
        if refusal.code == "VERDICT_FORGOTTEN" and number < self.outbox.sent_below:
            # An earlier process saw the answer. The operation was done: a refusal would be in the outbox.
            return Done()
        if refusal.code in ("VERDICT_FORGOTTEN", "SEQUENCE_REUSED"):
            raise errors.OutboxRewound(
                f"number {number} was used for something else: this outbox was restored from a copy"
            )
        return refusal
