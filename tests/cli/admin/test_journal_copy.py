"""`oncemq journal copy`, as in a shell."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

import oncemq
from tests.cli.shell import Shell


@pytest.fixture
def url(postgres: str) -> str:
    parts = {name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(postgres).items()}
    host = parts.get("host", "").replace("/", "%2F")
    return f"postgresql://{parts.get('user', '')}:sesame@/{parts['dbname']}?host={host}"


def test_a_journal_is_copied_to_postgresql_without_printing_the_password(
    shell: Shell, tmp_path: Path, url: str
) -> None:
    folder = tmp_path / "data"
    with oncemq.connect(f"file:{folder}") as client:
        client.subscribe("orders", "kitchen").close()
        client.put("orders", b"one pizza")
    said = shell.run("journal", "copy", str(folder), url)
    assert said.returncode == 0, said.stderr
    assert b"Copied 1 topic, 1 subscription" in said.stdout
    assert b"never both" in said.stderr
    [copied] = shell.objects("journal", "copy", url, f"file:{tmp_path / 'back'}")
    assert (copied["topics"], copied["subscriptions"], copied["records"]) == (1, 1, 1)
    again = shell.run("journal", "copy", str(folder), url)
    assert again.returncode == 9
    assert b"holds a journal already" in again.stderr
    for text in (said.stdout, said.stderr, again.stderr, json.dumps(copied).encode()):
        assert b"sesame" not in text


@pytest.mark.parametrize("command", [["check"], ["export"], ["cut", "1"], ["copy", "x"]])
def test_a_url_of_another_database_is_refused_without_its_password(shell: Shell, command: list[str]) -> None:
    verb, *rest = command
    said = shell.run("journal", verb, "mysql://me:sesame@db/orders", *rest)
    assert said.returncode == 2
    assert b"sesame" not in said.stdout + said.stderr
