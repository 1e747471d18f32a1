"""An outbox as the core uses it: entries come from it into the flight in their order, and answers go into it.

Only what is sent next is held in memory. What an earlier process has left is sent as it is, but for `Open`: who
owned a subscription then does not own it any more, and its number alone is used up.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from weakref import WeakValueDictionary

from oncemq.client.core.inflight import Flight
from oncemq.client.core.pending import Entry, Pending
from oncemq.client.outbox.contract import Outbox
from oncemq.protocol import errors
from oncemq.protocol.commands import Open, Operation, Void
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import Done, HelloReply, Refusal, Reply

#: Held in memory at the most, beyond the first entry.
_COUNT_MAX = 256
_BYTES_MAX = 32 * 1024 * 1024


class Backlog:
    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        #: Everything below is in the flight, or was decided.
        self._loaded_below = 1
        self._own_from = outbox.next_number
        #: Callers of entries that are not in memory. Who only holds a pending is not held by it.
        self._listeners: dict[int, Pending] = {}
        self._holders: WeakValueDictionary[int, Pending] = WeakValueDictionary()

    @property
    def is_greeted(self) -> bool:
        """It has been connected before: the broker has to know its session."""
        return bool(self.outbox.broker_id)

    # Before it is sent.

    def append(
        self, operations: Sequence[tuple[Operation, tuple[Frame, ...]]], pendings: Sequence[Pending], flight: Flight
    ) -> None:
        """Durable when it returns. Raises what the outbox raises; then nothing was kept."""
        numbers = self.outbox.append(operations)
        for number, (operation, payloads), pending in zip(numbers, operations, pendings, strict=True):
            pending.number = number
            if number == self._loaded_below and _has_room(flight):
                flight.add(Entry(operation, payloads, pending, number))
                self._loaded_below = number + 1
            elif pending.on_done is not None:
                self._listeners[number] = pending
            else:
                self._holders[number] = pending

    def fill(self, flight: Flight) -> None:
        """Bring what is sent next into memory."""
        while self._loaded_below < self.outbox.next_number and _has_room(flight):
            page = self.outbox.entries(self._loaded_below, _COUNT_MAX, _BYTES_MAX)
            for kept in page:
                is_void = kept.number < self._own_from and isinstance(kept.operation, Open)
                operation = Void() if is_void else kept.operation
                flight.add(Entry(operation, kept.payloads, self._caller_of(kept.number), kept.number))
            self._loaded_below = page[-1].number + 1 if page else self.outbox.next_number

    def _caller_of(self, number: int) -> Pending | None:
        return self._listeners.pop(number, None) or self._holders.pop(number, None)

    def let_go(self, error: errors.OnceMQError, *, everyone: bool) -> None:
        """Callers whose patience is over, or all, are told; what they wait for stays in the outbox."""
        waiting = [*self._listeners.values(), *self._holders.values()]
        for pending in waiting:
            if everyone or not isinf(pending.give_up_ms):
                self.forget(pending)
                pending.fail(error)

    def forget(self, pending: Pending) -> bool:
        """False: nobody of that kind waits here."""
        return self._caller_of(pending.number) is not None

    # The broker.

    def misfit(self, broker_id: str) -> errors.OnceMQError | None:
        """Why this is not the broker that the outbox belongs to."""
        expected = self.outbox.broker_id
        if expected in ("", broker_id):
            return None
        return errors.OutboxForeign(f"the outbox belongs to broker {expected}, and this is broker {broker_id}")

    def unknown(self) -> errors.SessionUnknown:
        return errors.SessionUnknown(
            f"the broker has forgotten the session '{self.outbox.session}' of this outbox. Begin another outbox; "
            f"what was kept from number {self.outbox.answered_number + 1} on may have happened or not"
        )

    def contradiction(self, reply: HelloReply) -> errors.OnceMQError | None:
        """Why outbox and broker don't go together, when the session is taken over."""
        outbox = self.outbox
        misfit = self.misfit(reply.broker_id)
        if misfit is not None:
            return misfit
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

    def record(self, entry: Entry, reply: Reply) -> Reply:
        """Write down how it ended. The answer as its caller gets it; raises what the outbox raises, OutboxRewound."""
        number = entry.kept_number
        if isinstance(reply, Refusal):
            reply = self._understood(number, reply)
        if isinstance(entry.body, Void) and isinstance(reply, Done | Refusal):
            self.outbox.use_up(number)
        elif isinstance(reply, Refusal):
            self.outbox.refuse(number, reply.code, reply.text)
        else:
            self.outbox.settle(number)
        return reply

    def _understood(self, number: int, refusal: Refusal) -> Reply:
        if refusal.code == "VERDICT_FORGOTTEN" and number < self.outbox.sent_below:
            # An earlier process saw the answer. It was a yes: a no would be in the outbox.
            return Done()
        if refusal.code in ("VERDICT_FORGOTTEN", "SEQUENCE_REUSED"):
            raise errors.OutboxRewound(
                f"number {number} was used for something else: this outbox was restored from a copy"
            )
        return refusal


def _has_room(flight: Flight) -> bool:
    return len(flight) < _COUNT_MAX and (not len(flight) or flight.payload_bytes < _BYTES_MAX)
