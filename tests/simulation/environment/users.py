"""The users of a run, as an auth.toml that all of its brokers read. Most runs have none.

A user has two credentials: a token, which stream connections show, and a certificate of its name, for packets.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

from oncemq.auth.rules import resolve
from oncemq.auth.tokens import stored
from oncemq.auth.users import CERTIFICATE, Quotas, User, Users
from oncemq.broker.security.security import Security
from tests.simulation.environment.world import World

#: The share of the runs with users.
SHARE = 0.3
#: The user of gateways, which act for others.
GATEWAY = "gateway"


class SimUsers:
    def __init__(self, world: World) -> None:
        self.exist = world.random("users").random() < SHARE
        self._rules: dict[str, tuple[str, ...]] = {}
        self._quotas: dict[str, Quotas] = {}
        self._users: Users | None = None

    def caller(self, user: str) -> str:
        """Return the name of a user with its certificate; empty if there are no users."""
        return f"{user}/{CERTIFICATE}={user}" if self.exist else ""

    def token(self, user: str) -> str:
        return _token(user) if self.exist else ""

    def add(self, user: str, rules: Iterable[str], quotas: Quotas | None = None) -> None:
        """Add a user, or give it these rights in addition to those that it has."""
        self.set_rules(user, (*self._rules.get(user, ()), *rules))
        if quotas is not None:
            self._quotas[user] = quotas

    def set_rules(self, user: str, rules: Iterable[str]) -> None:
        """Give a user these rights and no others. A broker that is running takes no notice until it reloads."""
        self._rules[user] = tuple(rules)
        self._users = None

    def remove(self, user: str) -> None:
        del self._rules[user]
        self._users = None

    def security(self, now_ms: Callable[[], int]) -> Security | None:
        """Return the security of a broker that starts."""
        return Security(self._load, now_ms) if self.exist else None

    def _load(self) -> Users:
        if self._users is None:
            self._users = Users(self._user(name, rules) for name, rules in self._rules.items())
        return self._users

    def _user(self, name: str, rules: tuple[str, ...]) -> User:
        token = stored(_token(name))
        return User(
            name,
            resolve(rules, {}),
            {token.id: token},
            certificates=frozenset((name,)),
            quotas=self._quotas.get(name, Quotas()),
        )


def _token(user: str) -> str:
    return f"omq_{zlib.crc32(user.encode()):08x}_{'s' * 43}"
