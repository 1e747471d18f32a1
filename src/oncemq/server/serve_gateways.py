"""Which gateways `oncemq serve` runs, and with which arguments their process is started."""

from __future__ import annotations

import errno
import importlib.util
import socket
import time
from collections.abc import Callable

from oncemq.config.addresses import GATEWAY_ADDRESSES, gateway_address
from oncemq.config.ports import claim_of, clash_of
from oncemq.config.settings import ServeSettings
from oncemq.config.sources import GATEWAY_SETTINGS, Setting
from oncemq.protocol import errors
from oncemq.server.supervisor import Supervisor

_NEEDED_FOR_HTTP = ("starlette", "uvicorn")
#: How long to wait for the port of a requested gateway. The gateway of a broker that was just killed needs a moment to
#: end.
_RELEASE_S = 1.0


def gateway_supervisor(
    settings: ServeSettings,
    say: Callable[[str], None],
    is_stopping: Callable[[], bool] = lambda: False,
    token: str = "",
) -> Supervisor:
    """Return the supervisor of the gateways, which have this token. Raise MissingExtra or ListenFailed for a gateway
    that was requested."""
    addresses = {name: gateway_address(name, getattr(settings, name)) for name in GATEWAY_ADDRESSES}
    addresses = {name: address for name, address in addresses.items() if address}
    #: Otherwise HTTP is started only if that is possible.
    is_http_required = settings.http != "auto"
    if "http" in addresses and not all(importlib.util.find_spec(name) for name in _NEEDED_FOR_HTTP):
        if is_http_required:
            raise errors.MissingExtra("the HTTP gateway is not installed: pip install 'oncemq[http]'")
        say("HTTP is off: pip install 'oncemq[http]' installs it.")
        del addresses["http"]
    if "http" in addresses and not is_http_required:
        _drop_http_on_clash(addresses, say)
    for name, address in addresses.items():
        if name != "http" or is_http_required:
            _probe(name, address, wait_s=_RELEASE_S)

    if "http" in addresses and not is_http_required:
        return Supervisor(_OptionalHttp(settings, addresses, say).arguments, is_stopping, token)
    return Supervisor(lambda: arguments_for(settings, addresses), is_stopping, token)


def _drop_http_on_clash(addresses: dict[str, str], say: Callable[[str], None]) -> None:
    """Remove HTTP, which was not requested, if a gateway that was requested needs its port."""
    clash = clash_of([claim_of(name, address) for name, address in addresses.items()])
    if clash is not None and clash.one.setting == "http":
        why = f"{clash.other.setting} uses port {clash.port}"
        say(f"HTTP is off: {why}. `--http HOST:PORT` selects another address.")
        del addresses["http"]


class _OptionalHttp:
    """HTTP that was not requested: if its port is in use, the broker continues without it, and says so once."""

    def __init__(self, settings: ServeSettings, addresses: dict[str, str], say: Callable[[str], None]) -> None:
        self._settings = settings
        self._addresses = addresses
        self._say = say
        self._has_said = False

    def arguments(self) -> list[str] | None:
        """Return the arguments. They are computed when the broker becomes active, since only then does a standby use
        the port. None means that HTTP is the only gateway and may start later, when the port is free."""
        try:
            _probe("http", self._addresses["http"])
        except errors.ListenFailed as error:
            return self._without_http(error)
        return arguments_for(self._settings, self._addresses)

    def _without_http(self, error: errors.ListenFailed) -> list[str] | None:
        others = {name: address for name, address in self._addresses.items() if name != "http"}
        if not self._has_said:
            self._has_said = True
            later = "" if others else "It starts when the port is free; "
            self._say(f"HTTP is off: {error}. {later}`--http HOST:PORT` selects another address.")
        return arguments_for(self._settings, others) if others else None


def _probe(name: str, address: str, wait_s: float = 0.0) -> None:
    """Raise ListenFailed if a port is still in use after `wait_s`."""
    _, host, ports, is_udp = claim_of(name, address)
    until_s = time.monotonic() + wait_s
    for port in ports:
        while (failure := _bind_failure(host, port, is_udp)) is not None:
            if failure.errno != errno.EADDRINUSE or time.monotonic() >= until_s:
                at = f"port {port} of {host}"
                raise errors.ListenFailed(f"can't listen at {at} for {name}: {failure.strerror}", f"--{name}")
            time.sleep(0.02)


def _bind_failure(host: str, port: int, is_udp: bool) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM if is_udp else socket.SOCK_STREAM) as probe:
        if not is_udp:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def arguments_for(settings: ServeSettings, addresses: dict[str, str]) -> list[str]:
    """Return the arguments of the command that runs gateways at these addresses; empty if there are none."""
    if not addresses:
        return []
    arguments = ["gateway", "several"]
    for name in GATEWAY_ADDRESSES:
        arguments += ["--" + name, addresses.get(name, "none")]
        for setting in GATEWAY_SETTINGS[name]:
            arguments += _flags(setting, getattr(getattr(settings, f"{name}_options"), setting.key))
    arguments += [
        f"--keys={settings.keys_folder}",
        "--log-level",
        settings.log_level,
        "--log-format",
        settings.log_format,
    ]
    return [*arguments, "--insecure"] if settings.insecure else arguments


def _flags(setting: Setting, value: object) -> list[str]:
    if isinstance(value, bool):
        return [setting.flag] if value else []
    values = value if isinstance(value, tuple) else (value,)
    return [f"{setting.flag}={each}" for each in values]
