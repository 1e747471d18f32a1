"""Supervises the gateway process of a broker: starts it with the broker, restarts it when it dies, ends it before the
broker.

The standard input of the gateway is a pipe that this process holds open, and the gateway ends when the pipe is closed.
So it never outlives its broker, no matter how the broker ends. This module knows how to run a command, and not what a
gateway does.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from oncemq.protocol import errors

log = logging.getLogger("oncemq.gateways")

#: The pause before a gateway that died is restarted. It doubles each time, and starts again after a stable run.
_PAUSE_S = 0.2
_PAUSE_S_MAX = 10.0
_STABLE_S = 30.0
#: How often it is checked whether a gateway that can't run yet may be started.
_CHECK_EVERY_S = 5.0
#: How long open requests may take when everything stops.
_DRAIN_S = 5.0
#: The address of all interfaces can be listened on, but not connected to.
_WILDCARD = re.compile(r"(?:(?<=^tcp://)|(?<=^oncemq://))(0\.0\.0\.0|\[::\])(?=:)")
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


class Supervisor:
    """Runs at most one gateway process. Without arguments for it, it does nothing."""

    def __init__(
        self,
        arguments: Callable[[], Sequence[str] | None] = tuple,
        is_stopping: Callable[[], bool] = lambda: False,
        token: str = "",
    ) -> None:
        """`arguments` returns the arguments of `oncemq`, without the broker's address. It is called at each `start`,
        and again while it returns None, which means "not yet". `token` is the gateway's own: its standard input begins
        with it, since others could see it among the arguments or variables of a process."""
        self._token = token
        self._arguments = arguments
        self._is_stopping = is_stopping
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._drain_until_s = 0.0

    def start(self, url: str) -> None:
        """Run the gateway for a broker that listens on this address, until `end` is called."""
        arguments = self._arguments()
        if arguments is not None and not arguments:
            return
        self._ended.clear()
        self._drain_until_s = 0.0
        self._thread = threading.Thread(target=self._watch, args=(arguments, url), name="oncemq-gateway", daemon=True)
        self._thread.start()

    def has_drained(self) -> bool:
        """Ask the gateway, at the first call, to finish its open requests. Return True once it has ended, or its time
        is over."""
        if self._thread is None or not self._thread.is_alive():
            return True
        if not self._drain_until_s:
            self._drain_until_s = time.monotonic() + _DRAIN_S
            self._signal(signal.SIGTERM)
        return time.monotonic() >= self._drain_until_s

    def hang_up(self) -> None:
        """Let the gateway read its certificates again."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGHUP)

    def end(self) -> None:
        """End the gateway immediately."""
        self._signal(signal.SIGKILL)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _signal(self, number: int) -> None:
        with self._lock:
            self._ended.set()
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)

    # The following runs in the thread.

    def _watch(self, arguments: Sequence[str] | None, url: str) -> None:
        while arguments is None:
            if self._ended.wait(_CHECK_EVERY_S) or self._is_stopping():
                return
            arguments = self._arguments()
        self._keep_running([sys.executable, "-m", "oncemq", *arguments, "--broker", connectable(url), "--with-parent"])

    def _keep_running(self, command: Sequence[str]) -> None:
        pause_s = _PAUSE_S
        while True:
            began_s = time.monotonic()
            try:
                code = self._run_once(command)
            except OSError as error:
                # There are too many processes or descriptors, or too little memory, at the moment.
                log.error("the gateway can't be started: %s", error)
                code = errors.OnceMQError.exit_code
            if self._ended.is_set() or self._is_stopping():
                return
            if code == errors.SettingInvalid.exit_code:
                log.error("the gateway can't run with its settings; the broker continues without it")
                return
            if time.monotonic() - began_s >= _STABLE_S:
                pause_s = _PAUSE_S
            log.error("the gateway %s; it is restarted in %g s", describe_exit(code), pause_s)
            if self._ended.wait(pause_s) or self._is_stopping():
                return
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _run_once(self, command: Sequence[str]) -> int:
        """Run the gateway until it ends. Return its exit code."""
        its_stdin, ours = os.pipe()
        try:
            with self._lock:
                if self._ended.is_set():
                    return 0
                self._process = subprocess.Popen(command, stdin=its_stdin)
            os.write(ours, f"{self._token}\n".encode())
            return self._process.wait()
        finally:
            os.close(its_stdin)
            os.close(ours)


def describe_exit(code: int) -> str:
    """
    >>> describe_exit(-9)
    'was killed by SIGKILL'
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def connectable(url: str) -> str:
    """Return the address at which this machine can connect to a broker that listens on `url`."""
    return _WILDCARD.sub(lambda match: _LOOPBACK[match[0]], url)
