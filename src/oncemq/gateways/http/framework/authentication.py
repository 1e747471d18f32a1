"""Finds out who has sent a request: `Authorization: Bearer TOKEN`, a browser's session cookie, or nobody.

auth/http_operations.py says which endpoints need a user. What a user may do is up to the broker, which checks each
command.
"""

from __future__ import annotations

import msgspec

from oncemq.auth.http_operations import depends_on_user, is_public
from oncemq.gateways.http.framework.browser_sessions import BrowserSessions, is_csrf_token_of, session_id_in
from oncemq.gateways.http.framework.endpoint import Endpoint
from oncemq.gateways.http.framework.logins import Logins
from oncemq.gateways.link import Link
from oncemq.protocol import errors

CSRF_HEADER = "OnceMQ-CSRF"
_CSRF = CSRF_HEADER.lower().encode()
_SCHEME = b"bearer "
#: A longer one is not a token.
_TOKEN_BYTES_MAX = 1024

Headers = dict[bytes, bytes]


class Sender(msgspec.Struct, frozen=True, gc=False):
    """Where a request comes from."""

    #: Without the port.
    address: str = ""
    is_encrypted: bool = False


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Who has sent a request."""

    #: `LoginReply.caller`; "" = everybody, because there are no users. None = nobody, at a public endpoint.
    caller: str | None = None
    token: str = ""
    #: The id of the browser's session, if it was used.
    session_id: str = ""

    def __repr__(self) -> str:
        """Without secrets: it may be logged."""
        return f"Identity(caller={self.caller!r})"


_NOBODY = Identity()


class Authentication:
    """Belongs to one event loop."""

    def __init__(self, link: Link) -> None:
        self._logins = Logins(link)
        self.sessions = BrowserSessions()

    async def identify(self, endpoint: Endpoint, headers: Headers, sender: Sender) -> Identity:
        """Raises Unauthenticated if the endpoint needs a user, OriginRefused if a request with a cookie may come from
        another site, RateLimited and BrokerAway."""
        if not depends_on_user(endpoint.method, endpoint.path):
            return _NOBODY
        token = _token_in(headers)
        if not token:
            identity = self._find_session(endpoint, headers, sender)
            if identity is not None:
                return identity
        try:
            return Identity(await self.log_in(token, sender), token)
        except errors.Unauthenticated:
            if token or not is_public(endpoint.method, endpoint.path):
                raise
        return _NOBODY

    async def log_in(self, token: str, sender: Sender) -> str:
        """Return the caller of a token. Raises Unauthenticated, RateLimited, BrokerAway."""
        return await self._logins.find_caller(token, sender.address)

    def _find_session(self, endpoint: Endpoint, headers: Headers, sender: Sender) -> Identity | None:
        if b"cookie" not in headers:
            return None
        session_id = session_id_in(headers[b"cookie"], is_encrypted=sender.is_encrypted)
        caller = self.sessions.find_caller(session_id) if session_id else ""
        if not caller:
            return None
        if endpoint.method != "GET" or endpoint.is_changing:
            _check_csrf(session_id, headers)
        return Identity(caller, session_id=session_id)

    def forget(self, identity: Identity) -> None:
        """The broker does not accept the caller any more."""
        self._logins.forget(identity.token)
        if identity.session_id:
            self.sessions.end(identity.session_id)


class Access(msgspec.Struct, frozen=True):
    """Who has sent a request, and from where, for endpoints that log in and out."""

    authentication: Authentication
    identity: Identity
    sender: Sender


def _token_in(headers: Headers) -> str:
    """Return the token of a request; empty if it has none. Other schemes are ignored, since a broker without users
    ignores them."""
    given = headers.get(b"authorization", b"")
    if given[: len(_SCHEME)].lower() != _SCHEME or len(given) > _TOKEN_BYTES_MAX:
        return ""
    return given[len(_SCHEME) :].strip().decode("utf-8", "replace")


def _check_csrf(session_id: str, headers: Headers) -> None:
    if not is_csrf_token_of(session_id, headers.get(_CSRF, b"").decode("latin-1")):
        raise errors.OriginRefused(
            f"a request that changes something with a session cookie needs the header {CSRF_HEADER}, with the token "
            "of POST /v1/login"
        )
