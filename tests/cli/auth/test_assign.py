"""`oncemq auth assign` and `oncemq auth reload` through a client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from oncemq.cli.auth.group import COMMANDS
from oncemq.cli.auth.group import auth as group
from oncemq.protocol.errors import Forbidden, SettingInvalid
from tests.cli.auth.conftest import Auth


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A client that notes what it is asked for."""
    calls: list[Any] = []
    client = SimpleNamespace(
        calls=calls,
        assign=lambda *args, **rest: calls.append((*args, rest)),
        auth_reload=lambda: calls.append("reload"),
    )

    @contextmanager
    def connected(*_: Any, **__: Any) -> Iterator[object]:
        yield client

    for module in ("assign", "reload"):
        monkeypatch.setattr(f"oncemq.cli.auth.{module}.connected", connected)
    return client


@pytest.mark.parametrize(
    ("arguments", "call", "said"),
    [
        (
            ("kitchen", "subscription", "orders", "chef"),
            ("kitchen", "subscription", "chef", {"of": "orders"}),
            "The subscription chef of orders belongs to kitchen now.",
        ),
        (("kitchen", "session", "s"), ("kitchen", "session", "s", {"of": ""}), "The session s belongs to kitchen now."),
        (("", "writer", "w"), ("", "writer", "w", {"of": ""}), "The writer w belongs to nobody now."),
        (
            ("kitchen", "entry", "queue", "producer/1"),
            ("kitchen", "entry", "producer/1", {"of": "queue"}),
            "The entry producer/1 of queue belongs to kitchen now.",
        ),
    ],
)
def test_what_belongs_to_a_user_is_given_to_another(
    arguments: tuple[str, ...], call: tuple[Any, ...], said: str, auth: Auth, client: SimpleNamespace
) -> None:
    assert auth("assign", *arguments).stdout == f"{said}\n"
    assert client.calls == [call]
    owner, kind, name, of = call
    listed = json.loads(auth("assign", *arguments, "--json").stdout)
    assert listed == {"owner": owner, "kind": kind, "name": name, **of}


@pytest.mark.parametrize(
    "arguments", [("k", "subscription", "orders"), ("k", "session", "a", "b"), ("k", "topic", "t"), ("k", "session")]
)
def test_wrong_arguments_are_a_usage_error(arguments: tuple[str, ...], auth: Auth, client: SimpleNamespace) -> None:
    auth("assign", *arguments, code=2)
    assert client.calls == []


def test_a_broker_is_told_through_a_connection(auth: Auth, client: SimpleNamespace) -> None:
    assert auth("reload").stdout == "The broker has read its users and keys again.\n"
    assert client.calls == ["reload"]


def test_the_refusal_of_the_broker_is_the_error(auth: Auth, client: SimpleNamespace) -> None:
    def refuse() -> None:
        raise client.error

    client.auth_reload = refuse
    client.error = SettingInvalid("auth.toml: Unclosed array")
    assert auth("reload", code=2).stderr == "error: auth.toml: Unclosed array\n"
    client.error = Forbidden("user 'kitchen' may not do this without the role admin")
    said = auth("reload", code=10).stderr
    assert "`--data DIR` on the machine of the broker" in said


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    import click

    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert (command.help or "").splitlines()[0] == COMMANDS[name].short_help
