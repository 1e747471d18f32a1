"""Which gateways `oncemq serve` has beside it, and what their process is told."""

from __future__ import annotations

import importlib.util
import logging
import socket
from collections.abc import Callable

from oncemq import errors
from oncemq.config import GATEWAY_ADDRESSES, ServeSettings, gateway_address, split_address
from oncemq.gateways.supervisor import Supervisor

log = logging.getLogger("oncemq.gateways")

_NEEDED_FOR_HTTP = ("starlette", "uvicorn")
_PUSH_PORTS = 3


def gateways_beside(
    settings: ServeSettings, say: Callable[[str], None], is_stopping: Callable[[], bool] = lambda: False
) -> Supervisor:
    """What runs them. Raises MissingExtra and ListenFailed for those that were asked for."""
    addresses = {name: gateway_address(name, getattr(settings, name)) for name in GATEWAY_ADDRESSES}
    addresses = {name: address for name, address in addresses.items() if address}
    #: HTTP is there unless it can't be.
    is_http_a_must = settings.http != "auto"
    if "http" in addresses and not all(importlib.util.find_spec(name) for name in _NEEDED_FOR_HTTP):
        if is_http_a_must:
            raise errors.MissingExtra("the HTTP gateway is not installed: pip install 'oncemq[http]'")
        say("HTTP is off: pip install 'oncemq[http]' brings it.")
        del addresses["http"]
    for name, address in addresses.items():
        if name != "http" or is_http_a_must:
            _probe(name, address)

    def arguments() -> list[str]:
        # A standby's turn comes later: whether the port is free shows then.
        wanted = dict(addresses)
        if "http" in wanted and not is_http_a_must and not _is_free(wanted["http"]):
            del wanted["http"]
        return arguments_for(settings, wanted)

    return Supervisor(arguments, is_stopping)


def _is_free(address: str) -> bool:
    try:
        _probe("http", address)
    except errors.ListenFailed as error:
        log.warning("%s: the broker goes on without HTTP. `--http HOST:PORT` chooses another address", error)
        return False
    return True


def _probe(name: str, address: str) -> None:
    """A conflict shows before anything is served. Raises ListenFailed."""
    host, first = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kind = socket.SOCK_DGRAM if name == "udp" else socket.SOCK_STREAM
    for port in range(first, first + (_PUSH_PORTS if name == "push" else 1)):
        with socket.socket(family, kind) as probe:
            if kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                at = f"port {port} of {host}"
                raise errors.ListenFailed(f"can't listen at {at} for {name}: {error.strerror}") from None


def arguments_for(settings: ServeSettings, addresses: dict[str, str]) -> list[str]:
    """Of the command that runs the gateways at these addresses; none where there are none."""
    if not addresses:
        return []
    arguments = ["gateway", "several"]
    for name in GATEWAY_ADDRESSES:
        arguments += ["--" + name, addresses.get(name, "none")]
    for field in ("http_body_bytes_max", "http_connections_max", "log_level", "log_format"):
        arguments += ["--" + field.replace("_", "-"), str(getattr(settings, field))]
    for field in ("http_origins", "http_hosts"):
        for value in getattr(settings, field):
            arguments += ["--" + field.replace("_", "-"), value]
    return [*arguments, "--insecure"] if settings.insecure else arguments
