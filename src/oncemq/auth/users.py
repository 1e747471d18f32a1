"""The users of a broker: what auth.toml says, as objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from oncemq.auth.rules import GATEWAY, Rights
from oncemq.auth.tokens import StoredToken, token_id
from oncemq.protocol.commands import CURVE, MAC, NAMED, TOKEN
from oncemq.protocol.errors import Unauthenticated

#: The kind of a credential that only the stream listener knows: the common name of a client's certificate.
CERTIFICATE = "certificate"
#: The gateway process of `oncemq serve`. No user of auth.toml can have this name.
OWN_GATEWAY = "@gateway"

_UNKNOWN = "the credentials are not valid"
_NO_SECRET = StoredToken("", "0" * 64)


class Quotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one user; 0 = no limit."""

    #: Connections to the native listeners.
    connections: int = 0
    #: Bytes of requests that have arrived and wait.
    in_flight_bytes: int = 0
    #: Bytes of the messages that are stored in the topics that the user has created.
    stored_bytes: int = 0
    messages_per_s: int = 0
    topics: int = 0
    subscriptions: int = 0
    sessions: int = 0
    #: Idempotency keys.
    keys: int = 0
    registry_entries: int = 0


class User(msgspec.Struct, frozen=True):
    name: str
    rights: Rights
    tokens: Mapping[str, StoredToken] = {}
    #: Public keys of CURVE clients.
    curve: frozenset[str] = frozenset()
    #: Common names of client certificates.
    certificates: frozenset[str] = frozenset()
    quotas: Quotas = Quotas()

    def has(self, credential: str) -> bool:
        """Return whether a credential, as a caller's name has it, is still valid."""
        kind, _, value = credential.partition("=")
        if kind == CURVE:
            return value in self.curve
        if kind == CERTIFICATE:
            return value in self.certificates
        if kind == NAMED:
            return value == self.name
        return credential in self.tokens


class Users:
    """All users. It never changes: a new auth.toml makes new ones.

    A *caller* is a user and one of its credentials, as text: `kitchen/k3v9x2aa`, `kitchen/curve=…`. So all that was
    done with a credential ends when the credential is removed.
    """

    def __init__(self, users: Iterable[User]) -> None:
        self.by_name = {user.name: user for user in users}
        self._by_token = {found: user for user in self.by_name.values() for found in user.tokens}
        self._by_curve = {key: user for user in self.by_name.values() for key in user.curve}
        self._by_certificate = {name: user for user in self.by_name.values() for name in user.certificates}

    def login(self, kind: str, credential: str) -> str:
        """Return the caller of a credential. Raises Unauthenticated."""
        if kind == TOKEN:
            return self._login_token(credential)
        user = None
        if kind == CURVE:
            user = self._by_curve.get(credential)
        elif kind == CERTIFICATE:
            user = self._by_certificate.get(credential)
        elif kind == NAMED:
            user = self.by_name.get(credential)
        elif kind == MAC and credential in self._by_token:
            return f"{self._by_token[credential].name}/{credential}"
        if user is None:
            raise Unauthenticated(_UNKNOWN)
        return f"{user.name}/{kind}={credential}"

    def known_token(self, kind: str, credential: str) -> str:
        """Return the id of the token that a credential claims to be; empty if there is no such token."""
        found = token_id(credential) if kind == TOKEN else ""
        return found if found in self._by_token else ""

    def knows_key(self, kind: str, credential: str) -> bool:
        """Return whether this is the key of a user, which the handshake has proven."""
        return kind == CURVE and credential in self._by_curve

    def _login_token(self, token: str) -> str:
        found = token_id(token)
        user = self._by_token.get(found)
        # The comparison takes place in any case, so that the time does not tell whether the id exists.
        is_valid = (user.tokens[found] if user is not None else _NO_SECRET).is_of(token)
        if user is None or not is_valid:
            raise Unauthenticated(_UNKNOWN)
        return f"{user.name}/{found}"

    def mac_key(self, caller: str) -> bytes:
        """Return the key of the MACs that a caller of the kind MAC makes."""
        name, _, credential = caller.partition("/")
        return self.by_name[name].tokens[credential].mac_key

    def find(self, caller: str) -> User | None:
        """Return the user of a caller; None if the user or the credential was removed."""
        name, _, credential = caller.partition("/")
        user = self.by_name.get(name)
        return user if user is not None and user.has(credential) else None

    def with_own_gateway(self, token: StoredToken) -> Users:
        """Return these users and the gateway process of this broker."""
        own = User(OWN_GATEWAY, Rights((), (GATEWAY,)), {token.id: token})
        return Users((*self.by_name.values(), own))


def user_of(caller: str) -> str:
    """Return the name of a caller's user."""
    return caller.partition("/")[0]
