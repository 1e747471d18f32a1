"""The HTTP gateway: the application on uvicorn."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oncemq.gateways.http.settings import GatewaySettings
from oncemq.protocol import errors

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
)

#: How long requests in progress may take when the gateway stops.
_DRAIN_S = 3
#: Connections beyond `connections_max`, before uvicorn refuses new ones with its own response.
_IDLE_CONNECTIONS = 1000
#: Limit of the request line and the headers.
_HEAD_BYTES_MAX = 64 * 1024
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class HttpGateway:
    """Implements `gateways.contract.Gateway`."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises MissingExtra."""
        self.addresses: list[str] = []
        self._settings = settings
        self._server = _make_server(settings)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises ListenFailed. The broker may be unreachable: then requests are answered with an error."""
        listening = listen(self._settings)
        self.addresses = [f"http://{self._settings.host_text}:{listening.getsockname()[1]}"]
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listening]))

    async def stop(self) -> None:
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._serving = None


def _make_server(settings: GatewaySettings) -> Any:
    try:
        import uvicorn
    except ImportError:
        raise errors.MissingExtra("the HTTP gateway is not installed: pip install 'oncemq[http]'") from None
    from oncemq.gateways.http.endpoints import make_app

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.stop()
            await super().shutdown(sockets)

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            # The process handles signals, not this server.
            yield

    # The command line logs when the gateway starts and stops.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    app = make_app(settings)
    return Server(
        uvicorn.Config(
            with_origins(app, settings),
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            date_header=False,
            limit_concurrency=settings.connections_max + _IDLE_CONNECTIONS,
            timeout_graceful_shutdown=_DRAIN_S,
            proxy_headers=False,
            ws="none",
            http=_protocol(),
        )
    )


def _protocol() -> Any:
    """Return the HTTP implementation that uvicorn would choose; httptools gets a limit for headers, which it lacks."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "auto"

    class BoundedProtocol(HttpToolsProtocol):
        _is_in_head = False
        #: Bytes after the chunk in which the headers began.
        _head_bytes = 0

        def on_message_begin(self) -> None:
            self._is_in_head = True
            self._head_bytes = 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._is_in_head = False
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            if self._is_in_head:
                self._head_bytes += len(data)
                if self._head_bytes > _HEAD_BYTES_MAX:
                    self.transport.write(_HEAD_TOO_LARGE)
                    self.transport.close()
                    return
            super().data_received(data)

    return BoundedProtocol


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
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise errors.ListenFailed(f"can't listen at {settings.http}: {error.strerror}") from None
    return listening
