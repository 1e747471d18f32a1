"""One client per process and broker. Spark keeps its Python processes for many tasks: a connection for each task
would cost more than many tasks take."""

from __future__ import annotations

import os
import threading

import oncemq
from oncemq.client.sync import Client

#: A broker that is away is asked once a second.
_TIMEOUT_S = 1.0

_clients: dict[tuple[int, str, float], Client] = {}
_lock = threading.Lock()


def client_of(url: str, timeout_s: float) -> Client:
    """This process's client. Who forks, as Spark's daemon does, does not share it."""
    place = (os.getpid(), url, timeout_s)
    with _lock:
        client = _clients.get(place)
        if client is None:
            tries = max(1, round(timeout_s / _TIMEOUT_S))
            client = oncemq.connect(url, label="spark", timeout_s=_TIMEOUT_S, tries=tries, record="")
            _clients[place] = client
        return client


def close_all() -> None:
    """Let go of this process's clients."""
    with _lock:
        for place in [place for place in _clients if place[0] == os.getpid()]:
            _clients.pop(place).close()
