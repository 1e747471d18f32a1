"""A broker in a process of its own that can be killed and restarted. For tests, benchmarks and demonstrations."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from oncemq.client.sync import Client

#: How clients talk to a broker.
Transport = Literal["stream", "zeromq"]
_SCHEMES: dict[Transport, str] = {"stream": "oncemq", "zeromq": "tcp"}

#: Options of a client of a broker without users. Credentials in the environment are for another broker.
WITHOUT_CREDENTIALS: dict[str, Any] = {"token": "", "tls": False, "curve_server": "", "curve_public": ""}

_START_S = 30.0
_STOP_S = 30.0


def free_url(transport: Transport = "stream") -> str:
    """Return an address on this machine that is not in use."""
    return f"{_SCHEMES[transport]}://127.0.0.1:{free_port()}"


def free_port() -> int:
    """Return a port that is not in use. It is below the ephemeral range, so that the system does not give it to a
    client connection while the broker is down."""
    ports = random.SystemRandom()
    while True:
        port = ports.randrange(20_000, 32_000)
        if _is_free(port):
            return port


def free_ports(count: int) -> int:
    """Return the first of several consecutive ports that are not in use."""
    while True:
        first = free_port()
        if all(_is_free(first + index) for index in range(1, count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def drop_credentials() -> None:
    """Remove credentials from the environment, for a program whose processes only use brokers that it starts."""
    from oncemq.config.endpoints import CREDENTIALS, variable

    for name in CREDENTIALS:
        os.environ.pop(variable(name), None)


class BrokerProcess:
    """A broker and its folder. The folder outlives the process: `restart` continues with the stored messages.

    >>> with BrokerProcess(tmp_path / "data") as broker:
    ...     broker.connect().put("orders", b"one pizza", create=True)

    With `http=True` it has an HTTP gateway, at `http_url`. With the flag `--journal postgresql://…` several brokers can
    share one database: the first one serves, the others wait as standbys. Clients use the stream transport, or with
    `transport="zeromq"` ZeroMQ. `client_options` are options of its clients: `token` and `tls` for a folder with users
    and keys.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        module: str = "oncemq",
        http: bool = False,
        transport: Transport = "stream",
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = free_url(transport)
        self._client_options = {"tries": 20, **WITHOUT_CREDENTIALS, **(client_options or {})}
        #: The address of its HTTP gateway; empty if it has none.
        self.http_url = f"http://127.0.0.1:{free_port()}" if http else ""
        self.folder = folder
        self.log_path = folder.with_name(folder.name + ".log")
        self._flags = flags
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def start(self, prefix: Sequence[str] = (), *, wait: bool = True) -> None:
        """Start it. `prefix` is put in front of the command, for a tracer for example. With `wait`, return when it
        answers."""
        assert self._process is None or self._process.poll() is not None, "the broker is already running"
        command = [*prefix, sys.executable, "-m", self._module, *self._arguments()]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMQ_")}
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        if wait:
            self.wait_until_active()

    def _arguments(self) -> list[str]:
        http = self.http_url.removeprefix("http://") or "none"
        return ["serve", "--listen", self.url, "--data", str(self.folder), "--http", http, *self._flags]

    def wait_until_active(self) -> None:
        """Wait until it answers as the active broker. Raise RuntimeError."""
        self._wait_until(lambda: self.role() == "active", "does not answer")

    def wait_until_http(self) -> None:
        """Wait until its HTTP gateway accepts connections. Raise RuntimeError."""
        host, _, port = self.http_url.removeprefix("http://").partition(":")

        def is_there() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((host, int(port))) == 0

        self._wait_until(is_there, "has no gateway")

    def role(self) -> Literal["active", "standby", "away"]:
        """Return the role in which it answers now."""
        from oncemq.protocol.errors import BrokerAway, Standby

        try:
            self.connect(timeout_s=0.25, tries=1).close()
        except BrokerAway:
            return "away"
        except Standby:
            return "standby"
        return "active"

    def _wait_until(self, condition: Callable[[], bool], failure: str) -> None:
        assert self._process is not None
        until_s = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < until_s:
            if condition():
                return
            time.sleep(0.005)
        raise RuntimeError(f"the broker {failure} (exit code {self._process.poll()}):\n{self.log_tail()}")

    def connect(self, **options: Any) -> Client:
        """Return a client of this broker. It makes 20 attempts unless `tries` is given. The credentials of the
        environment are not used; those of the options are."""
        import oncemq

        client: Client = oncemq.connect(self.url, **{**self._client_options, **options})
        return client

    def kill(self) -> None:
        """Kill it without warning, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop it cleanly, so that it answers open requests. Return its exit code."""
        return self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it, and start it again with the same folder and address."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Suspend the process: it does not answer until `resume` is called."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def wait(self, timeout_s: float = _STOP_S) -> int:
        """Wait until it ends, and return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _end(self, signal_number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            os.killpg(process.pid, signal_number)
        try:
            return process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()
