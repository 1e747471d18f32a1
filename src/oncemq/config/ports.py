"""The ports that a broker and its gateways need, and conflicts between them.

No socket is opened here: a port that another program uses is found when the broker listens.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from oncemq.config.addresses import GATEWAY_ADDRESSES, gateway_address, port_count, split_address, unix_path
from oncemq.config.settings import ServeSettings
from oncemq.protocol.errors import SettingInvalid

#: Other names of the same host.
_HOSTS = {"localhost": "127.0.0.1", "*": "0.0.0.0"}
_ALL_HOSTS = ("0.0.0.0", "::")


class Claim(NamedTuple):
    """The ports that a setting needs."""

    setting: str
    host: str
    ports: range
    is_udp: bool = False


class Clash(NamedTuple):
    one: Claim
    other: Claim
    port: int


def check_ports(settings: ServeSettings) -> None:
    """Raise SettingInvalid if two settings need the same port. HTTP that was not requested is not checked: it is left
    out if another gateway needs its port (server/serve_gateways.py)."""
    addresses = {name: gateway_address(name, getattr(settings, name)) for name in GATEWAY_ADDRESSES}
    gateways = [claim_of(name, address) for name, address in addresses.items() if address]
    if settings.http == "auto":
        gateways = [claim for claim in gateways if claim.setting != "http"]
    feeds = _claims_of("push.feed_listen", settings.push_options.feed_listen) if addresses["push"] else []
    clash = clash_of([*_claims_of("listen", settings.listen), *gateways, *feeds])
    if clash is not None:
        names = (clash.one.setting, clash.other.setting)
        detail = " (push needs three consecutive ports)" if "push" in names else ""
        raise SettingInvalid(f"{' and '.join(names)} both need port {clash.port} of {clash.other.host}{detail}.")


def claim_of(gateway: str, address: str) -> Claim:
    """Return the claim of a gateway, for an address that was checked."""
    host, first = split_address(address)
    return Claim(gateway, host, range(first, first + port_count(gateway)), is_udp=gateway == "udp")


def _claims_of(setting: str, addresses: Sequence[str]) -> list[Claim]:
    """Return the claims of addresses that were checked. A Unix socket has no port, and `*` and 0 mean any free one."""
    numbered = [each for each in addresses if not unix_path(each) and not each.endswith((":*", ":0"))]
    return [Claim(setting, host, range(port, port + 1)) for host, port in map(split_address, numbered)]


def clash_of(claims: Sequence[Claim]) -> Clash | None:
    """Return the first conflict between two settings."""
    for one, other in itertools.combinations(claims, 2):
        ports = range(max(one.ports.start, other.ports.start), min(one.ports.stop, other.ports.stop))
        is_same_kind = one.is_udp == other.is_udp and one.setting != other.setting
        if ports and is_same_kind and _is_same_host(one.host, other.host):
            return Clash(one, other, ports.start)
    return None


def _is_same_host(one: str, other: str) -> bool:
    """Return whether two hosts are known to be the same."""
    one, other = _HOSTS.get(one, one), _HOSTS.get(other, other)
    if (":" in one) != (":" in other):
        return False
    return one == other or one in _ALL_HOSTS or other in _ALL_HOSTS
