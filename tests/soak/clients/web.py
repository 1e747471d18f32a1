"""Clients of the HTTP gateway: /v1 with idempotency keys, and the library of the HTTP queue."""

from __future__ import annotations

import base64
import time
from typing import Any

import httpx

from oncemq.http import Consumer, Producer
from oncemq.protocol.errors import BrokerAway, Malformed, NothingNew
from oncemq.tools.faults.event_log import id_of, value_of
from tests.soak.clients.client import SoakClient

_TIMEOUT_S = 5.0
_TOTAL_S = 120.0
_PAUSE_S = 0.2
_WAIT_MS = 1000
_LIMIT = 50


class Requests:
    """Sends a request until there is a final answer. A response that says "internal error" is a violation."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=_TIMEOUT_S)

    def send(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        until_s = time.monotonic() + _TOTAL_S
        while time.monotonic() < until_s:
            try:
                response = self._http.request(method, path, **options)
            except httpx.TransportError:
                response = None
            if response is not None and response.status_code != 503:
                if response.status_code != 200 and response.status_code != 201:
                    raise Malformed(f"{method} {path}: {response.status_code} {response.text[:200]}")
                answer: dict[str, Any] = response.json()
                return answer
            time.sleep(_PAUSE_S)
        raise BrokerAway(f"no final answer to {method} {path} for {_TOTAL_S:g} s")


def post(client: SoakClient) -> None:
    """Each message is one request with a key."""
    stream, requests = client.stream(), Requests(client.addresses.http)
    while not client.stop.is_set:
        [message] = stream.attempt(client.topic, 1)
        headers = {"Idempotency-Key": message, "Content-Type": "application/octet-stream"}
        path = f"/v1/topics/{client.topic}/messages"
        answer = requests.send("POST", path, content=value_of(message), headers=headers)
        stream.acknowledge(client.topic, [message], answer["offset"])
        client.pause()


def get(client: SoakClient) -> None:
    """The ack travels with the next get."""
    requests, position = Requests(client.addresses.http), client.next_offset()
    path = f"/v1/topics/{client.topic}/subscriptions/{client.name}"
    client.log.write(("started", client.incarnation))
    acked = 0
    while not client.is_done(position):
        params = {"wait_ms": _WAIT_MS, "limit": _LIMIT} | ({"ack": acked} if acked else {})
        answer = requests.send("GET", f"{path}/messages", params=params)
        if acked:
            client.log.write(("acked", client.topic, acked))
        for message in answer["messages"]:
            client.deliver(message["offset"], id_of(_value(message)))
            acked = position = message["offset"] + 1
    if acked:
        requests.send("POST", f"{path}/ack", json={"upto": acked})


def _value(message: dict[str, Any]) -> bytes:
    if "value_base64" in message:
        return base64.b64decode(message["value_base64"])
    text: str = message["value"]
    return text.encode()


def enqueue(client: SoakClient) -> None:
    stream = client.stream()
    with Producer(client.addresses.http, timeout_s=_TIMEOUT_S, total_timeout_s=_TOTAL_S) as producer:
        producer.register(client.topic)
        while not client.stop.is_set:
            [message] = stream.attempt(client.topic, 1)
            stream.acknowledge(client.topic, [message], producer.enqueue(client.topic, value_of(message)))
            client.pause()


def register_consumer(http: str, topic: str, name: str) -> None:
    """Register before the first message: a consumer gets what is published afterwards."""
    with Consumer(http, consumer_id=name, timeout_s=_TIMEOUT_S, total_timeout_s=_TOTAL_S) as consumer:
        consumer.register(topic)


def dequeue(client: SoakClient) -> None:
    """The library confirms a message with the next one. A message that a killed process has logged may come again."""
    seen = {message for _, message in client.delivered()}
    with Consumer(
        client.addresses.http, consumer_id=client.name, timeout_s=_TIMEOUT_S, total_timeout_s=_TOTAL_S
    ) as consumer:
        while not client.is_done(len(seen)):
            try:
                value = consumer.dequeue(client.topic, wait_s=_WAIT_MS / 1000)
            except NothingNew:
                continue
            message = id_of(value.encode() if isinstance(value, str) else value)
            if message not in seen:
                client.deliver(len(seen), message)
                seen.add(message)
