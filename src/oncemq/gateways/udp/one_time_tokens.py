"""Address tokens for hellos with a MAC. Each one starts at most one session, within ten seconds.

    u16   when it was made, in milliseconds, modulo 2¹⁶
    u48   keyed hash of that time, in full, and of the address

So a recorded hello starts nothing, and nothing is stored for an address that has not proved that it has a valid access
token. The key is random: after a restart of the gateway, all tokens are invalid.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict

from oncemq.gateways.udp.tokens import Address

VALID_MS = 10_000
#: Tokens that are remembered because they were used. Beyond it, all tokens up to the oldest one become invalid.
USED_MAX = 10_000

_TIME_BITS = 16
_TIME_MASK = (1 << _TIME_BITS) - 1
_HASH_BYTES = 6


class OneTimeTokens:
    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)
        #: (token, nonce) → when the token was made.
        self._used: OrderedDict[tuple[int, int], int] = OrderedDict()
        #: Tokens that were made until then are not valid.
        self._void_ms = -1

    def token(self, now_ms: float, address: Address) -> int:
        """Return a new token of an address."""
        return self._token(int(now_ms), address)

    def _token(self, made_ms: int, address: Address) -> int:
        host, port = address
        digest = hashlib.blake2b(f"{made_ms} {host} {port}".encode(), key=self._key, digest_size=_HASH_BYTES).digest()
        return (made_ms & _TIME_MASK) << 8 * _HASH_BYTES | int.from_bytes(digest, "big")

    def is_valid(self, now_ms: float, address: Address, token: int) -> bool:
        """Return whether a token is one of the address, and not too old."""
        made_ms = _made_ms(now_ms, token)
        if made_ms <= self._void_ms or now_ms - made_ms > VALID_MS:
            return False
        expected = self._token(made_ms, address)
        return hmac.compare_digest(expected.to_bytes(8, "big"), token.to_bytes(8, "big"))

    def use(self, now_ms: float, token: int, nonce: int) -> bool:
        """Use a valid token for a hello with this nonce. False: it was used before, so the peer needs a new one."""
        made_ms = _made_ms(now_ms, token)
        if (token, nonce) in self._used or made_ms <= self._void_ms:
            return False
        self._used[token, nonce] = made_ms
        while self._used and now_ms - next(iter(self._used.values())) > VALID_MS:
            self._used.popitem(last=False)
        while len(self._used) > USED_MAX:
            _, oldest_ms = self._used.popitem(last=False)
            self._void_ms = max(self._void_ms, oldest_ms)
        return True

    def __len__(self) -> int:
        return len(self._used)


def _made_ms(now_ms: float, token: int) -> int:
    """Return when a token was made, if it is valid."""
    now = int(now_ms)
    return now - ((now - (token >> 8 * _HASH_BYTES)) & _TIME_MASK)
