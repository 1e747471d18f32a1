"""A terminal in which tests run a page of the documentation, and compare what it prints with what the page shows."""

from __future__ import annotations

import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.pages import Block, sessions_of

#: The home of the reader of a page.
HOME = "/home/ada"
#: What differs each time: times, ids of tokens and topics, processes, and keys of ZeroMQ.
DIFFERENT = (
    re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"),
    re.compile(r'(?<="time_ms":)\d+'),
    re.compile(r'(?<="topic_id":)\d+'),
    re.compile(r"(?<=with the id )[a-z0-9]{8}\b"),
    re.compile(r'(?<="credential":")[a-z0-9]{8}\b'),
    re.compile(r"(?<=Removed )[a-z0-9]{8}\b"),
    re.compile(r"(?m)^[a-z0-9]{8}$"),
    re.compile(r"(?<=\(pid )\d+"),
    re.compile(r"(?<= )[!-~]{40}$", re.MULTILINE),
)
_PORT = re.compile(r"(?<=:)\d{4}\b")
_DEADLINE_S = 120


class Terminal:
    """Each command runs in a shell of its own, in one folder and with one home. What ends with `&` runs until the end
    of the test."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._folder = folder
        self._home = folder / "home"
        self._home.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEMQ_", "XDG_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {**kept, "PATH": path, "HOME": str(self._home), "no_proxy": "*", **variables}
        self._code = 0
        #: Ports of the page → ports that are free.
        self._ports: dict[str, str] = {}
        #: What differs → what it is here.
        self._real: dict[str, str] = {}
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for process in reversed(self._running):
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=_DEADLINE_S)

    def use_free_ports(self, *pages: int) -> None:
        """Use other ports than the page does."""
        for port in pages:
            self._ports[str(port)] = _free_port({*self._ports.values()})

    def run_blocks(self, blocks: Sequence[Block]) -> None:
        """Run the commands and the Python programs of a page. A text after a program is its output."""
        for block, following in zip(blocks, [*blocks[1:], Block("", "")], strict=True):
            if block.kind == "python":
                done = self._completed([sys.executable, "-c", self._real_text(block.text)], subprocess.PIPE)
                assert done.returncode == 0, done.stderr
                self._compare(block.text, done.stdout, following.text if following.kind == "text" else "")
            elif block.kind == "console":
                for command, expected in sessions_of(block.text):
                    self.run(command, expected)

    def run(self, command: str, expected: str) -> None:
        """Run a command, and compare what it prints."""
        real = self._real_text(command)
        if real.endswith("&"):
            self._compare(command, self._start(real.removesuffix("&"), expected.count("\n")), expected)
            return
        done = self._completed(["bash", "-c", f"(exit {self._code}); {real}"], subprocess.STDOUT)
        self._code = done.returncode
        # The output of curl does not end with the end of a line.
        is_partial = expected.endswith("\n") and not done.stdout.endswith("\n") and done.stdout
        self._compare(command, done.stdout + "\n" * bool(is_partial), expected)

    def _completed(self, arguments: list[str], stderr: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=self._environment,
            cwd=self._folder,
            timeout=_DEADLINE_S,
            check=False,
        )

    def _start(self, command: str, lines: int) -> str:
        """Start a command, and return the first lines that it prints."""
        with (self._folder / f"{len(self._running)}.log").open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                cwd=self._folder,
                start_new_session=True,
            )
        self._running.append(process)
        assert process.stdout is not None
        until_s = time.monotonic() + _DEADLINE_S
        said = ""
        while said.count("\n") < lines:
            readable, _, _ = select.select([process.stdout], [], [], until_s - time.monotonic())
            chunk = os.read(process.stdout.fileno(), 10_000).decode() if readable else ""
            assert chunk, f"{command}: {said}{Path(log.name).read_text(encoding='utf-8')}"
            said += chunk
        return said

    def _real_text(self, text: str) -> str:
        for shown, real in self._real.items():
            text = text.replace(shown, real)
        return _PORT.sub(lambda found: self._ports.get(found[0], found[0]), text)

    def _compare(self, command: str, said: str, expected: str) -> None:
        for shown, real in self._ports.items():
            said = said.replace(f":{real}", f":{shown}")
        said = said.replace(str(self._home), HOME)
        for pattern in DIFFERENT:
            self._real |= dict(zip(pattern.findall(expected), pattern.findall(said), strict=False))
        assert _same(said) == _same(expected), command


def _free_port(taken: set[str]) -> str:
    """A port with as many digits as those of pages, so that tables keep their form."""
    while True:
        port = random.SystemRandom().randrange(6_000, 10_000)
        with socket.socket() as probe:
            if str(port) not in taken and probe.connect_ex(("127.0.0.1", port)) != 0:
                return str(port)


def _same(text: str) -> str:
    for pattern in DIFFERENT:
        text = pattern.sub("DIFFERENT", text)
    return text
