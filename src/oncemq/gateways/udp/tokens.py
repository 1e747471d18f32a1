"""Tokens that validate an address: a peer that knows the token that was sent to an address can receive there.

A token is a keyed hash of the address, so nothing is stored per address. The key is random, and changes every hour and
with each process; tokens of the key before are still valid.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable

Address = tuple[str, int]

KEY_MS = 3600 * 1000


def _make_key() -> bytes:
    return secrets.token_bytes(32)


class Tokens:
    def __init__(self, make_key: Callable[[], bytes] = _make_key) -> None:
        self._make_key = make_key
        self._key = make_key()
        self._last_key = make_key()
        self._since_ms = float("-inf")

    def token(self, now_ms: float, address: Address) -> int:
        """Return the token of an address."""
        self._rotate(now_ms)
        return _hash(self._key, address)

    def is_valid(self, now_ms: float, address: Address, token: int) -> bool:
        """Return whether a token is that of the address."""
        self._rotate(now_ms)
        received = token.to_bytes(8, "big")
        return any(
            hmac.compare_digest(received, _hash(key, address).to_bytes(8, "big")) for key in (self._key, self._last_key)
        )

    def _rotate(self, now_ms: float) -> None:
        if self._since_ms == float("-inf"):
            self._since_ms = now_ms
        while now_ms - self._since_ms >= KEY_MS:
            self._key, self._last_key = self._make_key(), self._key
            # After a long idle time both keys are new.
            self._since_ms = max(self._since_ms + KEY_MS, now_ms - KEY_MS)


def _hash(key: bytes, address: Address) -> int:
    host, port = address
    digest = hashlib.blake2b(f"{host} {port}".encode(), key=key, digest_size=8).digest()
    # 0 means: no token.
    return int.from_bytes(digest, "big") or 1


def source_of(address: Address) -> str:
    """Return what limits per source count. A remote host can use any number of ports, so all its ports are one source.
    On this machine, different ports are different programs."""
    return f"{address[0]} {address[1]}" if is_loopback(address) else address[0]


def is_loopback(address: Address) -> bool:
    host = address[0]
    return host == "::1" or host.startswith(("127.", "::ffff:127."))
