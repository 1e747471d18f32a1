"""`oncemq gateway http`: the application in a process of its own, on uvicorn."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable

from oncemq import errors
from oncemq.gateways.http.settings import GatewaySettings

log = logging.getLogger("oncemq.http")

#: How long requests that are being answered may take when the gateway stops.
_DRAIN_S = 3


def run(settings: GatewaySettings, announce: Callable[[str], None]) -> int:
    """Until a signal ends it; returns the exit code. `announce` is told the address once it listens. Raises
    MissingExtra, ListenFailed."""
    try:
        import uvicorn
    except ImportError:
        raise errors.MissingExtra("the HTTP gateway is not installed: pip install 'oncemq[http]'") from None
    from oncemq.gateways.http.app import App

    listening = listen(settings)
    config = uvicorn.Config(
        App(settings), log_config=None, access_log=False, lifespan="on", server_header=False, date_header=False,
        limit_concurrency=settings.connections_max, timeout_graceful_shutdown=_DRAIN_S, proxy_headers=False, ws="none",
    )
    server = uvicorn.Server(config)
    announce(f"http://{settings.host_text}:{listening.getsockname()[1]}")
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(server, listening, settings))
    return 0


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
