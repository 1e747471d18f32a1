"""Tokens: 256 random bits, of which the broker stores only the SHA-256. They need no slow hash."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from typing import NamedTuple

_PREFIX = "omq"
_ID_ALPHABET = string.ascii_lowercase + string.digits
_ID_LENGTH = 8
_SECRET_BYTES = 32
_TOKEN = re.compile(rf"{_PREFIX}_([a-z0-9]{{{_ID_LENGTH}}})_[A-Za-z0-9_-]{{43}}")
_STORED = re.compile(rf"([a-z0-9]{{{_ID_LENGTH}}}):([0-9a-f]{{64}})")


class StoredToken(NamedTuple):
    """What auth.toml has of a token."""

    id: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.id}:{self.sha256}"

    def is_of(self, token: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self.sha256, _sha256(token))

    @property
    def mac_key(self) -> bytes:
        """The key of the MACs of datagrams. The owner of the token computes it too (`mac_key_of`)."""
        return _mac_key(bytes.fromhex(self.sha256))


def new_token() -> str:
    token_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
    return f"{_PREFIX}_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def token_id(token: str) -> str:
    """Return the public part of a token, which identifies it; empty if it is not a token."""
    match = _TOKEN.fullmatch(token)
    return match[1] if match is not None else ""


def stored(token: str) -> StoredToken:
    return StoredToken(token_id(token), _sha256(token))


def parse_stored(text: str) -> StoredToken | None:
    """Parse an entry of auth.toml. None: it is not valid."""
    match = _STORED.fullmatch(text)
    return StoredToken(match[1], match[2]) if match is not None else None


def mac_key_of(token: str) -> bytes:
    """Return the key of the MACs of datagrams that are sent with a token."""
    return _mac_key(hashlib.sha256(token.encode()).digest())


def _mac_key(sha256: bytes) -> bytes:
    return hmac.digest(sha256, b"oncemq udp 1", "sha256")


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
