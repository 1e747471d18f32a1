"""A gateway in a process of its own, which can be killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

from oncemq.testing.broker_process import free_port
from tests.forking import Forked

_DEADLINE_S = 60


class GatewayProcess:
    """`oncemq gateway http`, always at the same address."""

    def __init__(self, folder: Path, broker: str, *flags: str) -> None:
        self.port = free_port()
        self._broker = broker
        self._flags = flags
        self._log = folder / "gateway.log"
        self._process: Forked | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMQ_")}
        arguments = ["gateway", "http", "--http", f"127.0.0.1:{self.port}", "--broker", self._broker, *self._flags]
        with self._log.open("ab") as log, open(os.devnull, "rb") as nothing:
            self._process = Forked(arguments, environment, (nothing.fileno(), log.fileno(), log.fileno()))
        until_s = time.monotonic() + _DEADLINE_S
        while not self._listens():
            assert time.monotonic() < until_s, self._log.read_text()
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.005)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(_DEADLINE_S)
