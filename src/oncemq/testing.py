"""A pytest plug-in: brokers and clients for tests.

    def test_orders(oncemq_client):
        oncemq_client.subscribe("orders", "kitchen")
        oncemq_client.put("orders", "one pizza")

`oncemq_broker` is a real broker, a process of its own that can be killed; `oncemq_client` is connected to it;
`oncemq_embedded` is a client with a broker inside the test's process, which is quicker.

Nothing of OnceMQ is imported before a test asks for one of them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oncemq.client.blocking import Client

_START_S = 20.0
_STOP_S = 10.0


def free_url() -> str:
    """An address on this machine where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class BrokerProcess:
    """A broker in a process of its own. Its folder outlives it: `restart` goes on with what is stored.

    >>> broker = BrokerProcess(tmp_path)
    >>> broker.start()
    >>> client = broker.connect()
    """

    def __init__(self, folder: Path, *flags: str) -> None:
        self.url = free_url()
        self.folder = folder
        self.flags = flags
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        log = (self.folder.parent / f"{self.folder.name}.log").open("ab")
        command = [sys.executable, "-m", "oncemq", "serve", "--listen", self.url, "--data", str(self.folder)]
        with log:
            self.process = subprocess.Popen([*command, *self.flags], stdout=log, stderr=log)
        self._wait_until_ready(Path(log.name))

    def _wait_until_ready(self, log: Path) -> None:
        from oncemq.errors import BrokerAway

        assert self.process is not None
        deadline_s = time.monotonic() + _START_S
        while self.process.poll() is None and time.monotonic() < deadline_s:
            try:
                with self.connect(timeout_s=0.5, tries=1) as client:
                    client.health()
                return
            except BrokerAway:
                continue
        self.kill()
        raise RuntimeError(f"the broker did not start:\n{log.read_text(errors='replace')}")

    def connect(self, *, name: str | None = None, timeout_s: float = 1.0, tries: int = 10) -> Client:
        """A client of this broker."""
        import oncemq

        return oncemq.connect(self.url, name=name, timeout_s=timeout_s, tries=tries)

    def kill(self) -> None:
        """Without warning, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Politely: it finishes what it has in hand."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it, and start it on the same folder and address."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """It stays, but does not answer until `resume`."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def _end(self, signal_number: int) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal_number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def oncemq_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running broker with a folder of its own: `.url`, `.connect()`, `.kill()`, `.restart()`, `.stop()`."""
    broker = BrokerProcess(tmp_path / "oncemq-data")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def oncemq_client(oncemq_broker: BrokerProcess) -> Iterator[Client]:
    """A client of `oncemq_broker`."""
    client = oncemq_broker.connect()
    yield client
    # A test may have killed the broker, or left something that fails: that is its own business.
    client._close(clean=False)


@pytest.fixture
def oncemq_embedded(tmp_path: Path) -> Iterator[Client]:
    """A client with a broker inside this process, in a folder of its own."""
    import oncemq

    client = oncemq.connect(f"file:{tmp_path / 'oncemq-embedded'}")
    yield client
    client._close(clean=False)
