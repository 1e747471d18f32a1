"""Addresses on which a broker and its gateways may listen. No socket is opened here."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from oncemq.protocol.errors import SettingInvalid

DEFAULT_URL = "oncemq://127.0.0.1:5554"
#: Where a broker listens: the stream transport, and ZeroMQ.
DEFAULT_LISTEN = (DEFAULT_URL, "tcp://127.0.0.1:5555")
STREAM_PORT = 5554
#: The stream transport over TCP and over a Unix socket.
STREAM = "oncemq://"
STREAM_UNIX = "oncemq+unix://"
#: The default address of each gateway.
GATEWAY_ADDRESSES = {
    "http": "127.0.0.1:8002",
    "text": "127.0.0.1:5556",
    "push": "127.0.0.1:5557",
    "udp": "127.0.0.1:5560",
}
#: For publishers, the feed and acks: three consecutive ports.
PUSH_PORTS = 3

_TCP = re.compile(r"(?:tcp|oncemq)://(?P<host>\[[^\]]*\]|[^:/\[\]]+):(?P<port>\d{1,5}|\*)")
_HOST_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:/\[\]]+):(?P<port>\d{1,5})")


def split_addresses(texts: str | Iterable[str]) -> list[str]:
    """Return the addresses of one or several texts. Each text may hold several addresses, separated by commas.

    >>> split_addresses("oncemq://127.0.0.1:5554, oncemq+unix:///run/oncemq.sock")
    ['oncemq://127.0.0.1:5554', 'oncemq+unix:///run/oncemq.sock']
    """
    texts = [texts] if isinstance(texts, str) else texts
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def is_loopback(host: str) -> bool:
    """Return whether a host is the loopback of this machine. A name other than localhost may resolve to any address,
    so it is not.

    >>> is_loopback("127.0.0.2"), is_loopback("[::1]"), is_loopback("example.com")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_address(address: str, setting: str = "listen") -> None:
    """Raise SettingInvalid unless a broker can listen on the address. exposure.py says whether it may."""
    if unix_path(address):
        return
    match = _TCP.fullmatch(address)
    if match is None or (match["port"] != "*" and int(match["port"]) > 65_535):
        raise SettingInvalid(
            f"{setting}: {address!r} is not an address; use one like {DEFAULT_URL} or {STREAM_UNIX}/tmp/oncemq.sock, "
            "or for ZeroMQ tcp://127.0.0.1:5555 or ipc:///tmp/oncemq."
        )


def is_open(address: str) -> bool:
    """Return whether other machines can reach the address."""
    match = _TCP.fullmatch(address) or _HOST_PORT.fullmatch(address)
    return match is not None and not is_loopback(match["host"])


def is_remote(url: str) -> bool:
    """Return whether what a client sends to an address may leave this machine.

    >>> is_remote("oncemq://broker.example"), is_remote("tcp://[::1]:5555"), is_remote("ipc:///tmp/oncemq")
    (True, False, False)
    """
    scheme, _, rest = url.partition("://")
    if scheme not in ("oncemq", "tcp"):
        return False
    return not is_loopback(rest.partition("]")[0].lstrip("[") if rest.startswith("[") else rest.partition(":")[0])


def check_gateway(name: str, address: str) -> None:
    """Raise SettingInvalid unless the gateway can listen on the address."""
    if address in ("auto", "none"):
        return
    match = _HOST_PORT.fullmatch(address)
    if match is None or not 1 <= int(match["port"]) <= 65_535:
        default = GATEWAY_ADDRESSES[name]
        raise SettingInvalid(f"{name}: {address!r} is not an address; use one like {default}, or `auto` or `none`.")
    if int(match["port"]) + port_count(name) - 1 > 65_535:
        raise SettingInvalid(f"{name}: {address}: {name} needs three consecutive ports, and 65535 is the last one.")


def port_count(gateway: str) -> int:
    return PUSH_PORTS if gateway == "push" else 1


def gateway_address(name: str, address: str) -> str:
    """Return the address of a gateway; empty if it is not to be started."""
    return {"auto": GATEWAY_ADDRESSES[name], "none": ""}.get(address, address)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an address that was checked."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)


def is_stream(address: str) -> bool:
    """Return whether an address is one of the stream transport."""
    return address.startswith((STREAM, STREAM_UNIX))


def unix_path(address: str) -> str:
    """Return the path of a Unix socket, which begins with @ if it has no file; empty for other addresses."""
    scheme, separator, path = address.partition("://")
    return path if separator and scheme in ("ipc", "oncemq+unix") else ""


def stream_place(address: str) -> str | tuple[str, int]:
    """Return where the socket of a stream address is: a path, or a host and a port.

    >>> stream_place("oncemq+unix:///run/oncemq.sock"), stream_place("oncemq://[::1]:7000"), stream_place("oncemq://db")
    ('/run/oncemq.sock', ('::1', 7000), ('db', 5554))
    """
    path = unix_path(address)
    if path:
        return "\0" + path[1:] if path.startswith("@") else path
    match = _TCP.fullmatch(address)
    if match is None:
        return address.removeprefix(STREAM).strip("[]"), STREAM_PORT
    return match["host"].strip("[]"), 0 if match["port"] == "*" else int(match["port"])
