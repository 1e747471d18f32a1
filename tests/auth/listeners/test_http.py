"""Every endpoint of the HTTP gateway over TLS, as everybody."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from oncemq.auth.http_operations import HTTP_NEEDS, PUBLIC
from oncemq.auth.operations import ANYONE
from tests.auth.listeners.http_walk import HttpWalk, Request
from tests.auth.served import ServedBroker
from tests.auth.walk import ANONYMOUS, OTHER, OWNER, REFUSALS, STRANGER

_ROWS = sorted(HTTP_NEEDS, key=lambda row: row[::-1])
#: Those who may not see or do anything of OWNER's.
_OTHERS = (STRANGER, OTHER)
#: Endpoints whose response to OWNER shows the topic or the session of the walk.
_LISTS = {("GET", "/v1/topics"), ("GET", "/topics"), ("GET", "/metrics"), ("GET", "/v1/sessions")}
#: What the queue says to the owner of an id that is registered.
_DONE_BEFORE = {"PRODUCER_REGISTERED", "CONSUMER_SUBSCRIBED"}


@pytest.fixture
def walk(served: ServedBroker) -> Iterator[HttpWalk]:
    walk = HttpWalk(served)
    yield walk
    walk.close()


def test_every_endpoint_has_an_example(walk: HttpWalk) -> None:
    assert walk.rows() == HTTP_NEEDS.keys()


@pytest.mark.parametrize("row", _ROWS, ids=" ".join)
def test_everybody_sends_every_request(walk: HttpWalk, row: tuple[str, str]) -> None:
    verbs = {verb for verb, _ in HTTP_NEEDS[row]}
    for request in walk.examples(*row):
        if PUBLIC in verbs:
            _check_public(walk, request)
        elif verbs == {ANYONE}:
            _check_for_users(walk, request, is_list=row in _LISTS)
        else:
            _check_with_rights(walk, request)


def _check_public(walk: HttpWalk, request: Request) -> None:
    for who in (ANONYMOUS, *_OTHERS):
        response = walk.send(who, request)
        assert response.status_code < 400, response.text
        assert not _shows(walk, response)
    assert walk.send(OWNER, request).status_code < 400


def _check_for_users(walk: HttpWalk, request: Request, *, is_list: bool) -> None:
    _check_unauthenticated(walk, request)
    for who in _OTHERS:
        response = walk.send(who, request)
        assert response.is_success, response.text
        assert not _shows(walk, response), "it shows what the user may not see"
    response = walk.send(OWNER, request)
    assert response.is_success, response.text
    assert not is_list or _shows(walk, response)


def _check_with_rights(walk: HttpWalk, request: Request) -> None:
    _check_unauthenticated(walk, request)
    for who in _OTHERS:
        response = walk.send(who, request)
        assert response.status_code in (403, 404), (who, request, response.text)
        assert response.json()["code"] in {*REFUSALS, "TOPIC_UNKNOWN"}, (who, request, response.text)
    response = walk.send(OWNER, request)
    assert response.is_success or response.json()["code"] in _DONE_BEFORE, (request, response.text)


def _check_unauthenticated(walk: HttpWalk, request: Request) -> None:
    response = walk.send(ANONYMOUS, request)
    assert response.status_code == 401, response.text
    assert response.json()["code"] == "UNAUTHENTICATED"
    assert response.headers["www-authenticate"].startswith("Bearer")


def _shows(walk: HttpWalk, response: httpx.Response) -> bool:
    return walk.topic in response.text or walk.session in response.text


def test_health_has_details_for_users_only(walk: HttpWalk) -> None:
    request = Request("GET", "/v1/health")
    nobody, owner = (walk.send(who, request).json() for who in (ANONYMOUS, OWNER))
    assert set(nobody) < set(owner)


def test_the_session_of_a_browser_is_its_user(walk: HttpWalk) -> None:
    login = walk.client.post("/v1/login", json={"token": walk.tokens[OTHER]})
    assert login.json()["user"] == OTHER
    # The client keeps the cookie.
    assert walk.client.get("/v1/whoami").json()["user"] == OTHER
    assert walk.client.get(walk.v1_topic).status_code == 404
    assert walk.client.put("/v1/topics/bills.new", json={}).json()["code"] == "ORIGIN_REFUSED"


def test_requests_without_encryption_are_not_answered(served: ServedBroker) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{served.http_url}/v1/health")
