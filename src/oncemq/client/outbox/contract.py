"""What the core asks of an outbox: numbered operations, kept durably from before they are sent until they are
decided. `OutboxFile` is the one on a disk.

An operation's way through it:

    append ─► sent, perhaps often ─► settle            it happened
                                  ├► refuse            the broker said no: kept until the user has seen it
                                  └► void ─► use_up    no, and the number is still to be used up

Each may raise Fenced (another process has opened the outbox), OutboxFull (nothing was written: try again later)
or another OutboxError (final).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.commands import Operation
from oncemq.protocol.frames import Frame


def is_passing(error: errors.OnceMQError) -> bool:
    """Nothing was written, and the outbox goes on: what did not fit may fit later, or something smaller does."""
    return isinstance(error, errors.OutboxFull | errors.TooLarge)


class Kept(msgspec.Struct, frozen=True, gc=False):
    """An operation that is not decided, as far as the outbox knows."""

    number: int
    operation: Operation
    #: In the order of the operation's envelopes.
    payloads: tuple[Frame, ...]


class KeptRefusal(msgspec.Struct, frozen=True, gc=False):
    """What the broker refused, whole, and why."""

    number: int
    code: str
    text: str
    operation: Operation
    payloads: tuple[Frame, ...]


class Outbox(Protocol):
    @property
    def session(self) -> str:
        """Drawn at random when the outbox was begun."""

    @property
    def broker_id(self) -> str:
        """Of the broker that the outbox belongs to; empty until one was found."""

    @property
    def next_number(self) -> int: ...

    @property
    def sent_below(self) -> int:
        """Numbers from this one on were not sent before this opening: the broker can't have decided them."""

    @property
    def answered_number(self) -> int:
        """The highest number that is known to be decided: the broker must know it too."""

    def append(self, entries: Sequence[tuple[Operation, tuple[Frame, ...]]]) -> range:
        """Durable when it returns, all or none. Their numbers."""

    def greeted(self, broker_id: str) -> None:
        """The session was taken over: from here on entries may be sent. Durable when it returns."""

    def entries(self, first_number: int, count_max: int, bytes_max: int) -> list[Kept]:
        """Of this number and higher, in their order; one at least, if there is one."""

    def settle(self, number: int) -> None:
        """It happened. May be written later: an answer that is forgotten is asked for again."""

    def refuse(self, number: int, code: str, text: str) -> None:
        """The broker decided: no. Durable when it returns: only then may the broker forget its verdict."""

    def void(self, number: int, code: str, text: str) -> None:
        """It was refused before it reached its number's turn: from now on the number stands for a `Void`."""

    def use_up(self, number: int) -> None:
        """A void was answered. May be written later."""
