"""Calls: how a flow sends a command and gets its reply. No command in particular is known here."""

from __future__ import annotations

from typing import TypeVar

from oncemq.client.core.commands.pending import Pending
from oncemq.client.runtime.driver import Driver
from oncemq.client.runtime.flow import Flow
from oncemq.protocol import errors
from oncemq.protocol.commands import Command
from oncemq.protocol.replies import Reply, expect

T = TypeVar("T")


def wait_for_reply(driver: Driver, pending: Pending) -> Flow[Reply]:
    """Return the reply that only this caller waits for. A caller that is interrupted gives it up."""
    try:
        yield pending
    except BaseException:
        driver.give_up(pending, errors.ClientClosed("the caller gave up"))
        raise
    return pending.result()


def ask(driver: Driver, command: Command, kind: type[T]) -> Flow[T]:
    """Send a command that is safe to repeat. Raises BrokerBug if the reply is not a `kind`."""
    driver.check_usable()
    reply = yield from wait_for_reply(driver, driver.core.ask(command))
    return expect(reply, kind)
