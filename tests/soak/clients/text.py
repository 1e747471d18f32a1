"""Clients of the text gateway, in plain pyzmq: a request is repeated with the same id until it has a final reply.

The id of a get is the number of messages that were logged before. So a process that is killed between a reply and its
log entry gets the same message again, and the log has each message once.
"""

from __future__ import annotations

import base64
import time

import zmq

from oncemq.protocol.errors import BrokerAway, Malformed
from oncemq.tools.faults.event_log import id_of, value_of
from tests.gateways.text.rig import Req
from tests.soak.clients.client import SoakClient

_PATIENCE_S = 1.0
_TOTAL_S = 120.0
_PAUSE_S = 0.1
_UNDECIDED = ("BROKER_AWAY", "STOPPING", "OVERLOADED", "STANDBY", "BUSY")


class TextRequests:
    """A Lazy Pirate client."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socket = Req(url, _PATIENCE_S)

    def ask(self, *lines: str) -> str:
        until_s = time.monotonic() + _TOTAL_S
        while time.monotonic() < until_s:
            try:
                reply = self._socket.lines(*lines)
            except zmq.Again:
                self._socket.close()
                self._socket = Req(self._url, _PATIENCE_S)
                continue
            if not reply.startswith(tuple(f"ERROR {code} " for code in _UNDECIDED)):
                return reply
            time.sleep(_PAUSE_S)
        raise BrokerAway(f"no final reply from {self._url} for {_TOTAL_S:g} s")

    def close(self) -> None:
        self._socket.close()


def content_of(message: str) -> str:
    """Return the content of a message: values are bytes, and requests are text."""
    return base64.b64encode(value_of(message)).decode()


def id_in(content: bytes) -> str:
    """Return the id of a message. Raises Malformed."""
    return id_of(base64.b64decode(content))


def put(client: SoakClient) -> None:
    stream, requests = client.stream(), TextRequests(client.addresses.text)
    while not client.stop.is_set:
        [message] = stream.attempt(client.topic, 1)
        reply = requests.ask(message, "put", client.name, client.topic, content_of(message))
        if not reply.startswith("OK STORED "):
            raise Malformed(f"a put was answered with {reply[:200]}")
        stream.acknowledge(client.topic, [message])
        client.pause()
    requests.close()


def get(client: SoakClient) -> None:
    count, requests = client.next_offset(), TextRequests(client.addresses.text)
    while not client.is_done(count):
        reply = requests.ask(f"get-{count}", "get", client.name, client.topic)
        if reply.startswith("OK "):
            client.deliver(count, id_in(reply.removeprefix("OK ").encode()))
            count += 1
        elif reply.startswith("ERROR NOTHING_NEW "):
            time.sleep(_PAUSE_S)
        else:
            raise Malformed(f"a get was answered with {reply[:200]}")
    requests.close()
