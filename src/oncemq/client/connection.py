"""How a client starts and ends, blocking or asyncio."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic

from oncemq.client.context import ClientContext
from oncemq.client.producer.producer import H, Producer
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Until
from oncemq.protocol import errors

if TYPE_CHECKING:
    from oncemq.client.core.commands.pending import Pending
    from oncemq.client.runtime.driver import Driver

log = logging.getLogger("oncemq.client")

#: `close` waits at most this long for the broker to end the session.
_BYE_MS = 500.0


class Connection(Generic[H]):
    """The producer and the context of one client, from its start to its end."""

    def __init__(self, producer: Producer[H], context: ClientContext) -> None:
        self.producer = producer
        self.context = context
        self.driver: Driver = context.driver

    def describe(self) -> str:
        """Return the session and the address, for `repr`."""
        core = self.driver.core
        return f"Client({core.session!r} at {core.options.where})"

    def greet(self) -> Flow[None]:
        """Start the session. Raises BrokerAway if no broker answers; then the connection has ended."""
        try:
            pending = self.driver.core.greet()
            yield pending
            pending.result()
        except BaseException:
            self.end()
            raise

    def close(self, clean: bool = True) -> Flow[None]:
        """Finish what can be finished, and end. Without `clean`, errors are logged and not raised."""
        if self.driver.stopped is not None:
            return
        try:
            yield from self._finish_work(clean)
            yield Until(self._bye(), now_ms() + _BYE_MS)
        except errors.OnceMQError as error:
            if clean:
                raise
            log.warning("while closing: %s", error)
        finally:
            self.end()

    def abort(self) -> Flow[None]:
        """End immediately, whatever is unfinished."""
        self.end()
        yield from ()

    def _finish_work(self, clean: bool) -> Flow[None]:
        """Close the subscriptions and flush. Everything is tried; then the first failure is raised."""
        failures: list[Exception] = []
        for step in [*(each.close(clean) for each in list(self.context.open_subscriptions)), self.flush()]:
            try:
                yield from step
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def flush(self, timeout_s: float | None = None) -> Flow[None]:
        """Wait until everything is answered that was sent without waiting. Raises the first error that no caller has
        got."""
        until_ms = None if timeout_s is None else now_ms() + timeout_s * 1000
        yield from self.producer.flush(timeout_s)
        if not (yield from self.context.transactions.finish_all(self.driver.caller.identify(), until_ms)):
            raise TimeoutError(f"transactions are not answered after {timeout_s} s")

    def _bye(self) -> Pending:
        return self.driver.core.bye()

    def end(self) -> None:
        """Every later call raises ClientClosed."""
        if self.driver.stopped is None:
            self.context.end(errors.ClientClosed("this client was closed; connect again"))
