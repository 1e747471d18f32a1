"""The text gateway: one ROUTER socket, and a desk that answers what comes in.

It remembers nothing that the broker does not: it may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from oncemq.gateways.link import Link
from oncemq.gateways.text.peers import Peers
from oncemq.gateways.text.requests import format_error, parse
from oncemq.gateways.text.server import Desk
from oncemq.gateways.text.settings import TextSettings
from oncemq.protocol import errors

log = logging.getLogger("oncemq.text")

_DRAIN_S = 1.0


class TextGateway:
    """Fulfils `gateways.contract.Gateway`."""

    def __init__(self, broker: Sequence[str] | Link, settings: TextSettings | None = None) -> None:
        """`broker`: its addresses, and those of its standbys; or a link to it, which stays open."""
        self.addresses: list[str] = []
        self._broker = broker
        self._settings = settings or TextSettings()
        self._link: Link | None = None

    async def start(self) -> None:
        """Listen. Raises ListenFailed. The broker may be away: who asks for something is told."""
        self._peers = Peers(self._settings, self._answer)
        self._link = self._broker if isinstance(self._broker, Link) else Link(self._broker, label="text")
        self._desk = Desk(self._link)
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
            return await self._desk.answer(parse(self._one_frame(body)))
        except errors.OnceMQError as error:
            log.debug("refused: %s", error)
            return format_error(error)
        except asyncio.CancelledError:
            raise
        except Exception:
            # Nobody's request may end the gateway, or stay without an answer.
            log.exception("a request met a fault of the gateway")
            return format_error(errors.BrokerBug("the gateway could not answer this; its log says why"))

    def _one_frame(self, body: list[bytes]) -> bytes:
        if len(body) != 1:
            raise errors.Malformed(f"a request is one frame, this one has {len(body)}")
        if len(body[0]) > self._settings.request_bytes_max:
            raise errors.TooLarge(f"a request has at most {self._settings.request_bytes_max} bytes")
        return body[0]
