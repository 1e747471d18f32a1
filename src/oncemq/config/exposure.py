"""What a listener needs if other machines can reach it: users, and encryption. `insecure` allows it without."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from oncemq.config.addresses import GATEWAY_ADDRESSES, gateway_address, is_open, is_stream
from oncemq.config.settings import ServeSettings
from oncemq.protocol.errors import SettingInvalid

#: The files that a listener needs in the folder of keys.
TLS_FILES = ("server.pem", "server-key.pem")
CURVE_FILES = ("curve.secret",)
_FILES_OF_GATEWAYS: dict[str, tuple[str, ...]] = {
    "http": TLS_FILES,
    "text": CURVE_FILES,
    "push": CURVE_FILES,
    # Its packets are signed, and not encrypted.
    "udp": (),
}
#: Its setting, its address, and the files that it needs.
_Listener = tuple[str, str, tuple[str, ...]]
_ALL_HOSTS = ("0.0.0.0", "::", "*")


class Exposure(NamedTuple):
    """A listener that other machines can reach, and what it lacks."""

    setting: str
    address: str
    has_users: bool
    #: The file that it needs for its encryption and that does not exist.
    missing: Path | None

    @property
    def warning(self) -> str:
        if not self.has_users:
            return f"{self._listener} can be reached from other machines: everybody there can read and write."
        return f"{self._listener} can be reached from other machines, and is not encrypted: others can read tokens."

    @property
    def _listener(self) -> str:
        return f"{self.setting} at {self.address}" if self.setting in GATEWAY_ADDRESSES else self.address


def check_exposure(settings: ServeSettings, *, has_users: bool = False) -> None:
    """Raise SettingInvalid, which shows the commands to run, if a broker would listen without what it needs. It has
    users if it has an auth.toml, or if `has_users` says so."""
    if not settings.insecure:
        for exposure in exposures(settings, has_users=has_users):
            raise _refusal(exposure, settings)
    _check_logins(settings, has_users=has_users or settings.auth_file.exists())


def _check_logins(settings: ServeSettings, *, has_users: bool) -> None:
    """Raise SettingInvalid for a gateway that nobody could log in to. (The broker itself checks its own listener.)"""
    missing = next((name for name in CURVE_FILES if not (settings.keys_folder / name).exists()), "")
    for name, files in _FILES_OF_GATEWAYS.items():
        address = gateway_address(name, getattr(settings, name))
        if has_users and address and missing and files == CURVE_FILES:
            error = SettingInvalid(
                f"{name}: the broker has users, and nobody can log in to ZeroMQ without its keys: "
                f"{settings.keys_folder / missing} does not exist. Create it:\n  {_keys_command(address, settings)}"
            )
            error.advice = ""
            raise error


def exposures(settings: ServeSettings, *, has_users: bool = False) -> list[Exposure]:
    """Return the listeners of a broker and its gateways that other machines can reach, and that lack something."""
    gateways = {name: gateway_address(name, getattr(settings, name)) for name in GATEWAY_ADDRESSES}
    feeds = settings.push_options.feed_listen if gateways["push"] else ()
    found: list[_Listener] = []
    found += [("listen", address, TLS_FILES if is_stream(address) else CURVE_FILES) for address in settings.listen]
    found += [(name, address, _FILES_OF_GATEWAYS[name]) for name, address in gateways.items()]
    found += [("push.feed_listen", address, CURVE_FILES) for address in feeds]
    return list(_lacking(found, settings.keys_folder, has_users=has_users or settings.auth_file.exists()))


def _lacking(listeners: list[_Listener], keys: Path, *, has_users: bool) -> Iterator[Exposure]:
    for setting, address, names in listeners:
        missing = next((keys / name for name in names if not (keys / name).exists()), None)
        if is_open(address) and not (has_users and missing is None):
            yield Exposure(setting, address, has_users, missing)


def _refusal(exposure: Exposure, settings: ServeSettings) -> SettingInvalid:
    where = _where(settings)
    commands = []
    if not exposure.has_users:
        commands += [f"oncemq auth user add alice --role admin{where}", f"oncemq auth token alice{where}"]
    if exposure.missing is not None:
        commands.append(_keys_command(exposure.address, settings))
    if exposure.has_users:
        lack, risk = f"{exposure.missing} does not exist. Create it:", "everybody on the network may read tokens"
    else:
        lack, risk = "there are no users yet. Set them up:", "everybody on the network may do everything"
    lines = "".join(f"\n  {command}" for command in commands)
    error = SettingInvalid(
        f"{exposure.setting}: {exposure.address} can be reached from other machines, and {lack}{lines}\n"
        f"or add --insecure if {risk}."
    )
    error.advice = ""
    return error


def _keys_command(address: str, settings: ServeSettings) -> str:
    keys = f" --keys {shlex.quote(settings.keys)}" if settings.keys else ""
    return f"oncemq auth keys --host {_host(address)}{_where(settings)}{keys}"


def _where(settings: ServeSettings) -> str:
    """Return the flags with which `oncemq auth` finds the same file."""
    if settings.auth or settings.is_on_database:
        return f" --auth {shlex.quote(str(settings.auth_file))}"
    return f" --data {shlex.quote(settings.folder)}"


def _host(address: str) -> str:
    """Return the name that clients probably use for an address."""
    host = address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    return socket.gethostname() if host in _ALL_HOSTS else host
