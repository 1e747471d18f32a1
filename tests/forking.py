"""`oncemq` commands as processes that have imported everything: forked from one server for all tests.

A command that is started normally spends most of its time with imports. Everything else is as in a shell: it has
arguments, an environment, standard streams and an exit code, leads a process group, and can be killed.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import reduction
from typing import IO, Any, cast

from oncemq.cli.main import COMMANDS
from oncemq.testing.broker_process import BrokerProcess

TIMEOUT_S = 60
_CHUNK_BYTES = 1 << 20

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [
        "tests.forking",
        "oncemq.server.serve",
        "oncemq.client.sync",
        *sorted({lazy.target.partition(":")[0] for lazy in COMMANDS.values()}),
    ]
)


class Forked:
    """`oncemq` with these arguments. It has the methods of subprocess.Popen."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> None:
        """`streams`: the descriptors of its standard input, output and error."""
        arguments_of_run = ([*arguments], {**environment}, os.getcwd(), _Streams(streams))
        self._process = _server.Process(target=_run, args=arguments_of_run, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self._wait_for_process_group()

    @classmethod
    def with_pipes(cls, arguments: Sequence[str], environment: Mapping[str, str], stdin: int) -> Forked:
        """Start it with pipes for its output and errors."""
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        forked = cls(arguments, environment, (stdin, its_out, its_err))
        os.close(its_out)
        os.close(its_err)
        forked.stdout, forked.stderr = os.fdopen(out, "rb", 0), os.fdopen(err, "rb", 0)
        return forked

    @property
    def returncode(self) -> int | Any:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("oncemq", timeout or 0)
        return code

    def communicate(self, timeout: float = TIMEOUT_S) -> tuple[bytes, bytes]:
        """Return the rest of its output and errors, after its end."""
        assert self.stdout is not None
        assert self.stderr is not None
        until_s = time.monotonic() + timeout
        said = {pipe: bytearray() for pipe in (self.stdout, self.stderr)}
        while talking := [pipe for pipe in said if not pipe.closed]:
            readable, _, _ = select.select(talking, [], [], max(0.0, until_s - time.monotonic()))
            if not readable:
                raise subprocess.TimeoutExpired("oncemq", timeout)
            for pipe in readable:
                chunk = os.read(pipe.fileno(), _CHUNK_BYTES)
                said[pipe] += chunk
                if not chunk:
                    pipe.close()
        self.wait(timeout)
        return bytes(said[self.stdout]), bytes(said[self.stderr])

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait_for_process_group(self) -> None:
        with suppress(ProcessLookupError):
            while os.getpgid(self.pid) != self.pid:
                time.sleep(0.001)


class ForkedBroker(BrokerProcess):
    """A broker whose process is forked, unless its command has a prefix."""

    def start(self, prefix: Sequence[str] = (), *, wait: bool = True) -> None:
        if prefix or self._module != "oncemq":
            super().start(prefix, wait=wait)
            return
        assert self._process is None or self._process.poll() is not None, "the previous process has not ended"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMQ_")}
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log, open(os.devnull, "rb") as nothing:
            streams = (nothing.fileno(), log.fileno(), log.fileno())
            self._process = cast("subprocess.Popen[bytes]", Forked(self._arguments(), environment, streams))
        if wait:
            self.wait_until_active()


class _Streams:
    """Open files that are sent to another process."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def __reduce__(self) -> Any:
        return _Received, ([reduction.DupFd(number) for number in self.numbers],)


class _Received:
    def __init__(self, copies: Sequence[Any]) -> None:
        self._copies = copies

    def become_standard(self) -> None:
        for number, copy in enumerate(self._copies):
            received = copy.detach()
            os.dup2(received, number)
            os.close(received)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)


def _run(arguments: Sequence[str], environment: Mapping[str, str], folder: str, streams: _Received) -> None:
    from oncemq.cli.main import main

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    streams.become_standard()
    sys.argv = ["oncemq", *arguments]
    main()
