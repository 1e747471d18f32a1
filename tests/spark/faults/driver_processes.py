"""Start driver processes, wait for them, and kill them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tests.spark.faults.driver import STARTED
from tests.spark.faults.streams import Stream

_ROOT = Path(__file__).parents[3]
_WAIT_S = 240.0


class Driver:
    """Python and its JVM are one process group, and die together. Spark's Python workers have a group of their own:
    they notice a little later, as they would if a machine's driver was killed."""

    def __init__(self, folder: Path, streams: Sequence[Stream]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._plan = folder / "plan.json"
        self._log = folder / "driver.log"
        self._plan.write_bytes(msgspec.json.encode(list(streams)))
        self._plan.with_suffix(STARTED).unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.spark.faults.driver", str(self._plan)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def has_started(self) -> bool:
        return self._plan.with_suffix(STARTED).exists()

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + _WAIT_S
        while not condition():
            assert self.code is None, f"the driver ended with {self.code}, before {what}:\n{self.log_tail()}"
            assert time.monotonic() < until_s, f"not within {_WAIT_S:g} s: {what}\n{self.log_tail()}"
            time.sleep(0.02)

    def wait_to_the_end(self, limit_s: float = _WAIT_S) -> None:
        self._process.wait(limit_s)
        assert self.code == 0, f"the driver ended with {self.code}:\n{self.log_tail()}"

    def kill(self) -> None:
        """Send SIGKILL to the driver and its JVM."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]
