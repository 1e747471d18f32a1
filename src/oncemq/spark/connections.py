"""One client per process and broker. Spark uses its Python processes for many tasks, and a connection for each task
would cost more than most tasks."""

from __future__ import annotations

import os
import threading

from oncemq.client.sync import Client
from oncemq.config.allocator import keep_freed_memory
from oncemq.config.endpoints import Endpoint
from oncemq.spark.broker import Broker

#: The timeout of one attempt.
_TIMEOUT_S = 1.0

#: With the endpoint that the client was made for.
_clients: dict[tuple[int, Broker, float], tuple[Endpoint, Client]] = {}
_lock = threading.Lock()


def shared_client(broker: Broker, timeout_s: float) -> Client:
    """Return this process's client. A forked process, such as those of Spark's daemon, gets its own. If the context was
    changed, there is a new client."""
    key = (os.getpid(), broker, timeout_s)
    endpoint = broker.endpoint()
    with _lock:
        known, client = _clients.get(key, (None, None))
        if client is None or known != endpoint:
            # A task handles its rows in blocks of megabytes.
            keep_freed_memory()
            tries = max(1, round(timeout_s / _TIMEOUT_S))
            client = broker.connect(label="spark", timeout_s=_TIMEOUT_S, tries=tries, record="")
            _clients[key] = endpoint, client
        return client


def close_all() -> None:
    """Close this process's clients."""
    with _lock:
        for key in [key for key in _clients if key[0] == os.getpid()]:
            _clients.pop(key)[1].close()
