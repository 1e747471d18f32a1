"""Every endpoint that needs a user: with exactly the rights of the table, without them, with the same rights on another
topic, and by a user who may do everything but owns nothing. (Nobody at all: test_authentication.py.)"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from oncemq.auth.http_operations import HTTP_NEEDS, is_public
from oncemq.auth.operations import ANYONE, OWN
from oncemq.auth.rules import VERBS
from oncemq.auth.tokens import new_token
from tests.gateways.http.secured import Secured, accounts, secured

assert accounts
assert secured

#: Has what the table says.
OWNER = "olga"
#: Has all verbs on all topics, and created nothing.
RIVAL = "alice"

_TOPIC = "/v1/topics/{topic}"
_SUBSCRIPTION = "/v1/topics/{topic}/subscriptions/{subscriber}"
_SHARED = {"subscriber": "shared"}
_ENTRY = {"topic": "orders"}
#: (method, path) → (parameters of the path, what else the request has). Values of a lease are filled in.
REQUESTS: dict[tuple[str, str], tuple[dict[str, str], dict[str, Any]]] = {
    ("GET", "/v1/topics"): ({}, {}),
    ("GET", _TOPIC): ({}, {}),
    ("PUT", _TOPIC): ({}, {"json": {"retain_ms": 1, "alter": True}}),
    ("DELETE", _TOPIC): ({}, {}),
    ("GET", _TOPIC + "/schemas"): ({}, {}),
    ("PUT", _TOPIC + "/schemas"): ({}, {"json": {"definition": "id: int64"}}),
    ("POST", _TOPIC + "/schemas/check"): ({}, {"json": {"definition": "id: int64"}}),
    ("POST", _TOPIC + "/messages"): ({}, {"json": {"value": 1}}),
    ("GET", _TOPIC + "/messages"): ({}, {}),
    ("GET", _TOPIC + "/subscriptions"): ({}, {}),
    ("PUT", _SUBSCRIPTION): ({}, {"json": {}}),
    ("GET", _SUBSCRIPTION): ({}, {}),
    ("DELETE", _SUBSCRIPTION): ({}, {}),
    ("POST", _SUBSCRIPTION + "/seek"): ({}, {"json": {"to": "earliest"}}),
    ("POST", _SUBSCRIPTION + "/open"): ({}, {}),
    ("GET", _SUBSCRIPTION + "/messages"): ({}, {"params": {"ack": 1}}),
    ("GET", _SUBSCRIPTION + "/events"): ({}, {"params": {"position": 99}}),
    ("POST", _SUBSCRIPTION + "/take"): (_SHARED, {"json": {"member": "m", "number": 2}}),
    ("POST", _SUBSCRIPTION + "/ack"): (_SHARED, {"json": {"token": "TOKEN", "offsets": [0]}}),
    ("POST", _SUBSCRIPTION + "/nack"): (_SHARED, {"json": {"token": "TOKEN", "offsets": [0]}}),
    ("POST", _SUBSCRIPTION + "/extend"): (_SHARED, {"json": {"tokens": ["TOKEN"]}}),
    ("POST", "/v1/transactions"): (
        {},
        {
            "json": {
                "acks": [{"topic": "orders", "subscriber": "own", "upto": 1}],
                "puts": [{"topic": "orders", "value": 1}],
            }
        },
    ),
    ("POST", "/v1/sessions"): ({}, {"json": {"session": "own"}}),
    ("GET", "/v1/sessions"): ({}, {}),
    ("DELETE", "/v1/sessions/{session}"): ({}, {}),
    ("POST", "/v1/logout"): ({}, {}),
    ("GET", "/v1/whoami"): ({}, {}),
    ("GET", "/metrics"): ({}, {}),
    ("GET", "/topics"): ({}, {}),
    ("POST", "/topics"): ({}, {"json": {"topic_name": "new"}}),
    ("POST", "/producer/register"): ({}, {"json": {"topic": "new", "producer_id": "P2"}}),
    ("POST", "/producer/produce"): ({}, {"json": _ENTRY | {"producer_id": "P", "message": "x"}}),
    ("POST", "/consumer/register"): ({}, {"json": _ENTRY | {"consumer_id": "C2"}}),
    ("GET", "/size"): ({}, {"params": _ENTRY | {"consumer_id": "C"}}),
    ("GET", "/consumer/consume"): ({}, {"params": _ENTRY | {"consumer_id": "C"}}),
}
#: Where the id belongs to somebody who has registered it, and a new one to nobody.
_TAKEN = {
    ("POST", "/producer/register"): {"json": {"topic": "new", "producer_id": "P"}},
    ("POST", "/consumer/register"): {"json": _ENTRY | {"consumer_id": "C"}},
}
#: The topic that an endpoint creates.
_NEW = {("POST", "/topics"), ("POST", "/producer/register")}

OF_USERS = [row for row in HTTP_NEEDS if not is_public(*row)]
VERBS_OF = {row: [verb for verb, _ in HTTP_NEEDS[row] if verb in VERBS] for row in OF_USERS}
each_with_verbs = pytest.mark.parametrize("row", [row for row in OF_USERS if VERBS_OF[row]], ids=" ".join)
each_with_owner = pytest.mark.parametrize(
    "row", [row for row in OF_USERS if any(verb == OWN for verb, _ in HTTP_NEEDS[row])], ids=" ".join
)
each_for_anyone = pytest.mark.parametrize(
    "row", [row for row in OF_USERS if any(verb == ANYONE for verb, _ in HTTP_NEEDS[row])], ids=" ".join
)


def test_every_endpoint_is_asked() -> None:
    assert set(REQUESTS) == set(OF_USERS)


class Case:
    """olga has a topic, subscriptions, a lease, a session, a producer and a consumer."""

    def __init__(self, secured: Secured) -> None:
        self._secured = secured
        secured.accounts.tokens[OWNER] = [new_token()]
        self.grant(OWNER, ["all #"])
        topic = "/v1/topics/orders"
        secured.ok(OWNER, "PUT", topic, json={"retain_ms": 3_600_000})
        secured.ok(OWNER, "PUT", f"{topic}/subscriptions/own")
        secured.ok(OWNER, "PUT", f"{topic}/subscriptions/shared", json={"sharing": {}})
        secured.ok(OWNER, "POST", "/v1/sessions", json={"session": "own"})
        secured.ok(OWNER, "POST", "/producer/register", json={"topic": "orders", "producer_id": "P"})
        secured.ok(OWNER, "POST", "/consumer/register", json={"topic": "orders", "consumer_id": "C"})
        for _ in range(3):
            secured.ok(OWNER, "POST", f"{topic}/messages", json={"value": "x"})
        take = f"{topic}/subscriptions/shared/take"
        self._token = secured.ok(OWNER, "POST", take, json={"member": "m", "number": 1})["token"]

    def grant(self, user: str, rules: list[str]) -> None:
        self._secured.accounts.rules[user] = rules
        self._secured.accounts.reload()

    def ask(self, user: str, row: tuple[str, str], given: dict[str, Any] | None = None) -> httpx.Response:
        method, path = row
        names, rest = REQUESTS[row]
        for name, value in ({"topic": "orders", "subscriber": "own", "session": "own"} | names).items():
            path = path.replace("{" + name + "}", value)
        return self._secured.ask(user, method, path, **self._filled(given or rest))

    def _filled(self, part: Any) -> Any:
        if isinstance(part, dict):
            return {name: self._filled(value) for name, value in part.items()}
        if isinstance(part, list):
            return [self._filled(value) for value in part]
        return self._token if part == "TOKEN" else part


@pytest.fixture
def case(secured: Secured) -> Case:
    return Case(secured)


def _rules(row: tuple[str, str], topic: str = "") -> list[str]:
    return [f"{verb} {topic or ('new' if row in _NEW else 'orders')}" for verb in VERBS_OF[row]]


@each_with_verbs
def test_the_rights_of_the_table_are_enough(case: Case, row: tuple[str, str]) -> None:
    case.grant(OWNER, _rules(row))
    if row[1].endswith("/events"):
        # It is refused for its position, before it has an end to wait for.
        assert case.ask(OWNER, row).status_code == 416
    else:
        response = case.ask(OWNER, row)
        assert response.is_success, response.text


@each_with_verbs
def test_each_of_its_rights_is_needed(case: Case, row: tuple[str, str]) -> None:
    rules = _rules(row)
    # Those of the table that this request does not need: it creates nothing, and has no dead-letter topic.
    unneeded = {"create orders", "write orders"} if row[0] == "PUT" else {"create orders"}
    if row[1] == _TOPIC and row[0] == "PUT":
        # Every verb includes `describe`.
        unneeded |= {"describe orders"}
    for rule in set(rules) - unneeded:
        case.grant(OWNER, [other for other in rules if other != rule])
        assert case.ask(OWNER, row).status_code in (403, 404), rule


@each_with_verbs
@pytest.mark.parametrize("elsewhere", [False, True], ids=["no rights", "another topic"])
def test_it_is_refused_without_them(case: Case, row: tuple[str, str], elsewhere: bool) -> None:
    case.grant(OWNER, _rules(row, "elsewhere") if elsewhere else [])
    response = case.ask(OWNER, row)
    assert (response.status_code, response.json()["code"]) in ((403, "FORBIDDEN"), (404, "TOPIC_UNKNOWN"))


@each_with_owner
def test_what_belongs_to_somebody_else_is_refused(case: Case, row: tuple[str, str]) -> None:
    response = case.ask(RIVAL, row, _TAKEN.get(row))
    assert (response.status_code, response.json()["code"]) in ((403, "FORBIDDEN"), (404, "SESSION_UNKNOWN"))


@each_for_anyone
def test_a_user_without_rights_sees_nothing_of_others(case: Case, row: tuple[str, str]) -> None:
    case.grant("carol", [])
    response = case.ask("carol", row)
    assert response.is_success
    assert "own" not in response.text
    assert "orders" not in response.text
