"""What producers and consumers of the queue have in common: the caller, the topics, the end."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import httpx

from oncemq.http.requests import DEFAULT_URL, Caller, Json


class QueueClient:
    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        timeout_s: float = 10.0,
        patience_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._caller = Caller(url, timeout_s=timeout_s, patience_s=patience_s, transport=transport)
        #: Several threads may share this; they take turns.
        self._lock = threading.RLock()

    def list_topics(self) -> list[str]:
        """The names of all topics, in order.

        >>> producer.list_topics()
        ['T1', 'T2']
        """
        topics: list[str] = []
        with self._lock:
            after = ""
            while True:
                reply = self._caller.get("/topics", {"after": after})
                topics += reply["topics"]
                after = reply["after"]
                if not after:
                    return topics

    def close(self) -> None:
        """Everything afterwards raises ClientClosed."""
        self._caller.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _post_once(self, path: str, body: Json) -> Json:
        """Under a key that its repetitions share."""
        return self._caller.post(path, body, {"Idempotency-Key": uuid.uuid4().hex})
