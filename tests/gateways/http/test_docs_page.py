"""/docs in a real browser: complete, offline, and able to send requests; pages of other origins are refused."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from oncemq.gateways.http.docs.openapi import document
from oncemq.gateways.http.docs.pages.markup import markdown
from oncemq.gateways.http.docs.pages.page import render
from oncemq.gateways.http.endpoints import ENDPOINTS
from tests.browser import Browser
from tests.forking import ForkedBroker


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway with a broker behind it."""
    folder = tmp_path_factory.mktemp("docs") / "data"
    broker = ForkedBroker(folder, "--segment-bytes=6MiB", "--batch-bytes-max=4MiB", http=True)
    broker.start()
    broker.wait_until_http()
    yield broker.http_url
    broker.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def test_the_page_shows_every_endpoint_and_asks_nobody_but_the_gateway(gateway: str, browser: Browser) -> None:
    browser.requests.clear()
    browser.open(f"{gateway}/docs")
    shown = browser.evaluate("[...document.querySelectorAll('.operation h3')].map(title => title.innerText)")
    assert sorted(shown) == sorted(f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS)
    assert browser.requests != []
    assert [url for url in browser.requests if not url.startswith(f"{gateway}/")] == []
    assert browser.complaints == []


def test_requests_can_be_tried_in_the_page(gateway: str, browser: Browser) -> None:
    browser.open(f"{gateway}/docs#health")
    assert browser.evaluate("document.querySelector('#health').open")
    assert _try(browser, "health")["status"] == "ok"
    assert browser.evaluate("document.querySelector('#health .curl').innerText") == f"curl '{gateway}/v1/health'"

    _fill(browser, "put", topic="a/b & 'c'", create="true")
    curl = browser.evaluate("document.querySelector('#put .curl code').textContent")
    shown = _try(browser, "put")
    assert shown["topic"] == "a/b & 'c'"
    stored = json.loads(subprocess.run(["sh", "-c", f"{curl} -s"], check=True, capture_output=True).stdout)
    assert (stored["topic"], stored["offset"]) == ("a/b & 'c'", 1)
    assert shown["topic_id"] == stored["topic_id"]
    assert browser.complaints == []


def test_a_refusal_is_shown_with_its_code(gateway: str, browser: Browser) -> None:
    browser.open(f"{gateway}/docs")
    _fill(browser, "show-topic", topic="nobody's")
    assert _try(browser, "show-topic", "bad")["code"] == "TOPIC_UNKNOWN"
    # The browser itself logs a response with 404.
    assert [text for text in browser.complaints if "404" not in text] == []


def _fill(browser: Browser, anchor: str, **fields: str) -> None:
    for name, value in fields.items():
        browser.evaluate(f"document.querySelector('#{anchor} [name={name}]').value = {json.dumps(value)}")
    browser.evaluate(f"document.querySelector('#{anchor} form').dispatchEvent(new Event('input'))")


def _try(browser: Browser, anchor: str, outcome: str = "good") -> dict[str, object]:
    """Press Send, and return the response that the page shows."""
    browser.evaluate(f"document.querySelector('#{anchor} form').requestSubmit()")
    browser.wait_for(f"document.querySelector('#{anchor} output .{outcome}')")
    browser.wait_for(f"document.querySelector('#{anchor} .stop').hidden")
    shown = browser.evaluate(f"document.querySelector('#{anchor} output code').textContent")
    reply: dict[str, object] = json.loads(shown)
    return reply


def test_the_page_is_kept_from_loading_anything_foreign(gateway: str) -> None:
    status, headers, _ = _get(gateway, "/docs", {})
    assert status == 200
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_root_leads_to_the_page(gateway: str) -> None:
    status, headers, _ = _get(gateway, "/", {})
    assert (status, headers["location"]) == (307, "/docs")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_foreign_page_may_link_to_the_page_and_use_nothing(gateway: str, site: str) -> None:
    link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    picture = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    assert _get(gateway, "/docs", link)[0] == 200
    assert _get(gateway, "/", link)[0] == 307
    for path, headers in (("/v1/topics", link), ("/v1/topics", picture), ("/docs", picture)):
        status, _, body = _get(gateway, path, headers)
        assert (status, json.loads(body)["code"]) == (403, "ORIGIN_REFUSED")


def test_the_page_may_call_its_own_gateway(gateway: str) -> None:
    own = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Origin": gateway}
    assert _get(gateway, "/v1/topics", own)[0] == 200
    assert _get(gateway, "/v1/topics", {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"})[0] == 200


def _get(gateway: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(gateway).netloc, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


class _Elements(HTMLParser):
    """Ids, links into the page, and attributes that a strict policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: set[str] = set()
        self.forbidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name == "href" and (value or "").startswith("#"):
                self.targets.add((value or "")[1:])
            elif name.startswith("on") or name == "style":
                self.forbidden.append(f"{tag} {name}")


def test_every_link_inside_the_page_leads_somewhere_and_nothing_is_inline() -> None:
    elements = _Elements()
    elements.feed(render(document(ENDPOINTS)).decode())
    assert elements.targets <= set(elements.ids)
    assert len(elements.ids) == len(set(elements.ids))
    assert elements.forbidden == []


def test_descriptions_may_hold_no_html() -> None:
    assert markdown("a <script> of `<b>`") == "<p>a &lt;script&gt; of <code>&lt;b&gt;</code></p>"
    assert markdown("Two:\n- *one*\n- [two](#two)") == (
        '<p>Two:</p><ul><li><em>one</em></li><li><a href="#two">two</a></li></ul>'
    )


def test_json_is_laid_out_without_changing_it(gateway: str, browser: Browser) -> None:
    browser.open(f"{gateway}/docs")
    text = r'{"a":[1.50,{}, [ ],{"b\"{":" x,\\"}],"c":12345678901234567890,"d":{"e":null}}'
    shown = browser.evaluate(f"indented({json.dumps(text)})")
    assert shown.splitlines()[:3] == ["{", '  "a": [', "    1.50,"]
    assert json.loads(shown) == json.loads(text)


def test_the_files_of_the_page_are_small() -> None:
    folder = Path(__file__).parents[3] / "src/oncemq/gateways/http/docs/pages"
    assert sum(path.stat().st_size for path in folder.glob("*.*")) < 60_000
