"""What the parts of one client share: the driver, calls to the broker, periodic tasks, open subscriptions.

A client *has* a context, and gives it to its producer, its subscriptions and its administration API. No part knows
the client that holds it.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Protocol, TypeVar

from oncemq.client.credentials import NO_CREDENTIALS, Credentials
from oncemq.client.frames.schemas import FrameSchemas
from oncemq.client.runtime.rpc import ask, wait_for_reply
from oncemq.client.unanswered import UnansweredTransactions
from oncemq.protocol import errors
from oncemq.protocol.replies import expect

if TYPE_CHECKING:
    from oncemq.client.core.commands.observer import Observer
    from oncemq.client.core.commands.pending import Pending
    from oncemq.client.core.core import Core, Payloads
    from oncemq.client.runtime.background import Background, PeriodicTask
    from oncemq.client.runtime.driver import Driver
    from oncemq.client.runtime.flow import Flow
    from oncemq.client.schemas.topic_schemas import TopicSchemas
    from oncemq.protocol.commands import Command, Operation
    from oncemq.protocol.frames import Frame
    from oncemq.protocol.replies import Reply

T = TypeVar("T")


class OpenSubscription(Protocol):
    """A subscription that ends with its client."""

    def close(self, clean: bool) -> Flow[None]:
        """Ack what was delivered, and end. Without `clean`, errors are not raised."""


class Buffers(Protocol):
    """Messages that were put without waiting, and have no number yet. The producer has them."""

    schemas: TopicSchemas

    def ready(self) -> Flow[None]:
        """Wait until the messages in all buffers can be numbered."""

    def freeze_all(self) -> None:
        """Number the messages in all buffers."""

    def wait_to_send(self) -> Flow[None]:
        """Wait until an operation can be sent that nobody waits for."""

    def send(self, operation: Operation, payloads: tuple[Frame, ...], topics: tuple[str, ...]) -> Pending:
        """Number an operation after all messages that were put before it. Nobody waits for its reply. `topics` are
        those that it puts to."""

    def discard(self) -> None:
        """Forget the messages in all buffers."""


class ClientContext:
    """The shared state of one client. All flows of a client run on its driver."""

    def __init__(
        self, driver: Driver, background: Background, buffers: Buffers, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        self.driver = driver
        self.credentials = credentials
        self.background = background
        #: Subscriptions that are open: `Client.close` closes them.
        self.open_subscriptions: set[OpenSubscription] = set()
        self._buffers = buffers
        #: Transactions that nobody waits for.
        self.transactions = UnansweredTransactions()
        #: How often a subscription went back because one of them had failed.
        self.rewinds = 0
        #: The schemas of topics that are read or written as frames.
        self.frame_schemas = FrameSchemas(self)
        _contexts.add(self)

    @property
    def core(self) -> Core:
        """The session's state machine."""
        return self.driver.core

    @property
    def schemas(self) -> TopicSchemas:
        """The schemas of topics that this client has looked up."""
        return self._buffers.schemas

    @property
    def observer(self) -> Observer:
        """Gets reports about commands and deliveries: a recorder, if the client was opened with `record=`."""
        return self.driver.core.observer

    def add_task(self, task: PeriodicTask) -> None:
        """Run a task whenever it is due. Call this again when its `due_ms` became earlier."""
        self.background.add(task)

    def remove_task(self, task: PeriodicTask) -> None:
        """Do not run a task any more."""
        self.background.remove(task)

    def end(self, reason: errors.OnceMQError) -> None:
        """Stop the background tasks and the driver. Every later call raises `reason`."""
        self._buffers.discard()
        self.background.stop()
        self.driver.stop(reason)
        self.observer.close()

    def after_fork(self) -> None:
        """Refuse every call: this is a forked child."""
        self.driver.after_fork()
        self._buffers.discard()

    def call_any(self, operation: Operation, payload: Payloads = None, *, give_up_ms: float = 0.0) -> Flow[Reply]:
        """Send a numbered operation after all messages that were put before it, and return its reply."""
        self.driver.check_usable()
        yield from self._buffers.ready()
        self._buffers.freeze_all()
        pending = self.driver.core.submit(operation, payload, give_up_ms=give_up_ms)
        return (yield from wait_for_reply(self.driver, pending))

    def wait_to_send(self) -> Flow[None]:
        """Wait until `send` can be called."""
        return self._buffers.wait_to_send()

    def send(self, operation: Operation, payloads: tuple[Frame, ...], topics: tuple[str, ...]) -> Pending:
        """Number an operation after all messages that were put before it. The next pump sends it, and nobody waits for
        its reply. `topics` are those that it puts to."""
        return self._buffers.send(operation, payloads, topics)

    def call(
        self, operation: Operation, kind: type[T], payload: Payloads = None, *, give_up_ms: float = 0.0
    ) -> Flow[T]:
        """Send a numbered operation. Raises BrokerBug if the reply is not a `kind`."""
        reply = yield from self.call_any(operation, payload, give_up_ms=give_up_ms)
        return expect(reply, kind)

    def do(self, operation: Operation) -> Flow[None]:
        """Send a numbered operation whose reply carries no data."""
        yield from self.call_any(operation)

    def ask(self, command: Command, kind: type[T]) -> Flow[T]:
        """Send a command that is safe to repeat. Raises BrokerBug if the reply is not a `kind`."""
        return ask(self.driver, command, kind)


_contexts: weakref.WeakSet[ClientContext] = weakref.WeakSet()


def _mark_forked() -> None:
    for context in list(_contexts):
        context.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
