"""The text gateway: one ROUTER socket, and a server that answers its requests.

It keeps nothing that the broker does not have: it may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from oncemq.gateways.link import Link
from oncemq.gateways.tasks import report_failure
from oncemq.gateways.text.peers import Peers
from oncemq.gateways.text.requests import format_error, parse
from oncemq.gateways.text.server import TextServer
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
        self._link: Link | None = None

    async def start(self) -> None:
        """Listen. Raises ListenFailed. The broker may be unreachable: then requests are answered with an error."""
        self._peers = Peers(self._settings, self._answer, self.on_failure)
        self._link = (
            self._broker
            if isinstance(self._broker, Link)
            else Link(self._broker, label="text", credentials=self._settings.credentials)
        )
        self._server = TextServer(self._link)
        self.addresses = [self._peers.address]
        log.info("text clients connect to %s", self._peers.address)

    async def stop(self) -> None:
        if self._link is None:
            return
        await self._peers.stop(_DRAIN_S)
        if self._link is not self._broker:
            self._link.close()
        self._link = None

    async def _answer(self, body: list[bytes]) -> bytes:
        try:
            return await self._server.answer(parse(self._one_frame(body)))
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
