"""Calls: how a flow of a client sends a command and gets its answer. Knows no command in particular."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from oncemq.client.core.pending import Pending
from oncemq.client.runtime.driver import Pump
from oncemq.client.runtime.flow import Flow
from oncemq.protocol import errors
from oncemq.protocol.commands import Command, Operation
from oncemq.protocol.replies import Reply

if TYPE_CHECKING:
    from oncemq.client.context import ClientContext
    from oncemq.client.core.core import Payloads

if TYPE_CHECKING:
    from oncemq.client.consumer.cursor import Receiving
    from oncemq.client.worker.shared_consumer import Working

T = TypeVar("T")


def answer_to(driver: Pump, pending: Pending) -> Flow[Reply]:
    """The answer that this caller alone waits for. One who is interrupted gives it up."""
    try:
        yield pending
    except BaseException:
        driver.give_up(pending, errors.ClientClosed("the caller gave up"))
        raise
    return pending.result()


def ask(driver: Pump, command: Command, kind: type[T]) -> Flow[T]:
    """A command that may be repeated, and its answer of this kind."""
    driver.check_usable()
    reply = yield from answer_to(driver, driver.core.ask(command))
    return checked(reply, kind, command)


def checked(reply: Reply, kind: type[T], command: Command | Operation) -> T:
    """Raises Malformed for an answer of another kind."""
    if not isinstance(reply, kind):
        raise errors.Malformed(f"{type(command).__name__} was answered with {type(reply).__name__}")
    return reply


class Calling:
    """What every part of a client can do: call the broker."""

    _driver: Pump
    _context: ClientContext
    #: Those that are open.
    _subscriptions: set[Receiving | Working[Any]]

    def _freeze_all(self) -> None:
        """Whatever was put without waiting gets its number now."""
        raise NotImplementedError

    def _call_any(self, operation: Operation, payload: Payloads = None, *, give_up_ms: float = 0.0) -> Flow[Reply]:
        """A numbered operation, behind everything that was put before it."""
        return self._context.call_any(operation, payload, give_up_ms=give_up_ms)

    def _call(
        self, operation: Operation, kind: type[T], payload: Payloads = None, *, give_up_ms: float = 0.0
    ) -> Flow[T]:
        """The same, for an answer of this kind."""
        reply = yield from self._call_any(operation, payload, give_up_ms=give_up_ms)
        return checked(reply, kind, operation)

    def _do(self, operation: Operation) -> Flow[None]:
        """The same, for an operation whose answer says no more than that it is done."""
        yield from self._call_any(operation)

    def _ask(self, command: Command, kind: type[T]) -> Flow[T]:
        """A command that may be repeated, and its answer of this kind."""
        return ask(self._driver, command, kind)
