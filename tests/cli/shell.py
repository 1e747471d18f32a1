"""Runs commands as a shell does: each is a process, and all use one broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from itertools import count
from typing import Any

from tests.forking import TIMEOUT_S as TIMEOUT_S
from tests.forking import Forked

COMMAND = [sys.executable, "-m", "oncemq"]


class Shell:
    """Runs commands against one broker, with a separate topic. Commands that still run at the end are killed."""

    numbers = count()

    def __init__(self, url: str) -> None:
        self.environment = {**os.environ, "ONCEMQ_URL": url, "ONCEMQ_TRIES": "20"}
        self.topic = f"topic {next(self.numbers)}"
        self.started: list[Forked] = []

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        process = self.start(*arguments, stdin=stdin)
        out, err = process.communicate()
        return subprocess.CompletedProcess(arguments, process.wait(), out, err)

    def ok(self, *arguments: str, stdin: bytes = b"") -> bytes:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def start(self, *arguments: str, stdin: bytes = b"") -> Forked:
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            process = Forked.with_pipes(arguments, self.environment, given.fileno())
        self.started.append(process)
        return process

    def end_all(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()

    def objects(self, *arguments: str) -> list[Any]:
        """Return what a command prints with --json."""
        return [json.loads(line) for line in self.ok(*arguments, "--json").splitlines()]

    def subscription(self, subscriber: str = "") -> Any:
        """Return the only subscription of the topic, or the one with this name."""
        [found] = [entry for entry in self.objects("subs", self.topic) if subscriber in ("", entry["subscriber"])]
        return found

    def put_numbers(self, number: int) -> None:
        self.ok("put", self.topic, "--create", stdin=b"".join(b"%d\n" % n for n in range(number)))
