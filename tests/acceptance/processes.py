"""A broker as a real process: start, kill, restart, wait for its end. Knows nothing of what is stored in it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import oncemq

DEADLINE_S = 30.0
#: Small files, so that segments, snapshots and recycling all come into play.
SMALL = (
    ("--segment-bytes", "1MiB"),
    ("--snapshot-bytes", "1MiB"),
    ("--snapshot-events", "500"),
    ("--batch-bytes-max", "256KiB"),
)


def free_port() -> int:
    """Below the ephemeral range: there no client's own end can be given the port while the broker is down."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Poll. Fails after the deadline."""
    until = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.01)


class BrokerProcess:
    """`python -m oncemq serve` on one folder and one port, through any number of lives."""

    def __init__(self, folder: Path, flags: Sequence[tuple[str, str]] = SMALL) -> None:
        self.folder = folder
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self.log_path = folder.with_name(folder.name + ".log")
        self._flags = [word for flag in flags for word in flag]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, prefix: Sequence[str] = (), *, wait: bool = True) -> None:
        """`prefix` stands in front of the command, such as a tracer. `wait`: until it answers."""
        assert self._process is None or self._process.poll() is not None, "the last life has not ended"
        command = [*prefix, sys.executable, "-m", "oncemq", "serve"]
        command += ["--listen", self.url, "--data", str(self.folder), *self._flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMQ_")}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        if wait:
            self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        process = self._process
        assert process is not None
        try:
            oncemq.connect(self.url, label="probe", timeout_s=0.25, tries=int(DEADLINE_S / 0.25)).close()
        except oncemq.BrokerAway:
            pass
        else:
            return
        raise AssertionError(f"the broker does not answer (exit code {process.poll()}):\n{self.log_tail()}")

    def connect(self, name: str | None = None, *, timeout_s: float = 0.5, tries: int = 60) -> oncemq.Client:
        return oncemq.connect(self.url, name=name, timeout_s=timeout_s, tries=tries)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, for it and for what was put in front of it."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        # It leads a process group of its own.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Until it ends by itself; returns the exit code."""
        assert self._process is not None
        try:
            return self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the broker did not end:\n{self.log_tail()}") from None

    def restart(self) -> None:
        self.kill()
        self.start()

    def log_tail(self) -> str:
        return self.log_path.read_text(errors="replace")[-3000:] if self.log_path.exists() else ""
