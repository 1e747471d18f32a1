"""Generated requests, valid and invalid, for every endpoint of the OpenAPI document: the gateway does what it says.

make fuzz-http EXAMPLES=2000        more of them, others each time
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
import uvicorn
from hypothesis import HealthCheck, settings
from schemathesis import Case, CheckContext, Response, SerializationContext
from schemathesis.config import SchemathesisConfig

from oncemq.gateways.http.docs.openapi import document
from oncemq.gateways.http.endpoints import ENDPOINTS, make_app
from oncemq.gateways.http.framework.endpoint import ANY, EVENTS, NDJSON
from oncemq.gateways.http.settings import GatewaySettings
from oncemq.protocol.limits import WAIT_MS_MAX
from tests.forking import ForkedBroker

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: 0: few, and the same ones each time.
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))

#: Valid requests that are refused because of the state of the broker.
_REFUSED = ["403", "404", "409", "410", "413", "416", "422"]
CONFIG = SchemathesisConfig.from_dict(
    {
        "checks": {
            # 501: patterns instead of a topic.
            "not_a_server_error": {"expected-statuses": ["2xx", "4xx", "501"]},
            "positive_data_acceptance": {"expected-statuses": ["2xx", "400", "501", *_REFUSED]},
            "negative_data_rejection": {"expected-statuses": ["400", "405", "415", "501", *_REFUSED]},
            # A topic may be deleted and created again.
            "use_after_free": {"enabled": False},
            "ensure_resource_availability": {"enabled": False},
            # The broker has no users.
            "ignored_auth": {"enabled": False},
        },
    }
)
# Loaded when the tests run: it takes seconds.
API = schemathesis.pytest.from_fixture("described")

made_up = settings(
    max_examples=EXAMPLES or 5,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@schemathesis.serializer(NDJSON)
def lines(context: SerializationContext, value: Any) -> bytes:
    """Print each generated request on one line."""
    items = value if isinstance(value, list) and value else [value]
    return b"".join(msgspec.json.encode(item) + b"\n" for item in items)


@pytest.fixture(autouse=True)
def _named(request: pytest.FixtureRequest) -> None:
    """Schemathesis looks for a test's name where pytest does not keep it any more."""
    request.node._nodeid = request.node.nodeid


@pytest.fixture(scope="module")
def described() -> Any:
    found = document(ENDPOINTS)
    for methods in found["paths"].values():
        for operation in methods.values():
            _make_smaller(operation)
    return schemathesis.openapi.from_dict(found, config=CONFIG)


def _make_smaller(operation: dict[str, Any]) -> None:
    # A body of any other media type is one message, which the document describes too.
    operation.get("requestBody", {}).get("content", {}).pop(ANY, None)
    if not EXAMPLES and operation["operationId"] not in _FULL:
        left_out = ("OnceMQ-Principal", *_OF_A_SESSION)
        operation["parameters"] = [one for one in operation.get("parameters", []) if one["name"] not in left_out]


#: Many endpoints have these headers, and all of them parse them in the same way: two endpoints are enough.
_FULL = ("put", "queue_produce")
_OF_A_KEY = ("Idempotency-Key", "OnceMQ-Principal")
_OF_A_SESSION = ("OnceMQ-Session", "OnceMQ-Epoch", "OnceMQ-Number", "OnceMQ-Seen-Below")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("fuzz") / "data"
    broker = ForkedBroker(folder, "--segment-bytes=6MiB", "--batch-bytes-max=4MiB")
    broker.start()
    with _serving(GatewaySettings(brokers=(broker.url,))) as url:
        yield url
    broker.stop()


class Caller:
    """Sends requests to a gateway that knows the topic and the subscriber of the document's examples."""

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._session = requests.Session()
        self._prepared = ""
        self._number = 0

    def send(self, case: Case[Any]) -> None:
        if self._prepared != case.operation.label:
            self._prepare(case.operation.label)
        _wait_for_nothing(case)
        _name_one_identity(case)
        self._renew_key(case)
        case.call_and_validate(
            base_url=self._gateway, session=self._session, additional_checks=[good_requests_can_be_read], timeout=60
        )

    def _renew_key(self, case: Case[Any]) -> None:
        """Whether to send the key: a request with a key that was used before is refused."""
        self._number += 1
        key = case.headers.get("Idempotency-Key", "")
        if _is_good(case) and 0 < len(key) < 256 and self._number % 4:
            case.headers["Idempotency-Key"] = f"{self._number} {key}"

    def _prepare(self, operation: str) -> None:
        self._prepared = operation
        topic = f"{self._gateway}/v1/topics/orders"
        is_shared = operation.rpartition("/")[2] in ("take", "nack", "extend")
        self._session.delete(topic)
        for method, url, body in (
            ("PUT", topic, {"retain_ms": 1}),
            ("PUT", f"{topic}/subscriptions/billing", {"sharing": {}} if is_shared else {}),
            ("POST", f"{topic}/messages", {"messages": [{"value": "one"}, {"value": "two"}]}),
        ):
            response = self._session.request(method, url, json=body)
            assert response.ok, response.text

    def close(self) -> None:
        self._session.close()


