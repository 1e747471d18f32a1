"""Sessions of browsers: a cookie stands for a caller who has logged in with a token.

They exist only in memory, so they end with the gateway. A session is stored under the hash of its id. The broker checks
the caller of each command, so a session of a removed token is of no use, and ends with its first refusal.

A browser adds the cookie to any request, also to one that a page of another site has caused. So a request that changes
something must also have a CSRF token, which only a page of this gateway can read. It is derived from the session's id.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable

import msgspec

#: How long a session lasts.
LIFETIME_S = 12 * 3600
#: When there are more, the oldest one ends.
_SESSIONS_MAX = 10_000
_SESSIONS_PER_CALLER_MAX = 20
_ID_BYTES = 32

#: A cookie with this prefix can only be set over TLS, by this very host.
SECURE_COOKIE = "__Host-oncemq"
PLAIN_COOKIE = "oncemq"


class _Session(msgspec.Struct, frozen=True, gc=False):
    caller: str
    until_s: float


class BrowserSessions:
    """Belongs to one event loop."""

    def __init__(self, now_s: Callable[[], float] | None = None) -> None:
        self._now_s = now_s or asyncio.get_running_loop().time
        #: By the hash of their ids, the oldest first.
        self._sessions: dict[bytes, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, caller: str) -> str:
        """Return the id of a new session."""
        self._make_space(caller)
        session_id = secrets.token_urlsafe(_ID_BYTES)
        self._sessions[_hash(session_id)] = _Session(caller, self._now_s() + LIFETIME_S)
        return session_id

    def _make_space(self, caller: str) -> None:
        now_s = self._now_s()
        ended = [key for key, session in self._sessions.items() if session.until_s <= now_s]
        own = [key for key, session in self._sessions.items() if session.caller == caller]
        ended += own[: max(0, len(own) + 1 - _SESSIONS_PER_CALLER_MAX)]
        for key in ended:
            self._sessions.pop(key, None)
        if len(self._sessions) >= _SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]

    def find_caller(self, session_id: str) -> str:
        """Return the caller of a session; empty if there is no such session."""
        session = self._sessions.get(_hash(session_id))
        return session.caller if session is not None and self._now_s() < session.until_s else ""

    def end(self, session_id: str) -> None:
        """It may have ended already."""
        self._sessions.pop(_hash(session_id), None)


def _hash(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()


def csrf_token_of(session_id: str) -> str:
    return hmac.new(session_id.encode(), b"oncemq csrf 1", "sha256").hexdigest()


def is_csrf_token_of(session_id: str, given: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(csrf_token_of(session_id).encode(), given.encode())


def cookie_name(*, is_encrypted: bool) -> str:
    return SECURE_COOKIE if is_encrypted else PLAIN_COOKIE


def session_id_in(cookies: bytes, *, is_encrypted: bool) -> str:
    """Return the session's id in a Cookie header; empty if there is none."""
    wanted = cookie_name(is_encrypted=is_encrypted)
    for pair in cookies.decode("latin-1").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted:
            return value
    return ""


def set_cookie(session_id: str, *, is_encrypted: bool) -> tuple[bytes, bytes]:
    """Return the header that sets the cookie, or with an empty id the header that deletes it."""
    parts = [
        f"{cookie_name(is_encrypted=is_encrypted)}={session_id}",
        f"Max-Age={LIFETIME_S if session_id else 0}",
        "Path=/",
        "HttpOnly",
        "SameSite=Strict",
    ]
    return b"set-cookie", "; ".join([*parts, "Secure"] if is_encrypted else parts).encode()
