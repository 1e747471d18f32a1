"""A real browser that logs in at /docs, and a page of another origin that tries to use its session."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncemq.gateways.http.gateway import HttpGateway
from oncemq.gateways.http.settings import GatewaySettings
from tests.browser import Browser
from tests.gateways.hosts import LoopThread
from tests.gateways.http.certificates import Authority
from tests.gateways.http.secured import Accounts, accounts
from tests.gateways.http.test_foreign_pages import ATTACKS

assert accounts

_CONSUME = "/consumer/consume?topic=orders&consumer_id=C"
_ACK = "/v1/topics/orders/subscriptions/C/messages?ack=1"
_POST = "/v1/topics/orders/messages?ttl_ms=60000"


class Site:
    """A gateway whose broker has users, at an address of its own."""

    def __init__(self, accounts: Accounts, keys: str = "") -> None:
        self._loop = LoopThread()
        settings = GatewaySettings(brokers=(f"memory:login-{keys}",), http="127.0.0.1:0", keys=keys)
        self._gateway = self._loop.call(_started(settings))
        self.url = self._gateway.addresses[0]
        headers = {"Authorization": f"Bearer {accounts.token('alice')}"}
        self.program = httpx.Client(base_url=self.url, headers=headers, verify=False, trust_env=False)

    def store(self) -> None:
        assert self.program.put("/v1/topics/orders").is_success
        body = {"topic": "orders", "consumer_id": "C"}
        assert self.program.post("/consumer/register", json=body).is_success
        for value in ("one", "two"):
            assert self.program.post("/v1/topics/orders/messages", json={"value": value}).is_success

    def state(self) -> tuple[Any, Any]:
        topic = self.program.get("/v1/topics/orders").json()
        return topic["end_offset"], self.program.get("/v1/topics/orders/subscriptions/C").json()

    def close(self) -> None:
        self.program.close()
        self._loop.call(self._gateway.stop())
        self._loop.stop()


async def _started(settings: GatewaySettings) -> HttpGateway:
    gateway = HttpGateway(settings)
    await gateway.start()
    return gateway


@pytest.fixture(params=["", "keys"], ids=["plain", "tls"])
def site(request: pytest.FixtureRequest, accounts: Accounts, tmp_path: Path) -> Iterator[Site]:
    keys = ""
    if request.param:
        Authority(tmp_path).issue(tmp_path / request.param, "gateway")
        keys = str(tmp_path / request.param)
    site = Site(accounts, keys)
    site.store()
    yield site
    site.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"), "--ignore-certificate-errors")
    yield browser
    browser.close()


def _log_in(browser: Browser, token: str) -> None:
    browser.wait_for("!document.getElementById('login-form').hidden")
    browser.evaluate(f"void (document.querySelector('#login-form input').value = {json.dumps(token)})")
    browser.evaluate("document.getElementById('login-form').requestSubmit()")


def _status(browser: Browser, path: str, **options: Any) -> int:
    return int(browser.evaluate(f"fetch({path!r}, {json.dumps(options)}).then(response => response.status)"))


def test_the_page_logs_in_and_out(site: Site, accounts: Accounts, browser: Browser) -> None:
    browser.open(f"{site.url}/docs#list-topics")
    _log_in(browser, "omq_wrong")
    browser.wait_for("document.querySelector('#login-form p').textContent !== ''")
    token = accounts.token("alice")
    _log_in(browser, f" {token} ")
    browser.wait_for("!document.getElementById('logout-form').hidden")
    assert browser.evaluate("document.querySelector('#logout-form strong').textContent") == "alice"
    # Nothing in the page knows the token, and scripts do not see the cookie.
    assert token not in browser.evaluate("document.documentElement.outerHTML")
    assert browser.evaluate("document.querySelector('#login-form input').value + document.cookie") == ""
    curl = browser.evaluate("document.querySelector('#list-topics .curl code').textContent")
    assert curl.splitlines()[1:] == ['  -H "Authorization: Bearer $ONCEMQ_TOKEN"']
    # After a reload, the session is still there.
    browser.open("about:blank")
    browser.open(f"{site.url}/docs#list-topics")
    browser.wait_for("!document.getElementById('logout-form').hidden")
    browser.evaluate("document.querySelector('#delete-topic [name=topic]').value = 'orders'")
    browser.evaluate("document.querySelector('#delete-topic form').requestSubmit()")
    browser.wait_for("document.querySelector('#delete-topic output .good')")
    assert site.program.get("/v1/topics").json()["topics"] == []
    browser.evaluate("document.getElementById('logout-form').requestSubmit()")
    browser.wait_for("!document.getElementById('login-form').hidden")
    assert _status(browser, "/v1/topics") == 401


def test_a_page_of_another_origin_has_no_use_of_the_session(site: Site, accounts: Accounts, browser: Browser) -> None:
    browser.open(f"{site.url}/docs")
    _log_in(browser, accounts.token("alice"))
    browser.wait_for("!document.getElementById('logout-form').hidden")
    assert _status(browser, "/v1/topics") == 200
    # Even a page of this origin needs the CSRF token.
    assert _status(browser, _ACK) == _status(browser, _POST, method="POST", body="x") == 403
    before = site.state()
    with _ForeignPage() as foreign:
        for path in (_CONSUME, _ACK):
            for name, attack in ATTACKS.items():
                browser.open(foreign)
                browser.evaluate(attack.replace("TO", repr(site.url + path)))
                assert site.state() == before, name
        browser.open(foreign)
        for options in ("{}", "{mode: 'no-cors'}", "{credentials: 'include', mode: 'no-cors'}"):
            post = f"Object.assign({options}, {{method: 'POST', body: 'x'}})"
            browser.evaluate(f"fetch({site.url + _POST!r}, {post}).catch(() => 0)")
        browser.evaluate(f"navigator.sendBeacon({site.url + _POST!r}, 'x')")
        read = f"fetch({site.url + '/v1/whoami'!r}, {{credentials: 'include'}}).then(r => r.text()).catch(() => 'none')"
        assert browser.evaluate(read) == "none"
    assert site.state() == before


class _ForeignPage:
    """The address of a page of another origin on the same host: to the browser, it is the same site."""

    def __enter__(self) -> str:
        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<!doctype html><title>foreign</title><body></body>")

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
