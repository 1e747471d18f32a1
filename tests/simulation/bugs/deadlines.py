"""Planted bugs in the time limits of commands."""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.client.core.commands.command_table import CommandTable
from oncemq.client.core.commands.pending import PendingCommand
from oncemq.client.core.commands.requests import RequestTable
from oncemq.client.core.commands.wire import WireBytes
from tests.simulation.bugs.registry import Patch, bug


@bug("an answered hello renews the time limit of all commands")
def client_takes_a_hello_for_an_answer() -> Sequence[Patch]:
    def count_loss(self: CommandTable, lost_ms: float, command: PendingCommand, *, was_under_way: bool) -> None: ...

    return [(CommandTable, "count_loss", count_loss)]


@bug("a transfer that makes progress is interrupted after a timeout")
def client_ignores_the_wire() -> Sequence[Patch]:
    def observe(self: RequestTable, now_ms: float, wire: WireBytes | None) -> None: ...

    return [(RequestTable, "observe", observe)]
