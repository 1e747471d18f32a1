"""The addresses of a broker in a campaign. Its clients take turns with them, so that each transport is used."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from oncemq.broker.network import zeromq  # noqa: F401 - imported before the first fork
from oncemq.client.runtime.zmq_transport import ZmqTransport  # noqa: F401 - imported before the first fork
from oncemq.testing.broker_process import free_url

#: Longest path of a Unix socket on any system.
_PATH_BYTES_MAX = 100


def listen_everywhere(folder: Path) -> tuple[str, ...]:
    """Return where a broker listens: with the stream transport over TCP and a Unix socket, and with ZeroMQ."""
    path = f"{folder}/broker.sock"
    if len(path.encode()) > _PATH_BYTES_MAX:
        path = f"@oncemq-{secrets.token_hex(8)}"
    return free_url("stream"), f"oncemq+unix://{path}", free_url("zeromq")


class Turns:
    """Addresses that clients use in turns."""

    def __init__(self, urls: Sequence[str], random: Random) -> None:
        self._urls = itertools.cycle(random.sample(urls, len(urls)))
        #: How many clients each of them had, by its scheme, for the report.
        self.counts: Counter[str] = Counter()

    def next(self) -> str:
        url = next(self._urls)
        self.counts["over_" + url.partition("://")[0]] += 1
        return url
