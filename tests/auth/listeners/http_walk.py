"""Example requests for every endpoint of the HTTP gateway, to be sent by users with and without the right to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx

from oncemq.net.tls import client_context
from tests.auth.served import ServedBroker
from tests.auth.walk import OWNER

_numbers = itertools.count(1)
_TIMEOUT_S = 30.0


class Request(NamedTuple):
    method: str
    path: str
    body: Any = None
    query: dict[str, Any] | None = None


class HttpWalk:
    """Everything that the examples are about, made by OWNER. Each walk has names of its own."""

    def __init__(self, broker: ServedBroker) -> None:
        self.tokens = broker.accounts.tokens
        self.client = httpx.Client(
            base_url=broker.https_url, verify=client_context(broker.accounts.ca), timeout=_TIMEOUT_S
        )
        self.number = next(_numbers)
        self.topic = f"orders.http{self.number}"
        self.v1_topic = f"/v1/topics/{self.topic}"
        self.exclusive = f"{self.v1_topic}/subscriptions/kitchen"
        self.shared = f"{self.v1_topic}/subscriptions/workers"
        self.session = f"http-session-{self.number}"
        self.producer = {"topic": self.topic, "producer_id": f"P{self.number}"}
        self.consumer = {"topic": self.topic, "consumer_id": f"C{self.number}"}
        self._make("PUT", self.v1_topic, {"retain_ms": 3_600_000})
        self._make("PUT", self.exclusive, {"start": "earliest"})
        self._make("PUT", self.shared, {"start": "earliest", "sharing": {}})
        self._make("POST", "/producer/register", self.producer)
        self._make("POST", "/consumer/register", self.consumer)
        for _ in range(2):
            self._make("POST", f"{self.v1_topic}/messages", {"value": "one"})
        taken = self._make("POST", f"{self.shared}/take", self._take(1))
        self.token = taken["token"]
        self._make("POST", "/v1/sessions", {"session": self.session})

    def _make(self, method: str, path: str, body: Any = None) -> Any:
        response = self.send(OWNER, Request(method, path, body))
        assert response.is_success, response.text
        return response.json()

    def _take(self, number: int) -> dict[str, Any]:
        return {"member": "m", "number": number}

    def send(self, who: str, request: Request) -> httpx.Response:
        """Send a request, without a token if there is no such user. Of an endless response, only the head is read."""
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} if who in self.tokens else {}
        given = {"json": request.body, "params": request.query, "headers": headers}
        with self.client.stream(request.method, request.path, **given) as response:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                response.read()
            return response

    def close(self) -> None:
        self.client.close()

    def examples(self, method: str, path: str) -> list[Request]:
        """Return the examples of an endpoint. Each of them may be sent once by OWNER, and by everybody before."""
        made = self._examples()[method, path]()
        return made if isinstance(made, list) else [made]

    def rows(self) -> set[tuple[str, str]]:
        return {*self._examples()}

    def _examples(self) -> dict[tuple[str, str], Callable[[], Request | list[Request]]]:
        topic, new = self.topic, f"{self.topic}.new"
        in_topic, exclusive, shared = self.v1_topic, self.exclusive, self.shared
        v1_topic, v1_subscription = "/v1/topics/{topic}", "/v1/topics/{topic}/subscriptions/{subscriber}"
        offsets = {"token": self.token, "offsets": [0]}
        transaction = {
            "acks": [{"topic": topic, "subscriber": "kitchen", "upto": 1}],
            "puts": [{"topic": topic, "value": "x"}],
        }
        schema = {"definition": "id: int64"}
        message = {"message": "x"}
        return {
            ("GET", "/v1/topics"): lambda: Request("GET", "/v1/topics"),
            ("GET", v1_topic): lambda: Request("GET", in_topic),
            ("PUT", v1_topic): lambda: [
                Request("PUT", f"/v1/topics/{new}", {}),
                Request("PUT", in_topic, {"retain_ms": 3_600_000}),
                Request("PUT", in_topic, {"retain_ms": 7_200_000, "alter": True}),
            ],
            ("DELETE", v1_topic): lambda: Request("DELETE", in_topic),
            ("GET", v1_topic + "/schemas"): lambda: Request("GET", f"{in_topic}/schemas"),
            ("PUT", v1_topic + "/schemas"): lambda: Request("PUT", f"{in_topic}/schemas", schema),
            ("POST", v1_topic + "/schemas/check"): lambda: Request("POST", f"{in_topic}/schemas/check", schema),
            ("POST", v1_topic + "/messages"): lambda: [
                Request("POST", f"{in_topic}/messages", {"value": "x"}),
                Request("POST", f"/v1/topics/{new}/messages", {"value": "x"}, {"create": True}),
            ],
            ("GET", v1_topic + "/messages"): lambda: Request("GET", f"{in_topic}/messages"),
            ("GET", v1_topic + "/subscriptions"): lambda: Request("GET", f"{in_topic}/subscriptions"),
            ("PUT", v1_subscription): lambda: [
                Request("PUT", f"{in_topic}/subscriptions/cellar", {}),
                Request("PUT", exclusive, {}),
                Request("PUT", f"/v1/topics/{new}/subscriptions/cellar", {}),
            ],
            ("GET", v1_subscription): lambda: Request("GET", exclusive),
            ("DELETE", v1_subscription): lambda: Request("DELETE", exclusive),
            ("POST", v1_subscription + "/seek"): lambda: Request("POST", f"{exclusive}/seek", {"to": "earliest"}),
            ("POST", v1_subscription + "/open"): lambda: Request("POST", f"{exclusive}/open"),
            ("GET", v1_subscription + "/messages"): lambda: Request("GET", f"{exclusive}/messages"),
            ("GET", v1_subscription + "/events"): lambda: Request("GET", f"{exclusive}/events"),
            ("POST", v1_subscription + "/take"): lambda: Request("POST", f"{shared}/take", self._take(2)),
            ("POST", v1_subscription + "/ack"): lambda: [
                Request("POST", f"{exclusive}/ack", {"upto": 1}),
                Request("POST", f"{shared}/ack", offsets),
            ],
            ("POST", v1_subscription + "/nack"): lambda: Request("POST", f"{shared}/nack", offsets),
            ("POST", v1_subscription + "/extend"): lambda: Request(
                "POST", f"{shared}/extend", {"tokens": [self.token]}
            ),
            ("POST", "/v1/transactions"): lambda: [
                Request("POST", "/v1/transactions", transaction),
                Request("POST", "/v1/transactions", {"puts": transaction["puts"]}),
                Request("POST", "/v1/transactions", {"acks": transaction["acks"]}),
            ],
            ("POST", "/v1/sessions"): lambda: Request("POST", "/v1/sessions", {"session": self.session}),
            ("GET", "/v1/sessions"): lambda: Request("GET", "/v1/sessions"),
            ("DELETE", "/v1/sessions/{session}"): lambda: Request("DELETE", f"/v1/sessions/{self.session}"),
            ("POST", "/v1/login"): lambda: Request("POST", "/v1/login", {"token": self.tokens[OWNER]}),
            ("POST", "/v1/logout"): lambda: Request("POST", "/v1/logout"),
            ("GET", "/v1/whoami"): lambda: Request("GET", "/v1/whoami"),
            ("GET", "/v1/health"): lambda: Request("GET", "/v1/health"),
            ("GET", "/metrics"): lambda: Request("GET", "/metrics"),
            ("GET", "/topics"): lambda: Request("GET", "/topics"),
            ("POST", "/topics"): lambda: Request("POST", "/topics", {"topic_name": new}),
            ("POST", "/producer/register"): lambda: [
                Request("POST", "/producer/register", self.producer),
                Request("POST", "/producer/register", {"topic": topic}),
                Request("POST", "/producer/register", {"topic": new}),
            ],
            ("POST", "/producer/produce"): lambda: Request("POST", "/producer/produce", self.producer | message),
            ("POST", "/consumer/register"): lambda: [
                Request("POST", "/consumer/register", self.consumer),
                Request("POST", "/consumer/register", {"topic": topic}),
            ],
            ("GET", "/size"): lambda: Request("GET", "/size", query=self.consumer),
            ("GET", "/consumer/consume"): lambda: Request("GET", "/consumer/consume", query=self.consumer),
            ("GET", "/openapi.json"): lambda: Request("GET", "/openapi.json"),
            ("GET", "/docs"): lambda: Request("GET", "/docs"),
            ("GET", "/docs/docs.css"): lambda: Request("GET", "/docs/docs.css"),
            ("GET", "/docs/docs.js"): lambda: Request("GET", "/docs/docs.js"),
            ("GET", "/docs/icon.svg"): lambda: Request("GET", "/docs/icon.svg"),
            ("GET", "/"): lambda: Request("GET", "/"),
        }
