"""Commands as in a shell: each a process of its own, against one broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import count
from typing import Any

COMMAND = [sys.executable, "-m", "oncemq"]
TIMEOUT_S = 60


class Shell:
    """Runs commands against one broker, on a topic of its own. What still runs at the end is killed."""

    numbers = count()

    def __init__(self, url: str) -> None:
        self.environment = {**os.environ, "ONCEMQ_URL": url, "ONCEMQ_TRIES": "20"}
        self.topic = f"topic {next(self.numbers)}"
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, *arguments], input=stdin, capture_output=True, env=self.environment, timeout=TIMEOUT_S
        )

    def ok(self, *arguments: str, stdin: bytes = b"") -> bytes:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            bufsize=0,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def end_all(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()

    def objects(self, *arguments: str) -> list[Any]:
        """What a command prints with --json."""
        return [json.loads(line) for line in self.ok(*arguments, "--json").splitlines()]

    def subscription(self, subscriber: str = "") -> Any:
        """The topic's only one, or the one of this name."""
        [found] = [
            entry for entry in self.objects("subs", self.topic) if subscriber in ("", entry["subscriber"])
        ]
        return found

    def put_numbers(self, number: int) -> None:
        self.ok("put", self.topic, "--create", stdin=b"".join(b"%d\n" % n for n in range(number)))
