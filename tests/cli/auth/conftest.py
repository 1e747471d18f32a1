"""`oncemq auth` in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oncemq.auth.file import load
from oncemq.auth.users import Users
from oncemq.cli.main import cli

Auth = Callable[..., Result]
FILE = Path("oncemq-data/auth.toml")


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def auth() -> Auth:
    """Run `oncemq auth …`. The command must end with the exit code `code`."""

    def run(*arguments: str, code: int = 0, input: str | None = None) -> Result:
        result = CliRunner().invoke(cli, ["auth", *arguments], input=input)
        assert result.exit_code == code, result.output
        return result

    return run


def users() -> Users:
    return load(FILE)
