"""Who can receive at an address: whoever knows the token that was sent there.

A token is a keyed hash of the address. Nothing is stored for it; the key is drawn anew each hour and in each process,
and the last one still counts. Pure but for the draw.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable

Address = tuple[str, int]

KEY_MS = 3600 * 1000


def _draw() -> bytes:
    return secrets.token_bytes(32)


class Tokens:
    def __init__(self, draw: Callable[[], bytes] = _draw) -> None:
        self._draw = draw
        self._key = draw()
        self._last_key = draw()
        self._since_ms = float("-inf")

    def token(self, now_ms: float, address: Address) -> int:
        self._turn(now_ms)
        return _hash(self._key, address)

    def is_valid(self, now_ms: float, address: Address, token: int) -> bool:
        self._turn(now_ms)
        given = token.to_bytes(8, "big")
        return any(
            hmac.compare_digest(given, _hash(key, address).to_bytes(8, "big")) for key in (self._key, self._last_key)
        )

    def _turn(self, now_ms: float) -> None:
        if self._since_ms == float("-inf"):
            self._since_ms = now_ms
        while now_ms - self._since_ms >= KEY_MS:
            self._key, self._last_key = self._draw(), self._key
            # After a long silence both are new.
            self._since_ms = max(self._since_ms + KEY_MS, now_ms - KEY_MS)


def _hash(key: bytes, address: Address) -> int:
    host, port = address
    digest = hashlib.blake2b(f"{host} {port}".encode(), key=key, digest_size=8).digest()
    # 0 stands for no token.
    return int.from_bytes(digest, "big") or 1


def is_loopback(address: Address) -> bool:
    host = address[0]
    return host == "::1" or host.startswith(("127.", "::ffff:127."))
