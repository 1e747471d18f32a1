"""The gateway process beside a broker: started with it, restarted when it dies, ended before it.

A gateway ends by itself when its standard input does, which is the other end of a pipe that this process holds: so
it never outlives its broker, however that ends. Knows how to run a command, and nothing of what a gateway does.
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

#: A gateway that died is started again after so long; the time doubles, and begins anew when one has lived.
_PAUSE_S = 0.2
_PAUSE_S_MAX = 10.0
_LIVED_S = 30.0
#: Whether a gateway that can't run yet may be started, is looked at so often.
_LOOK_S = 5.0
#: What is being answered may take so long when everything stops.
_DRAIN_S = 5.0
#: An address that stands for all of the machine's can be listened at, but not be called.
_WILDCARD = re.compile(r"(?<=^tcp://)(0\.0\.0\.0|\[::\])(?=:)")
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


class Supervisor:
    """One gateway at a time, or none: with no arguments for it, nothing happens here."""

    def __init__(
        self,
        arguments: Callable[[], Sequence[str] | None] = tuple,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`arguments` of `oncemq`, without the broker's address; asked for at each `start`, and again as long as they
        are None: not yet."""
        self._arguments = arguments
        self._is_stopping = is_stopping
        self._is_over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._drain_until_s = 0.0

    def start(self, url: str) -> None:
        """Run it for a broker that listens at this address, until `end`."""
        arguments = self._arguments()
        if arguments is not None and not arguments:
            return
        self._is_over.clear()
        self._drain_until_s = 0.0
        self._thread = threading.Thread(target=self._watch, args=(arguments, url), name="oncemq-gateway", daemon=True)
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

    def _watch(self, arguments: Sequence[str] | None, url: str) -> None:
        while arguments is None:
            if self._is_over.wait(_LOOK_S) or self._is_stopping():
                return
            arguments = self._arguments()
        self._keep_alive([sys.executable, "-m", "oncemq", *arguments, "--broker", reachable(url), "--with-parent"])

    def _keep_alive(self, command: Sequence[str]) -> None:
        pause_s = _PAUSE_S
        while True:
            began_s = time.monotonic()
            code = self._live(command)
            if self._is_over.is_set() or self._is_stopping():
                return
            if code == errors.SettingInvalid.exit_code:
                log.error("the gateway can't run as it is set; the broker goes on without it")
                return
            if time.monotonic() - began_s >= _LIVED_S:
                pause_s = _PAUSE_S
            log.error("the gateway %s; it is started again in %g s", ending_of(code), pause_s)
            if self._is_over.wait(pause_s) or self._is_stopping():
                return
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _live(self, command: Sequence[str]) -> int:
        """One life of it; returns its exit code."""
        its_stdin, ours = os.pipe()
        try:
            with self._lock:
                if self._is_over.is_set():
                    return 0
                self._process = subprocess.Popen(command, stdin=its_stdin)
            return self._process.wait()
        finally:
            os.close(its_stdin)
            os.close(ours)


def ending_of(code: int) -> str:
    """
    >>> ending_of(-9)
    'was killed by SIGKILL'
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def reachable(url: str) -> str:
    """Where a broker that listens there is called from this machine."""
    return _WILDCARD.sub(lambda match: _LOOPBACK[match[0]], url)
