"""Gateways whose broker has users. The broker is in the process of the tests, with its real rules; the gateway is
connected as the broker's own gateway process is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from oncemq.auth.file import parse
from oncemq.auth.tokens import new_token, stored
from oncemq.auth.users import OWN_GATEWAY, Users
from oncemq.broker import embedded
from oncemq.broker.clock import SystemClock
from oncemq.broker.loop import Broker
from oncemq.broker.security.security import Security
from tests.gateways.http.rig import Gateway, Json

_numbers = itertools.count(1)

#: User → its rules.
RULES: dict[str, list[str]] = {
    "alice": ["all #"],
    "bob": ["consume orders", "write orders", "all bobs.#"],
    "carol": ["describe orders"],
    "vera": ["role viewer"],
}


class Accounts:
    """The users of a broker. Each has one token at first."""

    def __init__(self) -> None:
        self.rules = {name: list(rules) for name, rules in RULES.items()}
        self.tokens = {name: [new_token()] for name in RULES}
        #: Whether there is an auth.toml.
        self.exist = True
        self._gateway_token = new_token()
        self.security: Security

    def token(self, user: str) -> str:
        return self.tokens[user][-1]

    def load(self) -> Users | None:
        tables = [
            f"[user.{name}]\ntokens = {[str(stored(token)) for token in self.tokens[name]]}\nallow = {rules}\n"
            for name, rules in self.rules.items()
        ]
        return parse("\n".join(tables)) if self.exist else None

    def reload(self) -> None:
        assert self.security.reload() is None

    def start_broker(self, journal: Any, network: Any) -> Broker:
        clock = SystemClock()
        self.security = Security(self.load, clock.now_ms, own_gateway=stored(self._gateway_token))
        return Broker(journal, network, clock, embedded.LIMITS, security=self.security)

    def caller_of_gateway(self, *_: object) -> str:
        return f"{OWN_GATEWAY}/{stored(self._gateway_token).id}"


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> Accounts:
    """From now on, brokers in memory have these users."""
    accounts = Accounts()
    monkeypatch.setattr(embedded, "_start_broker", accounts.start_broker)
    monkeypatch.setattr(embedded._Hub, "caller_of", accounts.caller_of_gateway)
    return accounts


class Secured(Gateway):
    """A gateway whose broker has users. An empty user sends no token."""

    def __init__(self, accounts: Accounts, **settings: Any) -> None:
        super().__init__(f"memory:secured-{next(_numbers)}", **settings)
        self.accounts = accounts

    def ask(self, user: str, method: str, path: str, **given: Any) -> httpx.Response:
        return self.run(self.send(user, method, path, **given))

    async def send(
        self, user: str, method: str, path: str, headers: dict[str, str] | None = None, **given: Any
    ) -> httpx.Response:
        bearer = {"Authorization": f"Bearer {self.accounts.token(user)}"} if user else {}
        return await self.client.request(method, path, headers=bearer | (headers or {}), **given)

    def ok(self, user: str, method: str, path: str, **given: Any) -> Json:
        response = self.ask(user, method, path, **given)
        assert response.is_success, response.text
        found: Json = response.json() if response.content else {}
        return found

    def refused(self, user: str, method: str, path: str, **given: Any) -> tuple[int, str]:
        response = self.ask(user, method, path, **given)
        return response.status_code, response.json()["code"]

    def store(self, *values: str) -> None:
        """alice has put messages on `orders`, to which bob is subscribed."""
        self.ok("alice", "PUT", "/v1/topics/orders")
        self.ok("bob", "PUT", "/v1/topics/orders/subscriptions/bob")
        for value in values:
            self.ok("alice", "POST", "/v1/topics/orders/messages", json={"value": value})


@pytest.fixture
def secured(accounts: Accounts) -> Iterator[Secured]:
    gateway = Secured(accounts)
    yield gateway
    gateway.close()
