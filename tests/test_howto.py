"""The Python blocks of each how-to page run, one after the other, in a separate process.

Everything else becomes empty lines, so that a traceback names the line of the page. All links must be valid.
"""

from __future__ import annotations

import inspect
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import oncemq
from oncemq.client.inbox.database import Key, Row
from oncemq.client.inbox.sqlite import SqliteInbox
from oncemq.testing.postgres import ENVIRONMENT
from tests.pages import HOWTO, ROOT, read

#: Its programs run between its commands (tests/cli/test_howto.py).
WITH_COMMANDS = {"secure"}
PAGES = sorted({path.stem for path in HOWTO.glob("*.md") if "```python\n" in read(path)} - WITH_COMMANDS)
PAGE_DEADLINE_S = 120
PYTEST = ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-c", os.devnull]
#: Texts that the output of a page must contain.
SAID = {
    "asyncio": ["one pizza", "in parallel"],
    "delivery-options": ["has reached its quota", "was deleted"],
    "frames": ["column 'price' is string"],
    "http-queue": ["one pizza and two salads", "has no subscriptions", "there is no message"],
    "inbox": ["took over", "from an older copy"],
    "outbox": ["no topic", "another process has opened", "restored from a copy"],
    "patterns": ["orders.eu", "orders.us"],
    "pipelines": [],
    "python": ["took over", "no topic"],
    "schemas": ["Order(id=1", "the schema has no such field", "a reader expects string"],
    "shared": ["lost its lease", "no such table"],
    "transactions": ["no such topic", "took over"],
}


def code_of(page: str) -> str:
    """Return the code of a page, with the line numbers of the page."""
    lines, is_code = [], False
    for line in text_of(page).splitlines():
        if line.startswith("```"):
            is_code = line == "```python"
            line = ""
        lines.append(line if is_code else "")
    return "\n".join(lines) + "\n"


def text_of(page: str) -> str:
    return read(HOWTO / f"{page}.md")


def run(page: str, folder: Path, postgres: str) -> str:
    """Run a page and return its output. A page with tests is run by pytest."""
    code = code_of(page)
    program = folder / f"{page.replace('-', '_')}_page.py"
    program.write_text(code, encoding="utf-8")
    has_tests = re.search(r"^def test_", code, re.MULTILINE)
    runner = PYTEST if has_tests else []
    done = subprocess.run(
        [sys.executable, *runner, program.name],
        cwd=folder,
        env=os.environ | {"DATABASE_URL": postgres, ENVIRONMENT: postgres, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=PAGE_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{page}.md\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs_after_those_before_it(page: str, tmp_path: Path, postgres: str) -> None:
    said = run(page, tmp_path, postgres)
    assert [words for words in SAID[page] if words not in said] == [], said


def test_all_options_of_connect_are_documented() -> None:
    options = oncemq.connect.__kwdefaults__
    assert options
    assert [name for name in options if f"`{name}`" not in text_of("python")] == []


def test_all_options_of_shared_subscriptions_are_documented() -> None:
    parameters = inspect.signature(oncemq.Client.subscribe_shared).parameters.values()
    options = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    assert options
    assert [name for name in options if f"`{name}`" not in text_of("shared")] == []


def test_the_table_of_the_inbox_is_documented() -> None:
    connection = sqlite3.connect(":memory:")
    SqliteInbox(connection, "oncemq_inbox").open_row(Key(1, "s", "t"), Row(1, 1, 0), lambda row: row)
    columns = [name for _, name, *_ in connection.execute("pragma table_info(oncemq_inbox)")]
    connection.close()
    assert [name for name in columns if f"`{name}`" not in text_of("inbox")] == []


def anchors_of(path: Path) -> set[str]:
    """Return the anchors of a page, as GitHub derives them from headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda page: page.stem)
def test_every_link_is_valid(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    broken = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []
