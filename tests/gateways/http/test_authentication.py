"""Who has sent a request: tokens, what is remembered of them, and the table of endpoints."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from oncemq.auth.http_operations import HTTP_NEEDS, depends_on_user, is_public
from oncemq.auth.tokens import new_token, stored
from oncemq.broker import embedded
from oncemq.gateways.http import endpoints
from oncemq.gateways.http.docs import site
from oncemq.gateways.http.docs.openapi import document
from oncemq.gateways.http.endpoints import ENDPOINTS, make_app
from oncemq.gateways.http.framework import logins
from oncemq.gateways.http.framework.endpoint import Endpoint, Reply
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.gateways.link import Link
from tests.gateways.http.secured import Accounts, Secured, accounts, secured
from tests.gateways.http.v1 import Visit

assert accounts
assert secured

ALL = [*ENDPOINTS, *site.endpoints(ENDPOINTS)]
QUEUE = [endpoint for endpoint in ENDPOINTS if endpoint.error_format is not None]
each_endpoint = pytest.mark.parametrize("endpoint", ALL, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")


# The table.


def test_the_table_has_a_row_for_every_endpoint_and_no_others() -> None:
    assert {(endpoint.method, endpoint.path) for endpoint in ALL} == set(HTTP_NEEDS)


def test_an_endpoint_without_a_row_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handle(_: Any) -> Any: ...

    reply = (Reply(description=""),)
    new = Endpoint(method="GET", path="/v1/new", handler=handle, tag="", summary="", description="", replies=reply)
    monkeypatch.setattr(endpoints, "ENDPOINTS", [*ENDPOINTS, new])
    monkeypatch.setattr(site, "document", lambda _: {})
    with pytest.raises(LookupError, match="GET /v1/new has no row"):
        make_app(GatewaySettings(brokers=("memory:",)))


def test_few_endpoints_are_public() -> None:
    public = {path for method, path in HTTP_NEEDS if is_public(method, path) and not path.startswith("/docs")}
    assert public == {"/", "/openapi.json", "/v1/login", "/v1/health"}


@each_endpoint
def test_the_document_says_who_may_use_an_endpoint(endpoint: Endpoint) -> None:
    if endpoint not in ENDPOINTS:
        return
    operation = document(ENDPOINTS)["paths"][endpoint.path][endpoint.method.lower()]
    schemes = [set(each) for each in operation["security"]]
    needs_user = not is_public(endpoint.method, endpoint.path)
    assert ({"bearer"} in schemes) == depends_on_user(endpoint.method, endpoint.path)
    assert (set() in schemes or not schemes) == (not needs_user)
    is_change = endpoint.method != "GET" or endpoint.is_changing
    assert ({"cookie", "csrf"} in schemes) == (is_change and needs_user)
    assert {"401", "403"} <= set(operation["responses"]) or endpoint.path == "/v1/login"
    assert "Rights: " in operation["description"]


# Requests without a valid token.


@each_endpoint
def test_nobody_gets_an_answer_that_needs_a_user(secured: Secured, endpoint: Endpoint) -> None:
    path = endpoint.path.replace("{", "").replace("}", "")
    for headers in ({}, {"Authorization": f"Bearer {new_token()}"}):
        response = secured.ask("", endpoint.method, path, headers=headers)
        if is_public(endpoint.method, endpoint.path) and not (headers and endpoint.path == "/v1/health"):
            assert response.status_code != 401
            continue
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == 'Bearer realm="oncemq"'
        assert response.json()["code"] == "UNAUTHENTICATED"
        is_queue = endpoint in QUEUE
        assert ("status" in response.json() and response.json()["status"] == "failure") == is_queue
        assert response.headers["content-type"] == ("application/json" if is_queue else "application/problem+json")


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "Basic YWxpY2U6eA==", "Bearer \udcff", "Bearer " + "x" * 5000, "token"]
)
def test_what_is_no_token_is_nobodys(secured: Secured, value: str) -> None:
    headers = {"Authorization": value.encode("utf-8", "surrogateescape")}
    response = secured.run(secured.client.get("/v1/topics", headers=headers))  # type: ignore[arg-type]
    assert response.status_code == 401


def test_the_scheme_may_be_written_in_any_case(secured: Secured) -> None:
    token = secured.accounts.token("alice")
    assert secured.ask("", "GET", "/v1/topics", headers={"Authorization": f"bEARER  {token} "}).status_code == 200


def test_no_body_is_received_of_nobody(secured: Secured) -> None:
    async def half_a_body() -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            await asyncio.Event().wait()

        scope = {
            "type": "http",
            "method": "POST",
            "raw_path": b"/v1/topics/orders/messages",
            "query_string": b"",
            "headers": [(b"content-length", b"1000000")],
        }
        await secured.app(scope, receive, send)
        return int(sent[0]["status"])

    assert secured.run(half_a_body()) == 401


def test_nobody_may_send_a_large_body(secured: Secured) -> None:
    body = b'{"token": "%s"}' % (b"x" * 100_000)
    assert secured.refused("", "POST", "/v1/login", content=body) == (413, "TOO_LARGE")


def test_no_cache_keeps_an_answer_to_a_user(secured: Secured) -> None:
    secured.store("one")
    for path in ("/v1/topics", "/v1/health", "/metrics", "/topics", "/v1/topics/orders/subscriptions/bob/messages"):
        assert secured.ask("bob", "GET", path).headers["cache-control"] == "no-store"
    assert "cache-control" not in secured.ask("", "GET", "/v1/health").headers


def test_everybody_learns_whether_the_broker_replies_and_users_learn_more(secured: Secured) -> None:
    assert secured.ok("", "GET", "/v1/health") == {"status": "ok"}
    details = secured.ok("bob", "GET", "/v1/health")
    assert details["topics"] == 0
    assert "journal" not in details
    assert secured.ok("vera", "GET", "/v1/health")["journal"] == "memory:"


def test_a_broker_without_users_ignores_all_credentials(accounts: Accounts) -> None:
    accounts.exist = False
    gateway = Secured(accounts)
    for value in ("Basic YWxpY2U6eA==", f"Bearer {new_token()}", "Bearer " + "x" * 5000):
        assert gateway.ask("", "PUT", "/v1/topics/t", headers={"Authorization": value}).is_success
    assert gateway.ok("", "GET", "/v1/whoami") == {"user": ""}
    assert "journal" in gateway.ok("", "GET", "/v1/health")
    login = gateway.ask("", "POST", "/v1/login", json={"token": new_token()})
    assert (login.json(), "set-cookie" in login.headers) == ({"user": ""}, False)
    gateway.close()


# What is remembered.


class Asked:
    """The logins that the broker was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        login = Link.login

        async def counted(*arguments: Any) -> Any:
            self.count += 1
            return await login(*arguments)

        monkeypatch.setattr(Link, "login", counted)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


