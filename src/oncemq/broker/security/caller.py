"""A user whose command is decided."""

from __future__ import annotations

import hmac
import secrets

from oncemq.auth.rules import DESCRIBE
from oncemq.auth.users import Quotas, User
from oncemq.broker.security.usage import Usage

#: Seals are valid as long as this process runs.
_SEAL_KEY = secrets.token_bytes(32)
_DIGITS_MAX = 20
_MAC_DIGITS = 32


class Caller:
    """Implements `engine.caller.Caller`."""

    __slots__ = (
        "allowed",
        "is_admin",
        "is_gateway",
        "is_limited",
        "is_viewer",
        "last_put",
        "name",
        "quotas",
        "rights",
        "usage",
        "user",
    )

    def __init__(self, name: str, user: User, usage: Usage) -> None:
        #: With the credential.
        self.name = name
        self.user = user.name
        self.rights = user.rights
        self.quotas = user.quotas
        self.is_limited = user.quotas != Quotas()
        self.is_admin = user.rights.is_admin
        self.is_viewer = user.rights.is_viewer
        self.is_gateway = user.rights.is_gateway
        #: Shared by all callers of the user.
        self.usage = usage
        #: The last put that was allowed: its session, its topic, and the changes of owners until then.
        self.last_put = ("", "", -1)
        #: The result of an authorisation without objections.
        self.allowed: tuple[Caller, None, bool] = (self, None, False)

    def sees(self, topic: str) -> bool:
        return self.rights.allows(DESCRIBE, topic)

    def seal(self, number: int) -> str:
        return f"{number}.{self._mac(number)}"

    def unseal(self, text: str) -> int | None:
        number, _, mac = text.partition(".")
        if not number.isdecimal() or len(number) > _DIGITS_MAX:
            return None
        return int(number) if hmac.compare_digest(mac.encode(), self._mac(int(number)).encode()) else None

    def _mac(self, number: int) -> str:
        return hmac.new(_SEAL_KEY, f"{self.user} {number}".encode(), "sha256").hexdigest()[:_MAC_DIGITS]
