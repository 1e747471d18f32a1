"""The screens that the documentation shows are what the commands show.

REWRITE_SCREENS=1 writes them anew.
"""

from __future__ import annotations

import io
import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from oncemq.protocol.message import Message
from oncemq.testing.broker_process import BrokerProcess
from oncemq.tools.chaos.display import log_line, table_of, verdict_of
from oncemq.tools.chaos.report import Numbers, Result
from oncemq.tools.shell.session import Session

SCREENS = Path(__file__).parents[2] / "docs/screens"
WIDTH = 100


def check(name: str, text: str) -> None:
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    path = SCREENS / name
    if os.environ.get("REWRITE_SCREENS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "REWRITE_SCREENS=1 pytest tests/cli/test_screens.py writes it anew"


@pytest.mark.parametrize("name", ["shell", "chaos"])
def test_the_guide_shows_the_screen(name: str) -> None:
    page = SCREENS.parent / f"howto/{name}.md"
    assert (SCREENS / f"{name}.txt").read_text(encoding="utf-8") in page.read_text(encoding="utf-8"), page


def test_the_readme_shows_the_verdict_of_chaos() -> None:
    _, top, rest = (SCREENS / "chaos.txt").read_text(encoding="utf-8").partition("╭")
    assert top + rest in (SCREENS.parents[1] / "README.md").read_text(encoding="utf-8")


class Transcript:
    """A display that records its output."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        with self._lock:
            self.lines.append(text)

    def error(self, text: str, advice: str = "") -> None:
        self.say(f"error: {text}" + (f"\n       {advice}" if advice else ""))

    def messages_held(self) -> AbstractContextManager[object]:
        return self._lock

    def message(self, message: Message) -> None:
        self.say(f"{message.topic}: {message.text}")


def test_the_shells_screen(broker_process: BrokerProcess) -> None:
    broker_process.start()
    transcript = Transcript()
    with broker_process.connect() as client:
        session = Session(client, "alice", transcript, permanent=True)
        session.greet()
        for line in (
            "sub orders",
            "put orders one pizza",
            'sub "Cooking Recipes"',
            'put "Cooking Recipes" pancakes: flour, eggs, milk',
            "put breakfast tea",
            "list topics",
            "unsub orders",
            "quit",
        ):
            transcript.say(f"{session.prompt}{line}")
            session.execute(line)
            session.settle()
        session.close()
    check("shell.txt", "$ oncemq shell --as alice\n" + "\n".join(transcript.lines))


class ChaosRun(msgspec.Struct):
    """A recorded run of `oncemq chaos --seed 7`: its last lines, the last table, the result."""

    lines: list[tuple[float, str, str]]
    numbers: Numbers
    result: Result


def test_the_screen_of_chaos() -> None:
    run = msgspec.json.decode(Path(__file__).with_name("chaos_run.json").read_bytes(), type=ChaosRun)
    console = Console(width=WIDTH, record=True, file=io.StringIO(), color_system=None)
    console.print("$ oncemq chaos --seed 7\n    …")
    for line in run.lines:
        console.print(log_line(*line))
    console.print(table_of(run.numbers))
    console.print(verdict_of(run.result))
    check("chaos.txt", console.export_text())
