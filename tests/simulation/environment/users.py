"""The users of a run, as an auth.toml that all of its brokers read. Most runs have none."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oncemq.auth.users import CERTIFICATE, Quotas, Users
from oncemq.broker.security.security import Security
from tests.auth.rig import make_users
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
        """Return the name of a user's connections."""
        return f"{user}/{CERTIFICATE}={user}" if self.exist else ""

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
            self._users = make_users(self._rules, self._quotas)
        return self._users
