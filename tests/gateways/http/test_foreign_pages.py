"""A page of another site, in a real browser, that uses a gateway with a host name and without TLS. A browser tells such
a gateway nothing about the page: no Origin with a GET, and no Sec-Fetch-Site. The page changes nothing all the same."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from oncemq.gateways.http.framework.origin_check import OriginCheck
from oncemq.gateways.http.gateway import HttpGateway
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.protocol import errors
from tests.browser import Browser
from tests.gateways.hosts import LoopThread

HOST = "gateway.example"
FOREIGN = "foreign.example"

_CONSUME = "/consumer/consume?topic=T&consumer_id=C"
_ACK = "/v1/topics/T/subscriptions/C/messages?ack=1"
_EVENTS = "/v1/topics/T/subscriptions/C/events?ack=sent"

#: Each waits until the browser is done with the request.
ATTACKS = {
    "image": "new Promise(done => { const i = new Image(); i.onload = i.onerror = done; i.src = TO })",
    "fetch": "fetch(TO, {mode: 'no-cors'}).catch(() => 0)",
    "fetch without referrer": "fetch(TO, {mode: 'no-cors', referrerPolicy: 'no-referrer'}).catch(() => 0)",
    "fetch like EventSource": "fetch(TO, {mode: 'no-cors', cache: 'no-store', headers: {Accept: 'text/event-stream'}})"
    ".catch(() => 0)",
    "fetch like a program": "fetch(TO, {mode: 'no-cors', headers: {Accept: '*/*', 'Accept-Language': '*',"
    " 'User-Agent': 'curl/8', 'X-Requested-With': 'x', 'Idempotency-Key': 'k'}}).catch(() => 0)",
    "fetch with a header": "fetch(TO, {headers: {'X-Requested-With': 'x'}}).catch(() => 0)",
    "script": "new Promise(done => { const s = document.createElement('script'); s.onload = s.onerror = done;"
    " s.src = TO; document.body.append(s) })",
    "prefetch": "new Promise(done => { const l = document.createElement('link'); l.rel = 'prefetch'; l.href = TO;"
    " l.onload = l.onerror = done; document.head.append(l) })",
    "frame": "new Promise(done => { const f = document.createElement('iframe'); f.onload = done; f.src = TO;"
    " document.body.append(f) })",
    "form": "new Promise(done => { const f = document.createElement('iframe'); f.name = 'f';"
    " document.body.append(f); f.onload = done; const g = document.createElement('form'); g.target = 'f';"
    " const u = new URL(TO); g.action = u; for (const [k, v] of u.searchParams)"
    " { const i = document.createElement('input'); i.name = k; i.value = v; g.append(i) }"
    " document.body.append(g); g.submit() })",
    "events": "new Promise(done => { const e = new EventSource(TO); e.onerror = e.onmessage = () =>"
    " { e.close(); done() } })",
}
_POST = (
    "new Promise(done => { const f = document.createElement('iframe'); f.name = 'p';"
    " document.body.append(f); f.onload = done; const g = document.createElement('form'); g.target = 'p';"
    " g.method = 'post'; g.enctype = '%s'; g.action = TO; document.body.append(g); g.submit() })"
)


class Gateway:
    def __init__(self) -> None:
        self._loop = LoopThread()
        self._gateway = self._loop.call(_started())
        self.port = int(self._gateway.addresses[0].rpartition(":")[2])
        self.program = httpx.Client(base_url=self._gateway.addresses[0], trust_env=False)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def store(self) -> None:
        self.program.post("/producer/register", json={"topic": "T", "producer_id": "P"})
        self.program.post("/consumer/register", json={"topic": "T", "consumer_id": "C"})
        for message in ("one", "two"):
            body = {"topic": "T", "producer_id": "P", "message": message}
            assert self.program.post("/producer/produce", json=body).is_success

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.program.get("/v1/topics/T/subscriptions/C").json()
        return found

    def close(self) -> None:
        self.program.close()
        self._loop.call(self._gateway.stop())
        self._loop.stop()


async def _started() -> HttpGateway:
    gateway = HttpGateway(GatewaySettings(brokers=("memory:foreign",), http="127.0.0.1:0", hosts=(HOST,)))
    await gateway.start()
    return gateway


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    gateway.store()
    yield gateway
    gateway.close()


@pytest.fixture(scope="module")
def foreign() -> Iterator[str]:
    """The address of a page of another site."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>foreign</title><body></body>")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://{FOREIGN}:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    names = ",".join(f"MAP {name} 127.0.0.1" for name in (HOST, FOREIGN))
    browser = Browser(tmp_path_factory.mktemp("profile"), f"--host-resolver-rules={names}")
    yield browser
    browser.close()