@pytest.mark.parametrize("user", ["alice", "nobody", ""])
def test_the_broker_is_asked_once_for_many_requests(
    secured: Secured, asked: Asked, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    if user == "nobody":
        monkeypatch.setattr(secured.accounts, "token", lambda _: "omq_unknown")
    requests = [secured.send(user, "GET", "/v1/topics") for _ in range(10)]
    statuses = {reply.status_code for reply in secured.together(*requests)}
    statuses |= {secured.ask(user, "GET", "/v1/sessions").status_code for _ in range(3)}
    assert (statuses, asked.count) == ({200 if user == "alice" else 401}, 1)


@pytest.mark.parametrize(("user", "limit"), [("alice", "KNOWN_S"), ("", "REFUSED_S")])
def test_it_is_asked_again_after_a_while(
    secured: Secured, asked: Asked, monkeypatch: pytest.MonkeyPatch, user: str, limit: str
) -> None:
    monkeypatch.setattr(logins, limit, 0.0)
    for _ in range(3):
        secured.ask(user, "GET", "/v1/topics")
    assert asked.count == 3


def test_a_broker_without_users_is_not_asked_for_each_request(accounts: Accounts, asked: Asked) -> None:
    accounts.exist = False
    gateway = Secured(accounts)
    assert [gateway.ask("", "GET", "/v1/topics").status_code for _ in range(5)] == [200] * 5
    assert asked.count == 1
    gateway.close()


def test_wrong_tokens_take_limited_memory_and_displace_no_valid_ones(
    secured: Secured, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemq.gateways.bounded_dict._ENTRIES_MAX", 3)
    secured.ok("alice", "GET", "/v1/topics")
    for number in range(8):
        secured.ask("", "GET", "/v1/topics", headers={"Authorization": f"Bearer {number}"})
    assert asked.count == 9
    secured.ok("alice", "GET", "/v1/topics")
    assert asked.count == 9
    known = secured.app._authentication._logins
    assert len(known._refused) == 3
    # Nothing of a token itself is kept.
    assert {len(key) for key in (*known._known, *known._refused)} == {32}


def test_a_new_token_works_although_it_was_refused_before(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "REFUSED_S", 0.01)
    token = new_token()
    headers = {"Authorization": f"Bearer {token}"}
    assert secured.ask("", "GET", "/v1/topics", headers=headers).status_code == 401
    secured.accounts.tokens["alice"].append(token)
    secured.accounts.reload()

    async def soon() -> None:
        while (await secured.client.get("/v1/topics", headers=headers)).status_code != 200:
            await asyncio.sleep(0.005)

    secured.run(asyncio.wait_for(soon(), 30))


def test_a_removed_token_is_refused_at_once(secured: Secured, asked: Asked) -> None:
    secured.store()
    (former,) = secured.accounts.tokens["alice"]
    secured.accounts.tokens["alice"] = [new_token()]
    secured.accounts.reload()
    count = asked.count
    headers = {"Authorization": f"Bearer {former}"}
    first = secured.ask("", "POST", "/v1/topics/orders/messages", headers=headers, json={"value": 1})
    # The broker has refused the put itself, and then the login.
    assert (first.status_code, asked.count) == (401, count)
    assert secured.ask("", "GET", "/v1/whoami", headers=headers).status_code == 401
    assert asked.count == count + 1
    assert secured.ok("alice", "GET", "/v1/whoami")["user"] == "alice"


def test_users_that_a_broker_gets_while_it_runs_are_noticed(accounts: Accounts) -> None:
    accounts.exist = False
    gateway = Secured(accounts)
    gateway.ok("", "PUT", "/v1/topics/orders")
    accounts.exist = True
    accounts.reload()
    assert gateway.ask("", "DELETE", "/v1/topics/orders").status_code == 403
    assert gateway.ask("", "DELETE", "/v1/topics/orders").status_code == 401
    assert gateway.ok("alice", "GET", "/v1/topics")["topics"][0]["topic"] == "orders"
    gateway.close()


# The gateway's own credentials.


@pytest.mark.parametrize("caller", ["", "alice"])
def test_a_gateway_that_the_broker_does_not_accept_says_so(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch, caller: str
) -> None:
    named = f"{caller}/{stored(accounts.token(caller)).id}" if caller else ""
    monkeypatch.setattr(embedded._Hub, "caller_of", lambda *_: named)
    gateway = Secured(accounts)
    for user in ("bob", ""):
        response = gateway.ask(user, "GET", "/v1/topics")
        assert (response.status_code, response.json()["code"]) == (503, "BROKER_AWAY")
        assert "role gateway" in response.json()["detail"]
    gateway.close()


# Failed logins.


def test_failed_logins_are_limited_and_known_users_are_not_affected(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured.store()
    for number in range(20):
        last = secured.ask("", "GET", "/v1/topics", headers={"Authorization": f"Bearer {number}"})
    assert (last.status_code, last.json()["code"]) == (429, "RATE_LIMITED")
    assert "retry-after" in last.headers
    # What it has of alice's token is too old.
    monkeypatch.setattr(logins, "KNOWN_S", 0.0)
    known = secured.app._authentication._logins._known
    for key, (caller, _) in list(known.items()):
        known[key] = caller, 0.0
    assert secured.ask("alice", "GET", "/v1/topics").status_code == 200
    assert secured.ask("carol", "GET", "/v1/topics").status_code == 200, "a valid token is not kept out"
    assert secured.ask("", "GET", "/v1/topics").status_code == 401
    assert secured.ok("", "GET", "/v1/health") == {"status": "ok"}


# Rights that are revoked.


@pytest.mark.parametrize(("is_removed", "code"), [(True, "UNAUTHENTICATED"), (False, "FORBIDDEN")])
def test_a_stream_ends_with_the_reason_when_rights_are_revoked(secured: Secured, is_removed: bool, code: str) -> None:
    secured.store("one")
    headers = {"authorization": f"Bearer {secured.accounts.token('bob')}"}

    async def visit() -> str:
        path = "/v1/topics/orders/subscriptions/bob/events"
        async with Visit(secured, path, headers=headers) as stream:
            await stream.until(lambda text: '"one"' in text)
            _revoke(secured, is_removed)
            async with asyncio.timeout(30):
                await stream.serving
            return stream.text

    last = secured.run(visit()).strip().split("\n\n")[-1]
    assert last.startswith("event: problem\ndata: {")
    assert f'"code":"{code}"' in last


@pytest.mark.parametrize(("is_removed", "status"), [(True, 401), (False, 403)])
@pytest.mark.parametrize("kind", ["get", "read", "take", "queue"])
def test_a_request_that_waits_ends_when_rights_are_revoked(
    secured: Secured, is_removed: bool, status: int, kind: str
) -> None:
    secured.store()
    path = "/v1/topics/orders/subscriptions"
    secured.ok("bob", "PUT", f"{path}/shared", json={"sharing": {}})
    secured.ok("bob", "POST", "/consumer/register", json={"topic": "orders", "consumer_id": "C"})
    requests: dict[str, tuple[str, str, dict[str, Any]]] = {
        "get": ("GET", f"{path}/bob/messages", {"params": {"wait_ms": 60_000}}),
        "read": ("GET", "/v1/topics/orders/messages", {"params": {"wait_ms": 60_000, "position": "new"}}),
        "take": ("POST", f"{path}/shared/take", {"json": {"member": "m", "number": 1, "wait_ms": 60_000}}),
        "queue": ("GET", "/consumer/consume", {"params": {"topic": "orders", "consumer_id": "C", "wait_ms": 60_000}}),
    }
    method, url, given = requests[kind]

    async def visit() -> httpx.Response:
        waiting = asyncio.ensure_future(secured.send("bob", method, url, **given))
        while not (secured.app._link is not None and secured.app._link._poll_sessions):
            await asyncio.sleep(0.005)
        _revoke(secured, is_removed)
        async with asyncio.timeout(30):
            return await waiting

    assert secured.run(visit()).status_code == status


def _revoke(secured: Secured, is_removed: bool) -> None:
    if is_removed:
        secured.accounts.tokens["bob"] = [new_token()]
    else:
        secured.accounts.rules["bob"] = ["describe orders"]
    secured.accounts.reload()
