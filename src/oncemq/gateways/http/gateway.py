"""The HTTP gateway: the application on uvicorn."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemq.gateways.http.connections import Connections
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.gateways.tasks import start
from oncemq.net.tls import has_server_certificate
from oncemq.protocol import errors

if TYPE_CHECKING:
    from oncemq.gateways.http.tls import TlsAcceptor

#: Response headers that a web page may read.
EXPOSED = (
    "OnceMQ-Offset",
    "OnceMQ-Position",
    "OnceMQ-Next-Position",
    "OnceMQ-End-Offset",
    "OnceMQ-Acked",
    "OnceMQ-Epoch",
    "OnceMQ-Time",
    "OnceMQ-Key",
    "OnceMQ-Headers",
    "OnceMQ-Idempotency-Key",
    "Retry-After",
    "WWW-Authenticate",
)

#: Connections beyond those of requests that are answered and of requests that wait for messages, `connections_max`
#: each: for monitoring, and to wait for a request.
_IDLE_CONNECTIONS = 1000
#: What the kernel holds of a response that the client can't receive yet.
_UNSENT_BYTES = 128 * 1024


class HttpGateway:
    """Implements `gateways.contract.Gateway`."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises MissingExtra, SettingInvalid."""
        self.addresses: list[str] = []
        self._settings = settings
        self._connections = Connections(2 * settings.connections_max + _IDLE_CONNECTIONS)
        self._tls = _make_tls(settings, self._connections)
        self._server = _make_server(settings, self._connections, self._tls)
        self._serving: asyncio.Task[None] | None = None
        self._is_stopping = False
        #: Called if the server has ended without `stop`.
        self.on_failure: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Listen. Raises ListenFailed. The broker may be unreachable: then requests are answered with an error."""
        self._connections.fit_descriptors()
        listening = listen(self._settings)
        scheme = "http" if self._tls is None else "https"
        self.addresses = [f"{scheme}://{self._settings.host_text}:{listening.getsockname()[1]}"]
        self._serving = start(self._serve(listening), "the HTTP server", lambda _: self.on_failure())

    async def _serve(self, listening: socket.socket) -> None:
        await self._server.serve(sockets=[listening])
        if not self._is_stopping:
            raise RuntimeError("uvicorn has ended")

    def reload(self) -> None:
        """Use a new certificate for new connections. It is also noticed without this call."""
        if self._tls is not None:
            self._tls.certificate.reload()

    async def stop(self) -> None:
        if self._serving is not None:
            self._is_stopping = self._server.should_exit = True
            await asyncio.wait([self._serving])
            self._serving = None


def _make_server(settings: GatewaySettings, connections: Connections, tls: TlsAcceptor | None) -> Any:
    from oncemq.gateways.http.endpoints import make_app
    from oncemq.gateways.http.server import Server

    app = make_app(settings)
    return Server(app, with_origins(app, settings), connections, tls)


def _make_tls(settings: GatewaySettings, connections: Connections) -> TlsAcceptor | None:
    try:
        from oncemq.gateways.http.certificate import Certificate
        from oncemq.gateways.http.tls import TlsAcceptor
    except ImportError:
        raise errors.MissingExtra("the HTTP gateway is not installed: pip install 'oncemq[http]'") from None
    keys = Path(settings.keys)
    return TlsAcceptor(Certificate(keys), connections) if settings.keys and has_server_certificate(keys) else None


def with_origins(app: Any, settings: GatewaySettings) -> Any:
    """Add CORS headers for web pages of the configured origins. The application itself refuses other origins."""
    if not settings.origins:
        return app
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        app,
        allow_origins=settings.origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=EXPOSED,
    )


def listen(settings: GatewaySettings) -> socket.socket:
    """Raises ListenFailed."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        # Every connection inherits it: the kernel takes no more for a client that reads nothing.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise errors.ListenFailed(f"can't listen at {settings.http}: {error.strerror}") from None
    return listening
