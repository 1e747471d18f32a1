"""The address of a subscriber, to which messages are sent again. The gateway connects to it, so it is checked first."""

from __future__ import annotations

import re

from oncemq.config.addresses import is_loopback
from oncemq.protocol import errors

_ADDRESS = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):(?P<port>[0-9]{1,5})")


def check_address(address: str, *, any_address: bool) -> None:
    """Raises Malformed, Unsupported."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise errors.Malformed(f"{address!r} is not an address: use tcp://HOST:PORT")
    if not any_address and not is_loopback(found["host"]):
        raise errors.Unsupported(
            f"'{address}' is not on this machine; the gateway connects to other machines only with any_address"
        )
