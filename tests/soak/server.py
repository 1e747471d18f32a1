"""The broker of a run with all its gateways: real processes on a real disk, killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import msgspec

from oncemq.config.addresses import split_address, stream_place, unix_path
from oncemq.testing.broker_process import BrokerProcess, free_port, free_ports
from oncemq.tools.faults.processes import children_of
from tests.acceptance.campaigns.addresses import listen_everywhere
from tests.soak.clients.client import Addresses
from tests.soak.plan import Victim

#: Small files, so that segments are recycled and snapshots are taken all the time. Keys and anonymous sessions expire
#: during the run, so that their tables stay small.
FLAGS = (
    "--segment-bytes=4MiB",
    "--snapshot-bytes=8MiB",
    "--batch-bytes-max=1MiB",
    "--key-ms=3m",
    "--session-idle-ms=3m",
    "--log-level=warning",
)
_START_S = 30.0
_POLL_S = 0.02


class Server:
    """`oncemq serve` with all listeners."""

    def __init__(self, folder: Path) -> None:
        host, push = "127.0.0.1", free_ports(3)
        text, udp = free_port(), free_port()
        flags = (f"--text={host}:{text}", f"--push={host}:{push}", f"--udp={host}:{udp}")
        _, stream_unix, zeromq = listen_everywhere(folder)
        listeners = (f"--listen={stream_unix}", f"--listen={zeromq}")
        self.broker = BrokerProcess(folder / "data", *FLAGS, *listeners, *flags, http=True)
        self.addresses = Addresses(
            stream=self.broker.url,
            stream_unix=stream_unix,
            zeromq=zeromq,
            http=self.broker.http_url,
            text=f"tcp://{host}:{text}",
            publish=f"tcp://{host}:{push}",
            feed=f"tcp://{host}:{push + 1}",
            acks=f"tcp://{host}:{push + 2}",
            udp=(host, udp),
        )
        self.data = folder / "data"
        self._is_up = False

    def start(self) -> None:
        self.broker.start(wait=False)
        self._is_up = True

    def kill(self, victim: Victim) -> bool:
        """Kill or stop a process. Returns False if it was not running."""
        if not self.broker.is_running():
            return False
        if victim == "gateway":
            gateway = self.gateway_pid()
            return gateway != 0 and _killed(gateway)
        self._is_up = False
        if victim == "broker":
            # The gateway is left alone, and must end by itself.
            os.kill(self.broker.pid, signal.SIGKILL)
            self.broker.wait()
        elif victim == "broker stop":
            self.broker.stop()
        else:
            self.broker.kill()
        return True

    def has_died(self) -> bool:
        """Whether the broker has ended without being killed."""
        return self._is_up and not self.broker.is_running()

    def gateway_pid(self) -> int:
        """Return the process id of the gateway; 0 = it is not running."""
        pids = children_of(self.broker.pid) if self.broker.is_running() else []
        return pids[0] if pids else 0

    def wait_until_ready(self) -> None:
        """Wait until all listeners accept connections. Raises RuntimeError."""
        missing = [url for url in msgspec.structs.astuple(self.addresses) if isinstance(url, str)]
        until_s = time.monotonic() + _START_S
        while missing and time.monotonic() < until_s:
            missing = [url for url in missing if not _listens(url)]
            time.sleep(_POLL_S)
        if missing:
            raise RuntimeError(f"nothing listens at {', '.join(missing)}:\n{self.broker.log_tail()}")

    def end(self) -> int:
        """Stop it cleanly. Returns the exit code."""
        self._is_up = False
        try:
            return self.broker.stop() if self.broker.is_running() else 0
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _listens(url: str) -> bool:
    path = unix_path(url)
    with socket.socket(socket.AF_UNIX if path else socket.AF_INET) as probe:
        return probe.connect_ex(stream_place(url) if path else split_address(url)) == 0
