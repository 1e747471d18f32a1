"""Limits failed logins per address.

Attempts with the id of a token that exists are counted for that token: a client with wrong credentials does not keep
the other clients of its machine out.
"""

from __future__ import annotations

import ipaddress

#: Failures in a row that cost nothing, and how often another one is allowed after that.
_FREE = 10
_EVERY_MS = 1_000
_PLACES_MAX = 10_000


class FailedLogins:
    def __init__(self) -> None:
        #: (network, token) → (failures left, time of the last change), the longest unchanged first.
        self._left: dict[tuple[str, str], tuple[float, int]] = {}

    def is_limited(self, address: str, token_id: str, now_ms: int) -> bool:
        """Return whether the next attempt must be refused without a look at its secret. `token_id` is that of a token
        that exists, or empty."""
        return self._at((_network(address), token_id), now_ms) < 1

    def note(self, address: str, token_id: str, now_ms: int) -> None:
        """Count a failed attempt."""
        place = (_network(address), token_id)
        left = max(0.0, self._at(place, now_ms) - 1)
        self._left.pop(place, None)
        if len(self._left) >= _PLACES_MAX:
            del self._left[next(iter(self._left))]
        self._left[place] = (left, now_ms)

    def _at(self, place: tuple[str, str], now_ms: int) -> float:
        known = self._left.get(place)
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
