"""Planted bugs in the outbox and in its use by the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncemq.client.core.commands.outbox_queue import OutboxQueue
from oncemq.client.core.commands.pending import PendingCommand
from oncemq.client.core.sender import RequestSender
from oncemq.client.outbox.file import OutboxFile
from oncemq.client.outbox.storage import Storage
from oncemq.protocol import errors
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import HelloReply, Refusal, Reply
from tests.simulation.bugs.registry import Patch, bug


@bug("entries of the outbox are completed when they are sent")
def outbox_completes_what_it_sends() -> Sequence[Patch]:
    real: Any = RequestSender._numbered_request

    def numbered_request(self: RequestSender, commands: list[PendingCommand], now_ms: float) -> list[Frame]:
        frames: list[Frame] = real(self, commands, now_ms)
        for command in commands:
            if self._commands.outbox is not None:
                self._commands.outbox.outbox.complete(command.outbox_number)
        return frames

    return [(RequestSender, "_numbered_request", numbered_request)]


@bug("the outbox reuses numbers after a restart")
def outbox_numbers_again() -> Sequence[Patch]:
    real: Any = OutboxFile.__init__

    def init(self: OutboxFile, storage: Storage) -> None:
        real(self, storage)
        numbers = [entry.number for entry in self.entries()]
        self.next_number = max(numbers, default=0) + 1

    return [(OutboxFile, "__init__", init)]


@bug("the outbox does not store refusals")
def outbox_forgets_refusals() -> Sequence[Patch]:
    def refuse(self: OutboxFile, number: int, _code: str, _text: str) -> None:
        self.complete(number)

    return [(OutboxFile, "refuse", refuse)]


@bug("a forgotten verdict is treated as a refusal")
def outbox_takes_forgotten_for_refused() -> Sequence[Patch]:
    def interpret(_self: OutboxQueue, _number: int, refusal: Refusal) -> Reply:
        return refusal

    return [(OutboxQueue, "_interpret", interpret)]


@bug("a process continues to use its outbox after another process has opened it")
def outbox_owner_is_not_checked() -> Sequence[Patch]:
    return [(Storage, "_check_owner", lambda _self, _execute: None)]


@bug("an outbox that was restored from a copy is not detected")
def outbox_is_rewound_unnoticed() -> Sequence[Patch]:
    real: Any = OutboxQueue.mismatch

    def mismatch(self: OutboxQueue, reply: HelloReply) -> errors.OnceMQError | None:
        error: errors.OnceMQError | None = real(self, reply)
        return None if isinstance(error, errors.OutboxRewound) else error

    return [(OutboxQueue, "mismatch", mismatch)]


@bug("entries of an earlier process in the outbox are not sent")
def outbox_ignores_old_entries() -> Sequence[Patch]:
    real: Any = OutboxQueue.load

    def load(self: OutboxQueue) -> None:
        self._loaded_below = max(self._loaded_below, self._own_from - 1)
        real(self)

    return [(OutboxQueue, "load", load)]
