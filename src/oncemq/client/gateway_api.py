"""The internal API of the client for gateways: a session with the broker on an event loop, and what makes its commands.

Gateways send commands for many callers, so they use the client's core directly instead of a client object. They import
from the client only what this module names. It is for the packages of OnceMQ, and may change with any version.

- `BrokerSession`: a connection with a session of its own. Its `EventLoopDriver` has the core, whose `submit` and `ask`
  return a `Pending`. `again(error)` makes a fresh copy of an error that several callers get.
- `make_put`, `Times`, `Payloads`, `check_headers`: build the operation of a put.
- `KnownSchema`, `known_of`, `claim_payloads`, `topics_of`, `STALE_SCHEMA`: check values against the schemas of topics.
- `OwnedSubscription`, `Loss`, `loss_of`, `STALE_EPOCH`, `DELETED`: consume a subscription as its owner.
- `split_urls`, `check_urls`: the addresses of a broker.
- `Credentials`, `NO_CREDENTIALS`, `credentials_of`: what the broker is shown. `CurveKeys`, `use_curve`: keys of a
  ZeroMQ socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from oncemq.client.consumer.owned_subscription import DELETED, STALE_EPOCH, Loss, OwnedSubscription, loss_of
from oncemq.client.core.commands.pending import Pending, again
from oncemq.client.core.core import Payloads
from oncemq.client.core.validation import check_headers
from oncemq.client.credentials import NO_CREDENTIALS, Credentials, CurveKeys, credentials_of
from oncemq.client.options import ConnectSettings
from oncemq.client.producer.encoding import Times, make_put
from oncemq.client.runtime.event_loop import EventLoopDriver
from oncemq.client.runtime.transport import check_urls, open_transport, split_urls
from oncemq.client.runtime.zmq_transport import use_curve
from oncemq.client.schemas.claims import KnownSchema, claim_payloads, known_of, topics_of
from oncemq.client.schemas.topic_schemas import STALE as STALE_SCHEMA
from oncemq.protocol import errors

__all__ = [
    "DELETED",
    "NO_CREDENTIALS",
    "STALE_EPOCH",
    "STALE_SCHEMA",
    "BrokerSession",
    "Credentials",
    "CurveKeys",
    "EventLoopDriver",
    "KnownSchema",
    "Loss",
    "OwnedSubscription",
    "Payloads",
    "Pending",
    "Times",
    "again",
    "check_headers",
    "check_urls",
    "claim_payloads",
    "credentials_of",
    "known_of",
    "loss_of",
    "make_put",
    "split_urls",
    "topics_of",
    "use_curve",
]

#: Enough for many callers at once.
_WINDOW = 256


class _GatewayDriver(EventLoopDriver):
    def error_for_callers(self, refusal: errors.OnceMQError) -> errors.OnceMQError:
        # It concerns the gateway, and not the credentials of its callers.
        return errors.BrokerAway(f"the broker has refused the gateway itself: {refusal.text}")


class BrokerSession:
    """A session with the broker. If the broker deletes the session, the next command starts another one.

    It belongs to the event loop that is running when it is created. The broker may be unreachable.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        label: str,
        timeout_s: float = 1.0,
        tries: int = 5,
        report_at_once: frozenset[str] = frozenset(),
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """`report_at_once`: codes of NotNow errors with which a numbered operation fails instead of waiting.
        `credentials` are those of the gateway itself."""
        self._credentials = credentials
        self._settings = ConnectSettings(urls=list(urls), label=label, timeout_s=timeout_s, tries=tries, window=_WINDOW)
        self._report_at_once = report_at_once
        self._loop = asyncio.get_running_loop()
        self._driver = self._connect()

    def _connect(self) -> EventLoopDriver:
        core = self._settings.make_core()
        core.report_at_once(self._report_at_once)
        return _GatewayDriver(core, open_transport(self._settings.urls, 0, self._credentials), self._loop)

    def driver(self) -> EventLoopDriver:
        """Return the driver for the next command. It is another one after the broker has ended the session."""
        former = self._driver
        if former.core.finished is not None and former.stopped is None:
            # In this order: an embedded broker ends with its last client.
            self._driver = self._connect()
            former.stop(errors.ClientClosed("the session ended"))
        return self._driver

    @property
    def is_closed(self) -> bool:
        return self._driver.stopped is not None

    def close(self) -> None:
        """Close the connection. Waiting callers get ClientClosed. It may be called more than once."""
        if self._driver.stopped is None:
            self._driver.stop(errors.ClientClosed("the gateway is stopping"))
