"""The gateway process beside a broker: started with it, restarted when it dies, ended before it.

A gateway ends by itself when its standard input does, which is the other end of a pipe that this process holds: so
it never outlives its broker, however that ends. Knows how to run a command, and nothing of what a gateway does.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from oncemq import errors
from oncemq.config import HTTP_ADDRESS, ServeSettings, split_http

log = logging.getLogger("oncemq.gateways")

#: A gateway that died is started again after so long; the time doubles, and begins anew when one has lived.
_PAUSE_S = 0.2
_PAUSE_S_MAX = 10.0
_LIVED_S = 30.0
#: What is being answered may take so long when everything stops.
_DRAIN_S = 5.0
_NEEDED = ("starlette", "uvicorn")
#: An address that stands for all of the machine's can be listened at, but not be called.
_WILDCARD = re.compile(r"(?<=^tcp://)(0\.0\.0\.0|\[::\])(?=:)")
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


class Supervisor:
    """One gateway at a time, or none: with no arguments for it, nothing happens here."""

    def __init__(
        self,
        arguments: Sequence[str] = (),
        is_stopping: Callable[[], bool] = lambda: False,
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        """`arguments` of `oncemq`, without the broker's address. `may_start` is asked at each `start`."""
        self._arguments = tuple(arguments)
        self._is_stopping = is_stopping
        self._may_start = may_start
        self._is_over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._drain_until_s = 0.0

    def start(self, url: str) -> None:
        """Run it for a broker that listens at this address, until `end`."""
        if not self._arguments or not self._may_start():
            return
        self._is_over.clear()
        self._drain_until_s = 0.0
        arguments = (reachable(url),)
        self._thread = threading.Thread(target=self._watch, args=arguments, name="oncemq-gateway", daemon=True)
        self._thread.start()

    def has_drained(self) -> bool:
        """Asks it to finish what it has in hand, the first time. True: it has ended, or its time is over."""
        if self._thread is None or not self._thread.is_alive():
            return True
        if not self._drain_until_s:
            self._drain_until_s = time.monotonic() + _DRAIN_S
            self._signal(signal.SIGTERM)
        return time.monotonic() >= self._drain_until_s

    def end(self) -> None:
        """At once."""
        self._signal(signal.SIGKILL)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _signal(self, number: int) -> None:
        with self._lock:
            self._is_over.set()
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)

    # In the thread.

    def _watch(self, url: str) -> None:
        pause_s = _PAUSE_S
        while True:
            began_s = time.monotonic()
            code = self._live(url)
            if self._is_over.is_set() or self._is_stopping():
                return
            if code == errors.SettingInvalid.exit_code:
                log.error("the gateway can't run as it is set; the broker goes on without it")
                return
            if time.monotonic() - began_s >= _LIVED_S:
                pause_s = _PAUSE_S
            log.error("the gateway ended with exit code %d; it is started again in %g s", code, pause_s)
            if self._is_over.wait(pause_s) or self._is_stopping():
                return
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _live(self, url: str) -> int:
        """One life of it; returns its exit code."""
        its_stdin, ours = os.pipe()
        try:
            with self._lock:
                if self._is_over.is_set():
                    return 0
                self._process = subprocess.Popen(self._command(url), stdin=its_stdin)
            return self._process.wait()
        finally:
            os.close(its_stdin)
            os.close(ours)

    def _command(self, url: str) -> list[str]:
        return [sys.executable, "-m", "oncemq", *self._arguments, "--broker", url, "--with-parent"]


def reachable(url: str) -> str:
    """Where a broker that listens there is called from this machine."""
    return _WILDCARD.sub(lambda match: _LOOPBACK[match[0]], url)


def http_beside(
    settings: ServeSettings, say: Callable[[str], None], is_stopping: Callable[[], bool] = lambda: False
) -> Supervisor:
    """What runs the HTTP gateway, if there is to be one. Raises MissingExtra, ListenFailed if it was asked for."""
    if settings.http == "none":
        return Supervisor()
    is_wanted = settings.http != "auto"
    address = settings.http if is_wanted else HTTP_ADDRESS
    if not all(importlib.util.find_spec(name) for name in _NEEDED):
        if is_wanted:
            raise errors.MissingExtra("the HTTP gateway is not installed: pip install 'oncemq[http]'")
        say("HTTP is off: pip install 'oncemq[http]' brings it.")
        return Supervisor()
    if is_wanted:
        _probe(address)
        return Supervisor(_arguments(settings, address), is_stopping)
    # A standby's turn comes later: whether the port is free shows then.
    return Supervisor(_arguments(settings, address), is_stopping, may_start=partial(_is_free, address))


def _is_free(address: str) -> bool:
    try:
        _probe(address)
    except errors.ListenFailed as error:
        log.warning("%s: the broker goes on without HTTP. `--http HOST:PORT` chooses another address", error)
        return False
    return True


def _probe(address: str) -> None:
    """A conflict shows before anything is served. Raises ListenFailed."""
    host, port = split_http(address)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise errors.ListenFailed(f"can't listen at {address} for HTTP: {error.strerror}") from None


def _arguments(settings: ServeSettings, address: str) -> list[str]:
    arguments = ["gateway", "http", "--http", address]
    for field in ("http_body_bytes_max", "http_connections_max", "log_level", "log_format"):
        arguments += ["--" + field.replace("_", "-"), str(getattr(settings, field))]
    for field in ("http_origins", "http_hosts"):
        for value in getattr(settings, field):
            arguments += ["--" + field.replace("_", "-"), value]
    return [*arguments, "--insecure"] if settings.insecure else arguments
