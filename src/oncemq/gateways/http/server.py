"""uvicorn's server, as the gateway uses it: with limited connections, and with an end that leaves no request
unanswered."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn

from oncemq.gateways.http.connections import Connections
from oncemq.gateways.http.framework.app import App
from oncemq.gateways.http.protocol import BoundedProtocol
from oncemq.gateways.http.tls import TlsAcceptor

#: How long requests in progress may take when the gateway stops, and then their error responses.
_DRAIN_S = 3.0
_LAST_S = 0.5
_CHECK_EVERY_S = 0.02


class Server(uvicorn.Server):
    def __init__(self, app: App, served: Any, connections: Connections, tls: TlsAcceptor | None = None) -> None:
        """`served` is the application with all that is wrapped around it."""
        self._app = app
        self._connections = connections
        self._tls = tls
        # The command line logs when the gateway starts and stops.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        super().__init__(
            uvicorn.Config(
                served,
                log_config=None,
                access_log=False,
                lifespan="on",
                server_header=False,
                date_header=False,
                proxy_headers=False,
                ws="none",
                http=self._make_protocol,  # type: ignore[arg-type]
            )
        )

    def _make_protocol(self, **named: Any) -> asyncio.Protocol:
        make = partial(BoundedProtocol, open_connections=self._connections, **named)
        return make() if self._tls is None else self._tls.accept(make)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.stop()
        for server in self.servers:
            server.close()
        for listening in sockets or []:
            listening.close()
        if self._tls is not None:
            self._tls.stop()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._drain()
        await self.lifespan.shutdown()

    async def _drain(self) -> None:
        """Let requests finish. Those that don't are told that their outcome is unknown. Connections whose client does
        not read its response are closed."""
        if await self._is_idle(_DRAIN_S):
            return
        for connection in list(self.server_state.connections):
            if connection.transport.get_write_buffer_size():
                connection.transport.abort()
        await asyncio.sleep(0)
        for task in self.server_state.tasks:
            task.cancel()
        await self._is_idle(_LAST_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def _is_idle(self, wait_s: float) -> bool:
        """Wait until there are no requests and no connections. Returns whether that is so."""
        until_s = asyncio.get_running_loop().time() + wait_s
        while self.server_state.connections or self.server_state.tasks:
            if asyncio.get_running_loop().time() >= until_s:
                return False
            await asyncio.sleep(_CHECK_EVERY_S)
        return True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The process handles signals, not this server.
        yield
