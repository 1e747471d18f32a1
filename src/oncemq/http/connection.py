"""A connection to the queue's gateways, which a producer or a consumer has: requests of one thread at a time."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence

import httpx

from oncemq.http.credentials import Token, Verify
from oncemq.http.requests import GatewayRequests, Json


class QueueConnection:
    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: str | None,
        token_file: str | None,
        verify: Verify | None,
        timeout_s: float,
        total_timeout_s: float,
        transport: httpx.BaseTransport | None,
    ) -> None:
        self.requests = GatewayRequests(
            url,
            token=Token(token, token_file),
            verify=verify,
            timeout_s=timeout_s,
            total_timeout_s=total_timeout_s,
            transport=transport,
        )
        #: Several threads may share a producer or a consumer. Their calls take turns.
        self.lock = threading.RLock()

    def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        topics: list[str] = []
        with self.lock:
            after = ""
            while True:
                reply = self.requests.get("/topics", {"after": after})
                topics += reply["topics"]
                after = reply["after"]
                if not after:
                    return topics

    def post_once(self, path: str, body: Json) -> Json:
        """Post under a new key, which the repetitions share: it happens once."""
        return self.requests.post(path, body, {"Idempotency-Key": uuid.uuid4().hex})

    def close(self) -> None:
        """Close the connection. Later requests raise ClientClosed."""
        self.requests.close()