@pytest.fixture(scope="module")
def caller(gateway: str) -> Iterator[Caller]:
    caller = Caller(gateway)
    yield caller
    caller.close()


@API.include(path_regex="/subscriptions").parametrize()
@made_up
def test_subscriptions_answer_as_the_document_says(case: Case[Any], caller: Caller) -> None:
    caller.send(case)


@API.include(path_regex="^/v1").exclude(path_regex="/subscriptions").parametrize()
@made_up
def test_topics_and_sessions_answer_as_the_document_says(case: Case[Any], caller: Caller) -> None:
    caller.send(case)


@API.exclude(path_regex="^/v1").parametrize()
@made_up
def test_the_queue_answers_as_the_document_says(case: Case[Any], caller: Caller) -> None:
    caller.send(case)


def _wait_for_nothing(case: Case[Any]) -> None:
    """Replace a valid `wait_ms` by 0, and keep an invalid one."""
    parts: list[Any] = [case.query, case.body]
    for part in parts:
        given = part.get("wait_ms", "") if isinstance(part, dict) else ""
        if str(given).isdecimal() and int(given) <= WAIT_MS_MAX:
            part["wait_ms"] = type(given)(0)


def _name_one_identity(case: Case[Any]) -> None:
    """A valid request has a key, or all headers of a session, or neither; the document can't express this."""
    headers = case.headers
    if not _is_good(case):
        return
    has_key = "Idempotency-Key" in headers
    has_session = not has_key and all(name in headers for name in _OF_A_SESSION)
    for name in (*(() if has_key else _OF_A_KEY), *(() if has_session else _OF_A_SESSION)):
        headers.pop(name, None)


def _is_good(case: Case[Any]) -> bool:
    return case.meta is not None and case.meta.generation.mode.is_positive


#: Rules that the schema can't express: mostly fields that depend on each other.
_BEYOND_SCHEMA = (
    "use one of them",
    "either",
    "not both",
    "use due_ms",
    "also give the `epoch`",
    "Last-Event-ID is not",
    "not accepted with `upto`",
    "a session and a number",
    "is given without",
    "name each subscription at most once",
    "a dead-letter topic",
    "after 1970",
    "a hundred years",
    "Invalid base64",
    "not valid base64",
    # In a JSON schema 2.0 is an integer.
    "without a decimal point",
)


def good_requests_can_be_read(context: CheckContext, response: Response, case: Case[Any]) -> None:
    """Nothing that the document allows is MALFORMED."""
    if not _is_good(case) or response.status_code != 400:
        return
    problem = response.json()
    detail = problem.get("detail", problem.get("error"))
    assert problem["code"] != "MALFORMED" or any(words in detail for words in _BEYOND_SCHEMA), detail


@contextmanager
def _serving(settings: GatewaySettings) -> Iterator[str]:
    """The gateway in a thread of this process."""
    app = make_app(settings)

    async def bounded(scope: Message, receive: Receive, send: Send) -> None:
        await app(scope, *(_without_end(receive, send) if scope["type"] == "http" else (receive, send)))

    config = uvicorn.Config(bounded, port=0, log_config=None, access_log=False, lifespan="on", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def _without_end(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """End a stream of events right after its headers, as if the client had disconnected."""
    streaming = False
    cut = False

    async def receive_or_end() -> Message:
        return {"type": "http.disconnect"} if cut else await receive()

    async def send_first(message: Message) -> None:
        nonlocal streaming, cut
        if message["type"] == "http.response.start":
            streaming = dict(message["headers"]).get(b"content-type", b"").startswith(EVENTS.encode())
            await send(message)
            if streaming:
                cut = True
                await send({"type": "http.response.body", "body": b""})
        elif not cut:
            await send(message)

    return receive_or_end, send_first
