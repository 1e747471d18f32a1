"""`oncemq context`, and commands that use contexts."""

from __future__ import annotations

import json
import os
import pty
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from oncemq.net import curve
from tests.cli.shell import Shell
from tests.forking import Forked

TOKEN = "omq_k3v9x2aa_" + "s" * 43


@pytest.fixture
def path(shell: Shell, tmp_path: Path) -> Path:
    """The contexts file of the shell, in which no variable names an address."""
    path = tmp_path / "config" / "contexts.toml"
    shell.environment |= {"ONCEMQ_CONTEXTS": str(path), "BROKER": shell.environment.pop("ONCEMQ_URL")}
    return path


def content(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def refusal(shell: Shell, *arguments: str, code: int = 2, stdin: bytes = b"") -> str:
    done = shell.run(*arguments, stdin=stdin)
    assert done.returncode == code, done.stdout + done.stderr
    text = done.stderr.decode()
    assert "sss" not in text
    return text


def test_contexts_are_added_listed_shown_chosen_and_deleted(shell: Shell, path: Path) -> None:
    assert b"There are no contexts" in shell.run("context").stderr
    shell.ok("context", "add", "local", "--url", "oncemq://127.0.0.1:5554")
    arguments = ("--url", "oncemq://broker.example:5554", "--tls", "true", "--token-stdin", "--use")
    shell.ok("context", "add", "prod", *arguments, stdin=TOKEN.encode() + b"\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert content(path) == {
        "current": "prod",
        "context": {
            "local": {"url": "oncemq://127.0.0.1:5554"},
            "prod": {"url": "oncemq://broker.example:5554", "token": TOKEN, "tls": True},
        },
    }
    lines = shell.ok("context", "ls").decode().splitlines()
    assert [line.split() for line in lines] == [
        ["CONTEXT", "URL", "LOGIN", "ENCRYPTION"],
        ["local", "oncemq://127.0.0.1:5554", "none", "none"],
        ["*", "prod", "oncemq://broker.example:5554", "token", "TLS"],
    ]
    listed = shell.objects("context", "ls")
    assert [(each["name"], each["current"]) for each in listed] == [("local", False), ("prod", True)]
    assert listed[1]["token"] == "(hidden)"
    shown = shell.ok("context", "show", "prod") + shell.ok("context", "show", "prod", "--json")
    assert b"(hidden)" in shown
    assert b"sss" not in shown
    shell.ok("context", "use", "local")
    assert content(path)["current"] == "local"
    shell.ok("context", "use", "--none")
    assert "current" not in content(path)
    shell.ok("context", "use", "prod")
    assert b"There is no current context" in shell.ok("context", "rm", "prod")
    assert content(path) == {"context": {"local": {"url": "oncemq://127.0.0.1:5554"}}}


def test_a_context_is_replaced_only_on_request(shell: Shell, path: Path) -> None:
    add = ("context", "add", "a", "--url")
    shell.ok(*add, "oncemq://127.0.0.1:1")
    assert "--replace" in refusal(shell, *add, "oncemq://127.0.0.1:2")
    shell.ok(*add, "oncemq://127.0.0.1:2", "--replace")
    assert content(path)["context"]["a"]["url"] == "oncemq://127.0.0.1:2"


def test_files_are_stored_with_absolute_paths(
    shell: Shell, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.token", "ca.pem", "me.pem", "me-key.pem"):
        Path(name).write_text("x")
    files = ("--token-file", "a.token", "--tls", "ca.pem", "--tls-certificate", "me.pem", "--tls-key", "me-key.pem")
    shell.ok("context", "add", "a", "--url", "oncemq://broker:1", *files, "--tls-server-name", "b")
    assert content(path)["context"]["a"] == {
        "url": "oncemq://broker:1",
        "token_file": str(tmp_path / "a.token"),
        "tls": str(tmp_path / "ca.pem"),
        "tls_certificate": str(tmp_path / "me.pem"),
        "tls_key": str(tmp_path / "me-key.pem"),
        "tls_server_name": "b",
    }
    error = refusal(shell, "context", "add", "b", "--url", "memory:", "--tls", "none.pem")
    assert "There is no file 'none.pem'" in error


def test_a_secret_key_is_read_from_a_file(shell: Shell, path: Path, tmp_path: Path) -> None:
    pair, secret = curve.generate(), tmp_path / "curve.secret"
    secret.write_text(pair.secret + "\n")
    keys = ("--curve-server", "a" * 40, "--curve-secret-file", str(secret))
    shell.ok("context", "add", "z", "--url", "tcp://broker:5555", *keys)
    stored = content(path)["context"]["z"]
    assert (stored["curve_public"], stored["curve_secret"]) == (pair.public, pair.secret)
    assert b"CURVE key" in shell.ok("context", "ls")
    assert pair.secret.encode() not in shell.ok("context", "show", "z")
    secret.write_text("sss")
    assert "contains no key" in refusal(shell, "context", "add", "y", "--url", "tcp://broker:5555", *keys)


@pytest.mark.parametrize("arguments", [["--token", TOKEN], [f"--token={TOKEN}"]])
def test_a_token_is_never_an_argument(shell: Shell, path: Path, arguments: list[str]) -> None:
    error = refusal(shell, "context", "add", "a", "--url", "oncemq://127.0.0.1:1", *arguments)
    assert "other users" in error
    assert "--token-stdin" in error
    assert not path.exists()
    assert "--token-file" in refusal(shell, "topics", *arguments)
    assert "--token-file" in refusal(shell, "put", "orders", "pizza", *arguments)


def test_the_token_is_asked_for_without_echo(shell: Shell, path: Path) -> None:
    controller, terminal = pty.openpty()
    arguments = ("context", "add", "a", "--url", "oncemq://127.0.0.1:1", "--token")
    process = Forked(arguments, shell.environment, (terminal, terminal, terminal))
    os.close(terminal)
    seen = b""
    while b"Token: " not in seen:
        seen += os.read(controller, 1000)
    os.write(controller, TOKEN.encode() + b"\n")
    while b"Added a" not in seen:
        seen += os.read(controller, 1000)
    process.wait(60)
    os.close(controller)
    assert b"sss" not in seen
    assert content(path)["context"]["a"]["token"] == TOKEN
    assert "--token-stdin" in refusal(shell, "context", "add", "b", "--url", "memory:", "--token")


@pytest.mark.parametrize(
    ("arguments", "stdin", "expected"),
    [
        (["a b", "--url", "memory:"], b"", "not the name of a context"),
        (["a", "--url", "nothing"], b"", "is not an address"),
        (["a", "--url", "oncemq://broker", "--token-stdin"], TOKEN.encode(), "not encrypted"),
        (["a", "--url", "memory:", "--token-stdin"], b"", "not a token"),
        (["a", "--url", "memory:", "--token-stdin"], b"sss sss", "not a token"),
        (["a", "--url", "memory:", "--token-stdin", "--token"], b"", "Give one of"),
        (["a", "--url", "tcp://broker:1", "--curve-server", "k" * 40], b"", "belong together"),
    ],
)
def test_what_can_not_work_is_not_stored(
    shell: Shell, path: Path, arguments: list[str], stdin: bytes, expected: str
) -> None:
    assert expected in refusal(shell, "context", "add", *arguments, stdin=stdin)
    assert not path.exists()


def test_an_unknown_context_is_refused(shell: Shell, path: Path) -> None:
    shell.ok("context", "add", "prod", "--url", "oncemq://127.0.0.1:1")
    for arguments in (["context", "use", "prd"], ["context", "rm", "prd"], ["context", "show", "prd"]):
        assert "did you mean prod" in refusal(shell, *arguments)
    assert "did you mean prod" in refusal(shell, "topics", "--context", "prd")
    error = json.loads(refusal(shell, "topics", "--context", "prd", "--json"))
    assert error["code"] == "SETTING_INVALID"
    assert content(path)["context"].keys() == {"prod"}


def test_commands_use_the_context_that_is_named_or_current(shell: Shell, path: Path) -> None:
    broker = shell.environment["BROKER"]
    shell.ok("context", "add", "here", "--url", broker)
    shell.ok("context", "add", "away", "--url", "oncemq://127.0.0.1:1", "--use")
    assert path.exists()
    away = ("--tries", "1", "--timeout", "100ms")
    refusal(shell, "topics", *away, code=6)
    shell.ok("put", shell.topic, "one pizza", "--create", "--context", "here")
    shell.environment["ONCEMQ_CONTEXT"] = "here"
    assert shell.topic in shell.ok("topics").decode()
    refusal(shell, "topics", "--context", "away", *away, code=6)
    del shell.environment["ONCEMQ_CONTEXT"]
    shell.ok("context", "use", "here")
    assert shell.topic in shell.ok("topics").decode()
    refusal(shell, "topics", "--url", "oncemq://127.0.0.1:1", *away, code=6)
    shell.environment["ONCEMQ_URL"] = broker
    assert b"ONCEMQ_URL is set" in shell.run("context", "use", "away").stderr


def test_names_of_contexts_are_completed(shell: Shell, path: Path) -> None:
    shell.ok("context", "add", "prod", "--url", "oncemq://127.0.0.1:1")
    assert path.exists()
    shell.environment |= {"_ONCEMQ_COMPLETE": "bash_complete", "COMP_WORDS": "oncemq context use p", "COMP_CWORD": "3"}
    assert b"prod" in shell.ok()
