"""`oncemq gateway http`: the application in a process of its own, on uvicorn."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from oncemq import errors
from oncemq.gateways.http.settings import GatewaySettings

log = logging.getLogger("oncemq.http")

#: Headers of replies that a web page may read.
EXPOSED = (
    "OnceMQ-Offset", "OnceMQ-Position", "OnceMQ-Next-Position", "OnceMQ-End-Offset", "OnceMQ-Acked", "OnceMQ-Epoch",
    "OnceMQ-Time", "OnceMQ-Key", "OnceMQ-Headers", "OnceMQ-Idempotency-Key", "Retry-After",
)

#: How long requests that are being answered may take when the gateway stops.
_DRAIN_S = 3
_STOPPING = (signal.SIGTERM, signal.SIGINT)
#: Connections beyond those that are served, before new ones are turned away without a word of ours.
_IDLE_CONNECTIONS = 1000


def run(settings: GatewaySettings, announce: Callable[[str], None]) -> int:
    """Until a signal ends it; returns the exit code. `announce` is told the address once it listens. Raises
    MissingExtra, ListenFailed."""
    try:
        import uvicorn
    except ImportError:
        raise errors.MissingExtra("the HTTP gateway is not installed: pip install 'oncemq[http]'") from None
    from oncemq.gateways.http.app import App

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.stop()
            await super().shutdown(sockets)

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            # uvicorn's own would raise the signal once more at the end: whoever stops a gateway sees exit code 0.
            former = {number: signal.signal(number, self.handle_exit) for number in _STOPPING}
            yield
            for number, handler in former.items():
                signal.signal(number, handler)

    app = App(settings)
    listening = listen(settings)
    config = uvicorn.Config(
        with_origins(app, settings), log_config=None, access_log=False, lifespan="on", server_header=False,
        date_header=False, limit_concurrency=settings.connections_max + _IDLE_CONNECTIONS,
        timeout_graceful_shutdown=_DRAIN_S, proxy_headers=False, ws="none",
    )
    # When it starts and stops is said elsewhere.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = Server(config)
    announce(f"http://{settings.host_text}:{listening.getsockname()[1]}")
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(server, listening, settings))
    return 0


def with_origins(app: Any, settings: GatewaySettings) -> Any:
    """Web pages of these origins are answered as browsers want it. Who else may call is the app's to decide."""
    if not settings.origins:
        return app
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        app, allow_origins=settings.origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED,
    )


async def _serve(server: object, listening: socket.socket, settings: GatewaySettings) -> None:
    import uvicorn

    assert isinstance(server, uvicorn.Server)
    if settings.with_parent:
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), _end_with_parent, server, loop)
    await server.serve(sockets=[listening])


def _end_with_parent(server: object, loop: asyncio.AbstractEventLoop) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        server.should_exit = True  # type: ignore[attr-defined]


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
