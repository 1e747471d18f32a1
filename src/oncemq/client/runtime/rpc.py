"""Calls: how a flow sends a command and gets its reply. No command in particular is known here."""

from __future__ import annotations

from typing import TypeVar

from oncemq.client.core.pending import Pending
from oncemq.client.runtime.driver import Driver
from oncemq.client.runtime.flow import Flow
from oncemq.protocol import errors
from oncemq.protocol.commands import Command, Operation
from oncemq.protocol.replies import Reply

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
    """Send a command that is safe to repeat. Raises Malformed if the reply is not a `kind`."""
    driver.check_usable()
    reply = yield from wait_for_reply(driver, driver.core.ask(command))
    return check_reply(reply, kind, command)


def check_reply(reply: Reply, kind: type[T], command: Command | Operation) -> T:
    """Return the reply. Raises Malformed if it is not a `kind`."""
    if not isinstance(reply, kind):
        raise errors.Malformed(f"{type(command).__name__} was answered with {type(reply).__name__}")
    return reply
