"""Nothing of one user is seen, used or repeated by another, and several tokens of one user are the same user."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from oncemq.auth.tokens import new_token
from oncemq.gateways.http.framework import callers
from oncemq.gateways.http.framework.callers import Callers
from tests.gateways.http.secured import Secured, accounts, secured

assert accounts
assert secured

ORDERS = "/v1/topics/orders"
BOBS = f"{ORDERS}/subscriptions/bob"


def put(secured: Secured, user: str, headers: dict[str, str], value: str = "x") -> httpx.Response:
    return secured.ask(user, "POST", f"{ORDERS}/messages", headers=headers, json={"value": value})


# Keys and sessions.


@pytest.mark.parametrize("principal", [{}, {"OnceMQ-Principal": "shop"}, {"OnceMQ-Principal": "bob/http"}])
def test_a_key_is_its_users_own(secured: Secured, principal: dict[str, str]) -> None:
    secured.store()
    headers = {"Idempotency-Key": "k", **principal}
    first, second = put(secured, "alice", headers).json(), put(secured, "bob", headers, "other").json()
    assert (first["offset"], second["offset"]) == (0, 1)
    assert put(secured, "alice", headers).json() == first
    assert put(secured, "bob", headers, "other").json() == second


def test_a_session_is_its_users_own(secured: Secured) -> None:
    secured.store()
    begun = secured.ok("alice", "POST", "/v1/sessions", json={"session": "s", "nonce": 7})
    headers = {"OnceMQ-Session": "s", "OnceMQ-Epoch": str(begun["epoch"]), "OnceMQ-Number": "1"}
    assert secured.refused("bob", "POST", "/v1/sessions", json={"session": "s"}) == (403, "FORBIDDEN")
    assert put(secured, "bob", headers).json()["code"] == "SESSION_UNKNOWN"
    assert put(secured, "alice", headers).status_code == 201
    assert [each["session"] for each in secured.ok("alice", "GET", "/v1/sessions")["sessions"]] == ["s"]
    assert secured.ok("bob", "GET", "/v1/sessions")["sessions"] == []
    assert secured.refused("bob", "DELETE", "/v1/sessions/s") == (404, "SESSION_UNKNOWN")


# Subscriptions.


def test_what_the_gateway_has_opened_for_one_user_is_of_no_use_to_another(secured: Secured) -> None:
    secured.store("one", "two")
    secured.accounts.rules["carol"] = ["consume orders"]
    secured.accounts.reload()
    assert len(secured.ok("bob", "GET", f"{BOBS}/messages")["messages"]) == 2
    for user in ("alice", "carol"):
        assert secured.refused(user, "GET", f"{BOBS}/messages") == (403, "FORBIDDEN")
        assert secured.refused(user, "POST", f"{BOBS}/ack", json={"upto": 2}) == (403, "FORBIDDEN")
        assert secured.refused(user, "GET", f"{BOBS}/events") == (403, "FORBIDDEN")
        body = {"acks": [{"topic": "orders", "subscriber": "bob", "upto": 1}]}
        assert secured.refused(user, "POST", "/v1/transactions", json=body) == (403, "FORBIDDEN")
    assert secured.ok("bob", "GET", f"{BOBS}/messages")["acked"] == 0


def test_an_epoch_and_a_shared_subscription_are_of_no_use_to_another_user(secured: Secured) -> None:
    secured.store("one")
    epoch = secured.ok("bob", "POST", f"{BOBS}/open")["epoch"]
    query = {"params": {"epoch": epoch}}
    assert secured.refused("alice", "GET", f"{BOBS}/messages", **query) == (403, "FORBIDDEN")
    shared = f"{ORDERS}/subscriptions/shared"
    secured.ok("bob", "PUT", shared, json={"start": "earliest", "sharing": {}})
    token = secured.ok("bob", "POST", f"{shared}/take", json={"member": "m", "number": 1})["token"]
    for path, body in (
        ("take", {"member": "m", "number": 1}),
        ("ack", {"token": token, "offsets": [0]}),
        ("nack", {"token": token, "offsets": [0]}),
        ("extend", {"tokens": [token]}),
    ):
        assert secured.refused("alice", "POST", f"{shared}/{path}", json=body) == (403, "FORBIDDEN")


def test_two_tokens_of_one_user_share_a_subscription(secured: Secured) -> None:
    secured.store("one", "two")
    epoch = secured.ok("bob", "GET", f"{BOBS}/messages")["epoch"]
    secured.accounts.tokens["bob"].append(new_token())
    secured.accounts.reload()
    assert secured.ok("bob", "GET", f"{BOBS}/messages")["epoch"] == epoch
    # Even if the token that has opened it is removed.
    del secured.accounts.tokens["bob"][0]
    secured.accounts.reload()
    assert secured.ok("bob", "POST", f"{BOBS}/ack", json={"upto": 1}) == {
        "topic": "orders",
        "subscriber": "bob",
        "epoch": epoch,
        "acked": 1,
    }


def test_a_token_is_replaced_under_load_without_an_error(secured: Secured) -> None:
    secured.store()
    body = {"topic": "orders", "producer_id": "P"}
    secured.ok("bob", "POST", "/producer/register", json=body)
    secured.ok("bob", "POST", "/consumer/register", json={"topic": "orders", "consumer_id": "C"})
    taken: list[str] = []

    async def produce() -> None:
        for number in range(60):
            reply = await secured.send("bob", "POST", "/producer/produce", json=body | {"message": str(number)})
            assert reply.is_success, reply.text

    async def consume() -> None:
        while len(taken) < 60:
            headers = {"Idempotency-Key": f"k{len(taken)}"}
            query = {"topic": "orders", "consumer_id": "C", "wait_ms": 10_000}
            reply = await secured.send("bob", "GET", "/consumer/consume", headers, params=query)
            assert reply.is_success, reply.text
            taken.append(reply.json()["message"])

    async def replace() -> None:
        for count in (10, 20, 30, 40):
            while len(taken) < count:
                await asyncio.sleep(0.001)
            secured.accounts.tokens["bob"].append(new_token())
            secured.accounts.reload()
            while len(taken) < count + 5:
                await asyncio.sleep(0.001)
            del secured.accounts.tokens["bob"][0]
            secured.accounts.reload()

    async def all_together() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(produce(), consume(), replace())

    secured.run(all_together())
    assert taken == [str(number) for number in range(60)]


# The queue.


def test_ids_of_the_queue_belong_to_their_user(secured: Secured) -> None:
    secured.store()
    producer, consumer = {"topic": "orders", "producer_id": "P"}, {"topic": "orders", "consumer_id": "C"}
    secured.ok("alice", "POST", "/producer/register", json=producer)
    secured.ok("alice", "POST", "/consumer/register", json=consumer)
    for method, path, given in (
        ("POST", "/producer/register", {"json": producer}),
        ("POST", "/producer/produce", {"json": producer | {"message": "x"}}),
        ("POST", "/consumer/register", {"json": consumer}),
        ("GET", "/consumer/consume", {"params": consumer}),
        ("GET", "/size", {"params": consumer}),
    ):
        response = secured.ask("bob", method, path, **given)
        assert (response.status_code, response.json()["code"]) == (403, "FORBIDDEN"), path
        assert response.json()["status"] == "failure"
    # Ids that nobody has are unknown, as they are without users.
    other = {"topic": "orders", "consumer_id": "D"}
    assert secured.refused("bob", "GET", "/size", params=other) == (404, "CONSUMER_UNKNOWN")
    unknown = {"topic": "orders", "producer_id": "Q", "message": "x"}
    assert secured.refused("bob", "POST", "/producer/produce", json=unknown)[1] == "PRODUCER_UNKNOWN"


def test_the_same_key_makes_different_ids_for_different_users(secured: Secured) -> None:
    secured.store()
    ids = {
        secured.ok(user, "POST", "/consumer/register", headers={"Idempotency-Key": "k"}, json={"topic": "orders"})[
            "consumer_id"
        ]
        for user in ("alice", "bob", "alice", "bob")
    }
    assert len(ids) == 2


def test_keys_of_deliveries_are_recorded_for_each_user(secured: Secured) -> None:
    secured.store()
    for user, name in (("alice", "A"), ("bob", "B")):
        secured.ok(user, "POST", "/consumer/register", json={"topic": "orders", "consumer_id": name})
    for value in ("one", "two"):
        secured.ok("alice", "POST", f"{ORDERS}/messages", json={"value": value})
    for user, name in (("alice", "A"), ("bob", "B")):
        query = {"topic": "orders", "consumer_id": name}
        found = [
            secured.ok(user, "GET", "/consumer/consume", headers={"Idempotency-Key": key}, params=query)["message"]
            for key in ("k1", "k1", "k2", "k2")
        ]
        assert found == ["one", "one", "two", "two"]


# Lists.


def test_lists_and_metrics_have_what_a_user_may_see(secured: Secured) -> None:
    secured.store("one")
    secured.ok("alice", "PUT", "/v1/topics/secret")
    secured.ok("alice", "PUT", "/v1/topics/secret/subscriptions/spy")

    def topics(user: str) -> list[str]:
        found = [each["topic"] for each in secured.ok(user, "GET", "/v1/topics")["topics"]]
        assert found == secured.ok(user, "GET", "/topics")["topics"]
        return found

    assert (topics("alice"), topics("bob"), topics("vera")) == (["orders", "secret"], ["orders"], ["orders", "secret"])
    assert secured.refused("bob", "GET", "/v1/topics/secret") == (404, "TOPIC_UNKNOWN")
    assert secured.refused("bob", "GET", "/v1/topics/secret/subscriptions/spy")[0] == 403
    bobs, veras = secured.ask("bob", "GET", "/metrics").text, secured.ask("vera", "GET", "/metrics").text
    assert 'topic="orders"' in bobs
    assert ("secret" in bobs, "oncemq_commands_total" in bobs) == (False, False)
    assert ('topic="secret",subscriber="spy"' in veras, "oncemq_commands_total" in veras) == (True, True)
    assert secured.refused("vera", "GET", f"{ORDERS}/messages") == (403, "FORBIDDEN")


def test_a_prefix_finds_topics_behind_many_that_are_hidden(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemq.engine.decide.lists._HIDDEN_MAX", 2)
    for number in range(9):
        secured.ok("alice", "PUT", f"/v1/topics/bobs{number}")
    secured.ok("alice", "PUT", "/v1/topics/bobs.own")
    secured.accounts.rules["bob"] = ["describe bobs8"]
    secured.accounts.reload()
    assert 'topic="bobs8"' in secured.ask("bob", "GET", "/metrics", params={"prefix": "bobs"}).text


# What is kept.


class _State:
    def __init__(self, link: Any, shared: list[None] | None = None) -> None:
        self.link = link
        self.shared = shared or [None]

    def for_link(self, link: Any) -> _State:
        return _State(link, self.shared)


class _Link:
    caller = ""

    def for_caller(self, caller: str) -> str:
        return caller


def test_the_state_of_users_without_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "USERS_MAX", 2)
    nobody: Any = _Link()
    kept = Callers(nobody, _State)
    with kept.use("a/1") as (_, state):
        assert state.link == "a/1"
        for name in ("b/1", "c/1", "d/1", "b/1"):
            with kept.use(name):
                pass
        assert len(kept) == 2
        with kept.use("a/2") as (_, other):
            # A user with a request in progress has one state, whatever happens.
            assert (other.link, other.shared is state.shared) == ("a/2", True)
    for number in range(callers._CALLERS_MAX + 3):
        with kept.use(f"a/{number}"):
            pass
    assert len(kept._users["a"].callers) == callers._CALLERS_MAX
