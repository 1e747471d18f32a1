"""Every command has a help text, and the reference pages are up to date."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import oncemq
from oncemq.cli.main import COMMANDS, cli
from oncemq.cli.support.command import EXIT_CODES, Documented
from oncemq.cli.tools import reference
from oncemq.protocol.errors import BY_CODE

ROOT = Path(__file__).parents[3]
CONTEXTS = list(reference.command_contexts(click.Context(cli, info_name="oncemq")))
PATHS = [context.command_path for context in CONTEXTS]


@pytest.mark.parametrize("name", list(reference.PAGES))
def test_the_reference_page_is_up_to_date(name: str) -> None:
    written = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
    assert written == reference.PAGES[name](), "run: python -m oncemq.cli.tools.reference docs/reference"


@pytest.mark.parametrize("context", CONTEXTS, ids=PATHS)
def test_every_command_has_help_and_examples(context: click.Context) -> None:
    command = context.command
    assert isinstance(command, Documented)
    assert command.help
    assert command.examples
    assert any(line.startswith(context.command_path) or context.command_path in line for line in command.examples)
    assert "Exit codes:" in command.get_help(context)


@pytest.mark.parametrize("context", CONTEXTS, ids=PATHS)
def test_every_option_has_help(context: click.Context) -> None:
    options = [param for param in context.command.params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert (command.help or "").splitlines()[0] == COMMANDS[name].short_help


def test_the_examples_are_commands_that_exist() -> None:
    for context in CONTEXTS:
        assert isinstance(context.command, Documented)
        for line in context.command.examples:
            for words in re.findall(r"(?<![/\w])oncemq ([a-z]+)", line):
                assert words in COMMANDS, line


def test_every_error_is_a_name_of_the_package() -> None:
    assert {kind.__name__: getattr(oncemq, kind.__name__) for kind in BY_CODE.values()} == {
        kind.__name__: kind for kind in BY_CODE.values()
    }
    assert {kind.__name__ for kind in BY_CODE.values()} <= set(oncemq.__all__)


def test_every_error_has_an_exit_code_that_is_documented() -> None:
    assert {kind.exit_code for kind in BY_CODE.values()} <= set(EXIT_CODES)


def test_the_guide_shows_every_command() -> None:
    guide = (ROOT / "docs/howto/command-line.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"oncemq {name}" not in guide] == []
