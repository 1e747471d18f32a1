"""Calls, start and end of a client with an outbox.

Every numbered operation goes through the outbox (contract.py), a subscribe or a transaction too. Only their callers
wait for the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from oncemq.client.connection import Connection
from oncemq.client.context import ClientContext
from oncemq.client.outbox.file import OutboxFile
from oncemq.client.outbox.producer import OutboxProducer
from oncemq.client.producer.producer import H
from oncemq.client.runtime.flow import Flow
from oncemq.client.runtime.rpc import wait_for_reply
from oncemq.protocol import errors

if TYPE_CHECKING:
    from oncemq.client.core.commands.pending import Pending
    from oncemq.client.core.core import Core, Payloads
    from oncemq.client.options import ConnectSettings
    from oncemq.client.runtime.background import Background
    from oncemq.client.runtime.driver import Driver
    from oncemq.client.runtime.transport import Transport
    from oncemq.protocol.commands import Operation
    from oncemq.protocol.replies import Reply

D = TypeVar("D", bound="Driver")

log = logging.getLogger("oncemq.client")

#: `close` waits at most this long for the outbox to become empty. The rest stays for the next process.
_CLOSE_MS = 1000.0


def open_outbox(
    settings: ConnectSettings, transport: Transport, make_driver: Callable[[Core], D]
) -> tuple[OutboxFile, D]:
    """Open the outbox, and a driver for its session. If that fails, nothing stays open."""
    assert settings.outbox is not None
    outbox = None
    try:
        outbox = OutboxFile.open(settings.outbox)
        return outbox, make_driver(settings.make_core(outbox))
    except BaseException:
        transport.close()
        if outbox is not None:
            outbox.close()
        raise


class OutboxContext(ClientContext):
    """The context of a client with an outbox: a caller that gives up only stops waiting."""

    def __init__(self, producer: OutboxProducer[H], background: Background) -> None:
        super().__init__(producer.driver, background, producer)
        self._outbox = producer.outbox
        self._send_soon = producer.send_soon

    def call_any(self, operation: Operation, payload: Payloads = None, *, give_up_ms: float = 0.0) -> Flow[Reply]:
        driver = self.driver
        driver.check_usable()
        self._buffers.freeze_all()
        give_up_ms = give_up_ms or driver.core.options.patience_ms
        pending = driver.core.submit(operation, payload, give_up_ms=give_up_ms)
        self._send_soon()
        try:
            return (yield from wait_for_reply(driver, pending))
        except errors.TRANSIENT as error:
            error.add_note("It is kept in the outbox, and will be done when the broker can.")
            raise
        except errors.Refused:
            # The caller knows now.
            self._outbox.seen(pending.number)
            raise


class OutboxConnection(Connection[H]):
    """Starts without the broker, and ends with the rest in the outbox."""

    producer: OutboxProducer[H]

    def __init__(self, producer: OutboxProducer[H], background: Background) -> None:
        super().__init__(producer, OutboxContext(producer, background))
        #: At close, delete the session if the outbox is empty: the file is then of no more use.
        self.deletes_session = False
        self._bye_pending: Pending | None = None
        producer.start()

    def wait_for_session(self) -> Flow[None]:
        """Wait until the broker has accepted the session. Raises if it does not answer or is another broker."""
        pending = self.driver.core.greet()
        yield pending
        self.producer.raise_if_finished()
        pending.result()

    def _finish_work(self, clean: bool) -> Flow[None]:
        """Close the subscriptions, and wait a moment for the outbox to become empty."""
        failures: list[errors.OnceMQError] = []
        for subscription in list(self.context.open_subscriptions):
            try:
                yield from subscription.close(clean)
            except errors.OnceMQError as error:
                failures.append(error)
        outbox = self.producer.outbox
        yield self.producer.until_empty(_CLOSE_MS)
        if outbox.pending_count:
            log.info("%d operations stay in the outbox %s, for the next process", outbox.pending_count, outbox.path)
        if failures:
            raise failures[0]
        self.producer.raise_error()

    def _bye(self) -> Pending:
        outbox = self.producer.outbox
        if not self.deletes_session or outbox.pending_count or outbox.refusals_count:
            return super()._bye()
        self._bye_pending = self.driver.core.bye(for_good=True)
        return self._bye_pending

    @property
    def is_session_deleted(self) -> bool:
        """Whether the broker has deleted the session."""
        pending = self._bye_pending
        return pending is not None and pending.done and pending.error is None

    def end(self) -> None:
        super().end()
        self.producer.stop()
