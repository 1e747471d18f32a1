"""What the core needs from an outbox: numbered operations, stored durably from before they are sent until they are
decided. `OutboxFile` is the implementation on a disk.

The states of an operation:

    append ─► sent, perhaps several times ─► complete                 it was executed
                                          ├► refuse                   refused: kept until the user has seen it
                                          └► void ─► complete_void    refused, and its number must still be used

Each method may raise Fenced (another process has opened the outbox), OutboxFull (nothing was written: try again later)
or another OutboxError (final).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from oncemq.protocol import errors
from oncemq.protocol.commands import Operation
from oncemq.protocol.frames import Frame


def is_transient(error: errors.OnceMQError) -> bool:
    """Whether nothing was written and the outbox is still usable: there may be space later, or for something
    smaller."""
    return isinstance(error, errors.OutboxFull | errors.TooLarge)


class OutboxEntry(msgspec.Struct, frozen=True, gc=False):
    """An operation that is not decided, as far as the outbox knows."""

    number: int
    operation: Operation
    #: In the order of the operation's envelopes.
    payloads: tuple[Frame, ...]


class OutboxRefusal(msgspec.Struct, frozen=True, gc=False):
    """An operation that the broker refused, and why."""

    number: int
    code: str
    text: str
    operation: Operation
    payloads: tuple[Frame, ...]


class Outbox(Protocol):
    """A durable queue of numbered operations."""

    @property
    def session(self) -> str:
        """A random name that was assigned when the outbox was created."""

    @property
    def broker_id(self) -> str:
        """The broker that the outbox belongs to; empty until it was connected for the first time."""

    @property
    def next_number(self) -> int: ...

    @property
    def sent_below(self) -> int:
        """This number and higher ones were not sent before the outbox was opened: the broker can't have decided
        them."""

    @property
    def answered_number(self) -> int:
        """The highest number that is known to be decided: the broker must know it too."""

    def append(self, entries: Sequence[tuple[Operation, tuple[Frame, ...]]]) -> range:
        """Store all operations durably, or none. Return their numbers."""

    def connected(self, broker_id: str) -> None:
        """The session was taken over: from now on entries may be sent. Durable when it returns."""

    def entries(self, first_number: int, count_max: int, bytes_max: int) -> list[OutboxEntry]:
        """Entries from this number on, in order; at least one if there is one."""

    def complete(self, number: int) -> None:
        """The operation was executed. May be written later: if this is lost, the broker is asked again."""

    def refuse(self, number: int, code: str, text: str) -> None:
        """The broker refused the operation. Durable when it returns: only then may the broker forget its verdict."""

    def void(self, number: int, code: str, text: str) -> None:
        """The operation was refused before its number was used: from now on the number stands for a `Void`."""

    def complete_void(self, number: int) -> None:
        """A void was answered. May be written later."""
