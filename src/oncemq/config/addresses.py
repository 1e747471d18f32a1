"""Addresses: where a broker and its gateways may listen. Opens no socket."""

from __future__ import annotations

import re
from collections.abc import Iterable

from oncemq.protocol.errors import SettingInvalid

DEFAULT_URL = "tcp://127.0.0.1:5555"
#: Where each gateway listens, unless it is told otherwise.
GATEWAY_ADDRESSES = {
    "http": "127.0.0.1:8002",
    "text": "127.0.0.1:5556",
    "push": "127.0.0.1:5557",
    "udp": "127.0.0.1:5560",
}
#: For publishers, the feed, and acknowledgements, in a row.
PUSH_PORTS = 3

_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|\[::1\]")
_TCP = re.compile(r"tcp://(?P<host>\[[^\]]*\]|[^:/\[\]]+):(?P<port>\d{1,5}|\*)")
_HOST_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:/\[\]]+):(?P<port>\d{1,5})")


def split_addresses(texts: str | Iterable[str]) -> list[str]:
    """Return the addresses of one or several texts, each of which may hold several with commas between them.

    >>> split_addresses("tcp://127.0.0.1:5555, ipc:///run/oncemq.sock")
    ['tcp://127.0.0.1:5555', 'ipc:///run/oncemq.sock']
    """
    texts = [texts] if isinstance(texts, str) else texts
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def check_address(address: str, insecure: bool, setting: str = "listen") -> None:
    """Raises SettingInvalid unless one may listen there."""
    if address.startswith("ipc://") and len(address) > len("ipc://"):
        return
    match = _TCP.fullmatch(address)
    if match is None or (match["port"] != "*" and int(match["port"]) > 65_535):
        raise SettingInvalid(f"{setting}: {address!r} is not an address; {DEFAULT_URL} or ipc:///tmp/oncemq are.")
    if not insecure and not _LOOPBACK.fullmatch(match["host"]):
        raise SettingInvalid(
            f"{setting}: {address} can be reached from other machines, and nobody is asked for a password. "
            "Use tcp://127.0.0.1:PORT, or say `insecure` if the network is trusted."
        )


def is_open(address: str) -> bool:
    """Other machines can reach it."""
    match = _TCP.fullmatch(address) or _HOST_PORT.fullmatch(address)
    return match is not None and not _LOOPBACK.fullmatch(match["host"])


def check_gateway(name: str, address: str, insecure: bool) -> None:
    """Raises SettingInvalid unless the gateway may listen there."""
    if address in ("auto", "none"):
        return
    match = _HOST_PORT.fullmatch(address)
    if match is None or not 1 <= int(match["port"]) <= 65_535:
        usual = GATEWAY_ADDRESSES[name]
        raise SettingInvalid(f"{name}: {address!r} is not an address; {usual} is, and so are `auto` and `none`.")
    if int(match["port"]) + port_count(name) - 1 > 65_535:
        raise SettingInvalid(f"{name}: {address}: {name} needs three ports in a row, and 65535 is the last there is.")
    if not insecure and is_open(address):
        raise SettingInvalid(
            f"{name}: {address} can be reached from other machines, and the gateway asks nobody for a password. "
            "Use 127.0.0.1:PORT, or say `insecure` if the network is trusted."
        )


def port_count(gateway: str) -> int:
    return PUSH_PORTS if gateway == "push" else 1


def gateway_address(name: str, address: str) -> str:
    """Where a gateway listens; empty: there is to be none."""
    return {"auto": GATEWAY_ADDRESSES[name], "none": ""}.get(address, address)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address that was checked."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)
