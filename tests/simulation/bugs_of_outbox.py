"""Planted bugs in the outbox, and in how the core uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncemq.client.core.core import Core
from oncemq.client.core.outbox_queue import Backlog
from oncemq.client.core.pending import Entry
from oncemq.client.outbox.file import OutboxFile
from oncemq.client.outbox.storage import Storage
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import HelloReply, Refusal, Reply
from tests.simulation.bugs import Patch, bug


@bug("what is in the outbox counts as settled when it is sent")
def outbox_settles_what_it_sends() -> Sequence[Patch]:
    real: Any = Core._numbered_request

    def numbered_request(self: Core, entries: list[Entry], now_ms: float) -> list[Frame]:
        frames: list[Frame] = real(self, entries, now_ms)
        for entry in entries:
            if self._backlog is not None:
                self._backlog.outbox.settle(entry.kept_number)
        return frames

    return [(Core, "_numbered_request", numbered_request)]


@bug("after a restart the outbox gives numbers again that were used")
def outbox_numbers_again() -> Sequence[Patch]:
    real: Any = OutboxFile.__init__

    def init(self: OutboxFile, storage: Storage) -> None:
        real(self, storage)
        numbers = [kept.number for kept in self.entries()]
        self.next_number = max(numbers, default=0) + 1

    return [(OutboxFile, "__init__", init)]


@bug("the outbox keeps nothing of a refusal")
def outbox_forgets_refusals() -> Sequence[Patch]:
    def refuse(self: OutboxFile, number: int, _code: str, _text: str) -> None:
        self.settle(number)

    return [(OutboxFile, "refuse", refuse)]


@bug("a verdict that the broker has forgotten is taken for a refusal")
def outbox_takes_forgotten_for_refused() -> Sequence[Patch]:
    def understood(_self: Backlog, _number: int, refusal: Refusal) -> Reply:
        return refusal

    return [(Backlog, "_understood", understood)]


@bug("a process goes on with its outbox after another has opened it")
def outbox_owner_is_not_checked() -> Sequence[Patch]:
    return [(Storage, "_check_owner", lambda _self, _execute: None)]


@bug("an outbox that was restored from a copy is not noticed")
def outbox_is_rewound_unnoticed() -> Sequence[Patch]:
    real: Any = Backlog.contradiction

    def contradiction(self: Backlog, reply: HelloReply) -> errors.OnceMQError | None:
        error: errors.OnceMQError | None = real(self, reply)
        return None if isinstance(error, errors.OutboxRewound) else error

    return [(Backlog, "contradiction", contradiction)]


@bug("what an earlier process has left in the outbox is not sent")
def outbox_leaves_the_old_ones() -> Sequence[Patch]:
    real: Any = Backlog.__init__

    def init(self: Backlog, outbox: Any) -> None:
        real(self, outbox)
        self._loaded_below = max(1, outbox.next_number - 1)

    return [(Backlog, "__init__", init)]
