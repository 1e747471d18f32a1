"""Browsers that log in: the cookie, the CSRF token, and the end of a session."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from oncemq.auth.tokens import new_token
from oncemq.gateways.http.framework import browser_sessions
from oncemq.gateways.http.framework.browser_sessions import BrowserSessions, csrf_token_of, is_csrf_token_of
from oncemq.gateways.http.framework.endpoint import Endpoint
from tests.gateways.http.secured import Secured, accounts, secured
from tests.gateways.http.test_authentication import ALL

assert accounts
assert secured

CHANGING = [each for each in ALL if (each.method != "GET" or each.is_changing) and each.path != "/v1/login"]


class Page:
    """A page of the gateway in a browser, which keeps the cookie."""

    def __init__(self, secured: Secured, user: str, origin: str = "http://127.0.0.1:8002") -> None:
        self._secured = secured
        self._origin = origin
        self.cookie = ""
        self.csrf = ""
        reply = self.log_in(secured.accounts.token(user))
        assert reply.status_code == 200, reply.text
        self.set_cookie = reply.headers["set-cookie"]
        self.cookie = self.set_cookie.partition(";")[0]
        self.csrf = reply.json()["csrf_token"]

    def log_in(self, token: str) -> httpx.Response:
        return self.ask("POST", "/v1/login", json={"token": token})

    def ask(self, method: str, path: str, csrf: str | None = None, **given: Any) -> httpx.Response:
        headers = {"Cookie": self.cookie, "OnceMQ-CSRF": self.csrf if csrf is None else csrf, "Origin": self._origin}
        headers = {name: value for name, value in headers.items() if value}
        self._secured.client.cookies.clear()
        return self._secured.run(self._secured.client.request(method, self._origin + path, headers=headers, **given))


def test_a_browser_logs_in_and_out(secured: Secured) -> None:
    secured.store()
    page = Page(secured, "bob")
    assert page.set_cookie.partition("; ")[2] == "Max-Age=43200; Path=/; HttpOnly; SameSite=Strict"
    assert page.cookie.startswith("oncemq=")
    found = page.ask("GET", "/v1/whoami").json()
    assert (found["user"], found["csrf_token"]) == ("bob", page.csrf)
    assert page.ask("POST", "/v1/topics/orders/messages", json={"value": 1}).status_code == 201
    assert page.ask("DELETE", "/v1/topics/orders").json()["code"] == "FORBIDDEN"
    ended = page.ask("POST", "/v1/logout")
    assert (ended.status_code, ended.headers["set-cookie"].startswith("oncemq=; Max-Age=0;")) == (204, True)
    assert page.ask("GET", "/v1/whoami").status_code == 401


def test_over_tls_the_cookie_belongs_to_this_host_alone(secured: Secured) -> None:
    page = Page(secured, "bob", "https://gateway.example")
    assert page.cookie.startswith("__Host-oncemq=")
    assert page.set_cookie.partition("; ")[2] == "Max-Age=43200; Path=/; HttpOnly; SameSite=Strict; Secure"
    assert page.ask("GET", "/v1/whoami").json()["user"] == "bob"
    # A cookie of an unencrypted page is none over TLS.
    page.cookie = page.cookie.removeprefix("__Host-")
    assert page.ask("GET", "/v1/whoami").status_code == 401


@pytest.mark.parametrize("token", ["x", new_token()], ids=["nonsense", "unknown"])
def test_a_wrong_token_starts_no_session(secured: Secured, token: str) -> None:
    reply = secured.ask("", "POST", "/v1/login", json={"token": token})
    assert (reply.status_code, reply.json()["code"], "set-cookie" in reply.headers) == (401, "UNAUTHENTICATED", False)
    assert token not in reply.text or token == "x"


def test_a_login_from_another_site_is_refused(secured: Secured) -> None:
    body = {"token": secured.accounts.token("bob")}
    reply = secured.ask("", "POST", "/v1/login", headers={"Origin": "http://foreign.example"}, json=body)
    assert (reply.status_code, reply.json()["code"], "set-cookie" in reply.headers) == (403, "ORIGIN_REFUSED", False)


@pytest.mark.parametrize("endpoint", CHANGING, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
def test_whatever_changes_something_needs_the_csrf_token(secured: Secured, endpoint: Endpoint) -> None:
    page, other = Page(secured, "alice"), Page(secured, "alice")
    path = endpoint.path.replace("{", "").replace("}", "")
    for wrong in ("", "x", page.csrf[:-1], other.csrf):
        response = page.ask(endpoint.method, path, wrong)
        assert (response.status_code, response.json()["code"]) == (403, "ORIGIN_REFUSED")
        assert ("detail" not in response.json()) == (endpoint.error_format is not None)
    assert page.ask(endpoint.method, path).status_code != 403


def test_reading_needs_no_csrf_token_and_a_token_needs_none_for_anything(secured: Secured) -> None:
    secured.store("one")
    page = Page(secured, "alice")
    for path in (
        "/v1/topics",
        "/v1/topics/orders",
        "/v1/topics/orders/messages",
        "/v1/sessions",
        "/metrics",
        "/topics",
    ):
        assert page.ask("GET", path, "").status_code in (200, 204)
    secured.client.cookies.clear()
    headers = {"Cookie": page.cookie, "Authorization": f"Bearer {secured.accounts.token('bob')}"}
    body = {"value": 1}
    assert secured.ask("", "POST", "/v1/topics/orders/messages", headers=headers, json=body).status_code == 201
    headers["User-Agent"] = "Mozilla/5.0"
    get = "/v1/topics/orders/subscriptions/bob/messages"
    assert secured.ask("", "GET", get, headers=headers).status_code == 200


def test_a_session_ends_with_the_token_that_has_started_it(secured: Secured) -> None:
    secured.store()
    page = Page(secured, "bob")
    secured.accounts.tokens["bob"] = [new_token()]
    secured.accounts.reload()
    assert page.ask("GET", "/v1/topics").status_code == 401
    assert len(secured.app._authentication.sessions) == 0


def test_a_new_login_ends_the_former_session(secured: Secured) -> None:
    page = Page(secured, "bob")
    former = page.cookie
    page.cookie = page.log_in(secured.accounts.token("bob")).headers["set-cookie"].partition(";")[0]
    assert page.ask("GET", "/v1/whoami").status_code == 200
    page.cookie = former
    assert page.ask("GET", "/v1/whoami").status_code == 401


@pytest.mark.parametrize("cookie", ["oncemq=", "oncemq=x", "oncemq", "a=b; oncemq=\udcff", ";;=;", "__Host-oncemq=x"])
def test_a_cookie_that_is_none_is_nobodys(secured: Secured, cookie: str) -> None:
    headers: Any = {"Cookie": cookie.encode("utf-8", "surrogateescape")}
    assert secured.run(secured.client.get("/v1/topics", headers=headers)).status_code == 401


# The table of sessions.


def test_sessions_end_after_half_a_day_and_their_number_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(browser_sessions, "_SESSIONS_MAX", 30)
    sessions = BrowserSessions(lambda: now_s)
    own = [sessions.start("a/1") for _ in range(25)]
    assert [bool(sessions.find_caller(each)) for each in own] == [False] * 5 + [True] * 20
    others = [sessions.start(f"b/{number}") for number in range(15)]
    assert len(sessions) == 30
    assert [sessions.find_caller(each) for each in others] == [f"b/{number}" for number in range(15)]
    now_s = browser_sessions.LIFETIME_S - 1.0
    assert sessions.find_caller(others[0]) == "b/0"
    now_s += 1
    assert sessions.find_caller(others[0]) == ""
    sessions.start("c/1")
    assert len(sessions) == 1


def test_nothing_in_memory_is_a_cookie_and_tokens_differ() -> None:
    sessions = BrowserSessions(lambda: 0.0)
    first, second = sessions.start("a/1"), sessions.start("a/1")
    assert len({first, second}) == 2
    assert all(first.encode() not in key and len(key) == 32 for key in sessions._sessions)
    assert is_csrf_token_of(first, csrf_token_of(first))
    assert not is_csrf_token_of(first, csrf_token_of(second))
    assert not is_csrf_token_of(first, "")
    assert not is_csrf_token_of(first, "ÿ")