@pytest.mark.parametrize("path", [_CONSUME, _ACK, _EVENTS])
def test_a_foreign_page_consumes_nothing(gateway: Gateway, foreign: str, browser: Browser, path: str) -> None:
    before = gateway.state()
    for name, attack in ATTACKS.items():
        browser.open(foreign)
        browser.requests.clear()
        url = f"{gateway.url}{path}&n={len(name)}" if path == _EVENTS else gateway.url + path
        browser.evaluate(attack.replace("TO", repr(url)))
        assert any(one.startswith(gateway.url) for one in browser.requests), name
        assert gateway.state() == before, name
    browser.open(foreign)
    browser.evaluate(f"void setTimeout(() => {{ location = {gateway.url + path!r} }})")
    browser.wait_for(f"location.href.startsWith({gateway.url!r})")
    assert gateway.state() == before


def test_a_foreign_page_posts_nothing(gateway: Gateway, foreign: str, browser: Browser) -> None:
    before = gateway.state()
    for path in ("/producer/produce?topic=T&producer_id=P&message=x", "/v1/topics/T/messages?ttl_ms=1"):
        for encoding in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
            browser.open(foreign)
            browser.evaluate((_POST % encoding).replace("TO", repr(gateway.url + path)))
        browser.evaluate(f"navigator.sendBeacon({gateway.url + path!r}, 'x')")
        browser.evaluate(
            f"fetch({gateway.url + path!r}, {{method: 'POST', mode: 'no-cors', body: 'x'}}).catch(() => 0)"
        )
    assert gateway.state() == before


def test_the_gateways_own_page_consumes(gateway: Gateway, browser: Browser) -> None:
    browser.open(f"{gateway.url}/docs")
    for path in (_ACK, _CONSUME):
        assert browser.evaluate(f"fetch({path!r}).then(response => response.status)") == 200


_CHROME = {b"host": b"gateway.example", b"user-agent": b"Mozilla/5.0 (X11; Linux x86_64) Chrome/140 Safari/537.36"}
_OWN = b"http://gateway.example"


@pytest.mark.parametrize(
    "headers",
    [
        {b"user-agent": b"curl/8.5.0", b"accept": b"*/*"},
        {b"user-agent": b"python-httpx/0.28", b"accept": b"*/*", b"accept-encoding": b"gzip, deflate"},
        {b"user-agent": b"node", b"accept": b"*/*", b"accept-language": b"*", b"sec-fetch-mode": b"cors"},
        {b"user-agent": b"Java/21", b"accept": b"text/html, image/gif, image/jpeg, */*; q=0.2"},
        {},
        _CHROME | {b"x-requested-with": b"shop"},
        _CHROME | {b"idempotency-key": b"7"},
        _CHROME | {b"referer": _OWN + b"/docs"},
        _CHROME | {b"origin": _OWN},
        _CHROME | {b"sec-fetch-site": b"same-origin"},
        _CHROME | {b"sec-fetch-site": b"none"},
    ],
)
def test_programs_and_the_gateways_own_pages_may_consume_with_a_get(headers: dict[bytes, bytes]) -> None:
    OriginCheck(GatewaySettings(brokers=(), hosts=(HOST,))).check_change({b"host": HOST.encode()} | headers)


@pytest.mark.parametrize(
    "headers",
    [
        _CHROME,
        _CHROME | {b"referer": b"http://foreign.example/"},
        _CHROME | {b"referer": _OWN + b":8443/"},
        _CHROME | {b"referer": _OWN + b".foreign.example/"},
        _CHROME | {b"sec-fetch-site": b"none", b"sec-purpose": b"prefetch"},
        _CHROME | {b"sec-fetch-site": b"same-origin", b"purpose": b"prefetch"},
        # A browser that calls itself something else.
        {b"user-agent": b"curl/8.5.0", b"accept-language": b"de"},
        {b"user-agent": b"", b"referer": b"http://foreign.example/"},
        {b"user-agent": b"Game/1", b"upgrade-insecure-requests": b"1"},
    ],
)
def test_a_browser_that_does_not_say_where_it_comes_from_may_not(headers: dict[bytes, bytes]) -> None:
    check = OriginCheck(GatewaySettings(brokers=(), hosts=(HOST,)))
    with pytest.raises(errors.OriginRefused):
        check.check_change({b"host": HOST.encode()} | headers)
