"""The text gateway: one ROUTER socket, and a server that answers its requests.

It keeps nothing that the broker does not have: it may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from oncemq.gateways.link import Link
from oncemq.gateways.secure_sockets import SecureSockets
from oncemq.gateways.tasks import report_failure
from oncemq.gateways.text.peers import Peers
from oncemq.gateways.text.requests import format_error, parse
from oncemq.gateways.text.servers import TextServers
from oncemq.gateways.text.settings import TextSettings
from oncemq.protocol import errors

log = logging.getLogger("oncemq.text")

_DRAIN_S = 1.0


class TextGateway:
    """Implements `gateways.contract.Gateway`."""

    def __init__(self, broker: Sequence[str] | Link, settings: TextSettings | None = None) -> None:
        """`broker`: the addresses of the broker and its standbys, or a link to it, which `stop` does not close."""
        self.addresses: list[str] = []
        self.on_failure: Callable[[], None] = lambda: None
        self._broker = broker
        self._settings = settings or TextSettings()
        #: Stops the started parts, in the reverse order of their start.
        self._started = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Listen. Raises ListenFailed. The broker may be unreachable: then requests are answered with an error."""
        async with contextlib.AsyncExitStack() as started:
            self._begin(started)
            self._started = started.pop_all()
        log.info("text clients connect to %s", self._peers.address)

    def _begin(self, started: contextlib.AsyncExitStack) -> None:
        settings = self._settings
        if isinstance(self._broker, Link):
            link = self._broker
        else:
            link = Link(self._broker, label="text", credentials=settings.credentials)
            started.callback(link.close)
        secure = None
        if settings.curve is not None:
            secure = SecureSockets(settings.curve, link, "text", self.on_failure)
            started.push_async_callback(secure.close)
        self._servers = TextServers(link)
        self._peers = Peers(settings, self._answer, self.on_failure, secure)
        started.push_async_callback(self._peers.stop, _DRAIN_S)
        self.addresses = [self._peers.address]

    async def stop(self) -> None:
        await self._started.aclose()

    async def _answer(self, body: list[bytes], caller: str) -> bytes:
        try:
            request = parse(self._one_frame(body))
            with self._servers.use(caller) as server:
                return await server.answer(request)
        except errors.OnceMQError as error:
            log.debug("refused: %s", error)
            return format_error(error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # No request may stop the gateway, or stay without a reply.
            report_failure("a text request", error)
            return format_error(errors.BrokerBug("the gateway failed; its log has the details"))

    def _one_frame(self, body: list[bytes]) -> bytes:
        if len(body) != 1:
            raise errors.Malformed(f"a request must be one frame; this one has {len(body)}")
        if len(body[0]) > self._settings.request_bytes_max:
            raise errors.TooLarge(f"a request may have at most {self._settings.request_bytes_max} bytes")
        return body[0]
