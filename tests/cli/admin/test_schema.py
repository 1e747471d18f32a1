"""`oncemq schema` against a real broker."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from oncemq.cli.admin import schema
from oncemq.protocol import errors
from oncemq.protocol.schema.definitions.parse import parse_definition
from tests.cli.shell import Shell
from tests.protocol.schema.test_definitions import AVRO, PROTO

FIELDS = "id: int64 not null, price: decimal(10,2)"


def _fails(shell: Shell, code: int, *arguments: str) -> str:
    """Return the error of a command that ends with this code."""
    ended = shell.run(*arguments)
    assert ended.returncode == code, (ended.stdout, ended.stderr)
    return ended.stderr.decode()


def test_a_topic_gets_a_schema_and_values_are_checked(shell: Shell) -> None:
    topic = shell.topic
    assert _fails(shell, 5, "schema", "put", topic, FIELDS)
    text = shell.ok("schema", "put", topic, FIELDS, "--create", "--compatibility", "full").decode()
    assert text == f"Version 1 of {topic}: compatibility full, checked by client.\n"
    assert b"already, as version 1" in shell.ok("schema", "put", topic, FIELDS)
    shell.ok("sub", topic, "eve")
    shell.ok("put", topic, '{"id": 1, "price": "9.50"}')
    error = _fails(shell, 4, "put", topic, '{"id": "x"}')
    assert "id: expected int, got str; the schema says int64 not null" in error
    assert json.loads(shell.ok("get", topic, "eve")) == {"id": 1, "price": "9.50"}


def test_settings_change_without_a_definition(shell: Shell) -> None:
    topic = shell.topic
    shell.ok("schema", "put", topic, FIELDS, "--create")
    text = shell.ok("schema", "put", topic, "--check", "broker").decode()
    assert text == f"The schema of {topic} has 1 version: compatibility backward, checked by broker.\n"
    assert _fails(shell, 2, "schema", "put", topic)
    assert _fails(shell, 2, "schema", "put", topic, "id: int46")


def test_a_schema_is_shown_in_other_languages(shell: Shell) -> None:
    topic = shell.topic
    shell.ok("schema", "put", topic, FIELDS, "--create")
    assert shell.ok("schema", "get", topic).decode() == FIELDS + "\n"
    assert shell.ok("schema", "get", topic, "--as", "fields").decode() == FIELDS.replace(", ", ",\n") + "\n"
    assert json.loads(shell.ok("schema", "get", topic, "--as", "avro"))["type"] == "record"
    assert json.loads(shell.ok("schema", "get", topic, "--as", "json-schema"))["required"] == ["id"]
    assert "price: decimal128(10, 2)" in shell.ok("schema", "get", topic, "--as", "arrow").decode()
    [shown] = shell.objects("schema", "get", topic)
    assert (shown["version"], shown["fields"][0]) == (1, {"name": "id", "type": "int64", "nullable": False})
    assert _fails(shell, 5, "schema", "get", topic, "--version", "2")
    assert _fails(shell, 5, "schema", "get", "nowhere")


def test_an_arrow_schema_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "oncemq.protocol.schema.arrow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(errors.MissingExtra, match=r"pip install 'oncemq\[arrow\]'"):
        schema._as(parse_definition(FIELDS), "arrow")


def test_schemas_are_listed(shell: Shell) -> None:
    topic = shell.topic
    shell.ok("schema", "put", topic, FIELDS, "--create")
    shell.ok("schema", "put", topic, FIELDS + ", tags: list<string>")
    assert [each["version"] for each in shell.objects("schema", "ls", topic)] == [1, 2]
    assert [each["version"] for each in shell.objects("schema", "ls") if each["topic"] == topic] == [2]
    heads, *rows = shell.ok("schema", "ls").decode().splitlines()
    assert heads.split()[:2] == ["TOPIC", "VERSION"]
    assert any(row.startswith(topic) and FIELDS in row for row in rows)
    [row] = [row for row in shell.ok("topics").decode().splitlines() if row.startswith(topic)]
    assert "version 2" in row


def test_what_would_break_is_said(shell: Shell) -> None:
    topic = shell.topic
    shell.ok("schema", "put", topic, FIELDS, "--create")
    assert shell.ok("schema", "check", topic, FIELDS + ", name: string").decode() == "Nothing would break.\n"
    text = shell.run("schema", "check", topic, "id: string")
    assert text.returncode == 4
    assert b"id: a reader expects string, and values are int64" in text.stdout


def test_stored_messages_are_checked(shell: Shell) -> None:
    topic = shell.topic
    shell.ok("topics", "create", topic, "--retain", "1h")
    shell.ok("put", topic, "no JSON")
    shell.ok("put", topic, '{"id": 1}')
    found = shell.run("schema", "check", topic, FIELDS, "--values")
    assert found.returncode == 4
    assert found.stdout.startswith(b"offset 0: the value is not JSON")
    assert b"offset 1" not in found.stdout


def test_stored_messages_are_checked_against_their_versions(shell: Shell) -> None:
    topic = shell.topic
    shell.ok("topics", "create", topic, "--retain", "1h")
    shell.ok("put", topic, "no JSON")
    shell.ok("schema", "put", topic, "id: int64 not null, name: string")
    shell.ok("put", topic, '{"id": 1, "name": "x"}')
    # Under the rule "backward", a field may be removed: readers ignore it in earlier values.
    shell.ok("schema", "put", topic, "id: int64 not null")
    found = shell.run("schema", "check", topic, "--values")
    assert found.returncode == 4
    assert found.stdout.startswith(b"offset 0: the value is not JSON")
    assert b"offset 1" not in found.stdout


def test_definitions_are_read_from_files(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "shop.proto").write_text(PROTO)
    avro, proto = f"{shell.topic}-avro", f"{shell.topic}-proto"
    shell.ok("schema", "put", avro, "--file", str(tmp_path / "order.avsc"), "--create", "--check", "broker")
    shell.ok("schema", "put", proto, "--file", str(tmp_path / "shop.proto"), "--message", "Order", "--create")
    assert [each["encoding"] for topic in (avro, proto) for each in shell.objects("schema", "get", topic)] == [
        "avro",
        "protobuf",
    ]
