"""The examples run and print what they should, also when they run again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import oncemq

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 60
NOBODY = "oncemq://127.0.0.1:9"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path}/data"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if f'run("{path.name}"' not in text] == []


def test_the_first_message_arrives(url: str) -> None:
    said = run("first_message.py", url)
    assert said == "stored at offset 0, for 1 subscription\none pizza, for b'table-7'\n"


def test_lines_are_copied_whole(tmp_path: Path) -> None:
    source = tmp_path / "source.txt"
    source.write_bytes(b"".join(b"line %d\n" % number for number in range(20_000)))
    said = run("copy_lines.py", str(source))
    assert said.endswith("20000 lines\n")
    assert source.with_suffix(".copy").read_bytes() == source.read_bytes()


def test_typed_orders_are_checked_and_read_as_objects(url: str) -> None:
    lines = run("typed_orders.py", url).splitlines()
    assert (lines[0], lines[2]) == ("version 1", "version 2")
    assert lines[1].endswith("version 1 of its schema: currency: the schema has no such field")
    assert lines[3:] == [
        "1 Order(id=1, price=Decimal('9.50'), currency='EUR')",
        "2 Order(id=2, price=Decimal('7.00'), currency='USD')",
    ]


def test_an_outbox_keeps_what_the_next_run_sends(tmp_path: Path, url: str) -> None:
    path = str(tmp_path / "readings.outbox")
    with oncemq.connect(url) as client:
        client.subscribe("readings", "archive")
    assert run("outbox.py", path, url) == f"0 left by an earlier run\n0 wait in {path}\n"
    assert run("outbox.py", path, NOBODY).endswith(f"the broker is unreachable\n10 wait in {path}\n")
    # The example prints how many are left while they are being sent.
    assert run("outbox.py", path, url).endswith(f" left by an earlier run\n0 wait in {path}\n")
    with oncemq.connect(url) as client, client.subscribe("readings", "archive") as readings:
        numbers = [message.text.split()[1] for message in readings.messages(timeout_s=0)]
    assert numbers == [str(number) for _ in range(3) for number in range(10)]


def test_an_inbox_writes_each_bill_once(tmp_path: Path, url: str) -> None:
    database = str(tmp_path / "bills.db")
    assert run("inbox.py", database, url) == "3 bills\n"
    assert run("inbox.py", database, url) == "6 bills\n"


def test_a_copy_is_exact(url: str) -> None:
    assert run("copy_exactly_once.py", url) == "one pizza two salads\n"
    assert run("copy_exactly_once.py", url) == "one pizza two salads one pizza two salads\n"


def test_workers_have_one_result_of_each_task(url: str) -> None:
    *tries, results, letters = run("workers.py", url).splitlines()
    assert [line.split(":")[0] for line in tries] == ["try 1", "try 2", "try 3"]
    assert (results, letters) == ("[1, 4, 16]", "['three']")


def test_an_event_loop_consumes_two_topics(url: str) -> None:
    assert run("asyncio_consumer.py", url) == "[50, 50]\n"
