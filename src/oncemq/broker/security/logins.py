"""Limits failed logins per address."""

from __future__ import annotations

import ipaddress

#: Failures in a row that cost nothing, and how often another one is allowed after that.
_FREE = 10
_EVERY_MS = 1_000
_ADDRESSES_MAX = 10_000


class FailedLogins:
    def __init__(self) -> None:
        #: Network → (failures left, time of the last change), the longest unchanged first.
        self._left: dict[str, tuple[float, int]] = {}

    def is_limited(self, address: str, now_ms: int) -> bool:
        """Return whether the next attempt must be refused without a look at its credentials."""
        return self._at(_network(address), now_ms) < 1

    def note(self, address: str, now_ms: int) -> None:
        """Count a failed attempt."""
        network = _network(address)
        left = max(0.0, self._at(network, now_ms) - 1)
        self._left.pop(network, None)
        if len(self._left) >= _ADDRESSES_MAX:
            del self._left[next(iter(self._left))]
        self._left[network] = (left, now_ms)

    def _at(self, network: str, now_ms: int) -> float:
        known = self._left.get(network)
        if known is None:
            return _FREE
        left, at_ms = known
        return min(_FREE, left + (now_ms - at_ms) / _EVERY_MS)


def _network(address: str) -> str:
    """Return what counts as one address: for IPv6 the network, of which one machine has all addresses."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))
