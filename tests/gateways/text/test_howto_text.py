"""The guide to the text gateway shows what a reader sees, and its examples work."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncemq.protocol import errors
from tests.gateways.text.rig import GatewayThread

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/howto/text.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples/text"


@pytest.fixture
def gateway() -> Iterator[GatewayThread]:
    thread = GatewayThread()
    yield thread
    thread.stop()


def blocks(kind: str) -> str:
    return "".join(re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE))


def exchanges() -> list[tuple[str, str]]:
    """Return (request, reply) of all blocks."""
    found = re.findall(r"((?:^> .*\n)+)((?:^< .*\n)+)", blocks("text"), re.MULTILINE)
    return [("\n".join(line[2:] for line in one.splitlines()), _unmarked(other)) for one, other in found]


def _unmarked(lines: str) -> str:
    return "\n".join(line[2:] for line in lines.splitlines())


class Shell:
    """Runs examples as a reader would, in an empty folder, but within this process."""

    def __init__(self, gateway: GatewayThread, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._captured = captured
        patch.setenv("TEXT_URL", gateway.url)
        patch.syspath_prepend(str(EXAMPLES))

    def run(self, command: str) -> tuple[str, str, object]:
        """Return its output, its errors and its exit code."""
        python, program, *arguments = shlex.split(command)
        assert python == "python"
        self._patch.setattr(sys, "argv", [program, *arguments])
        with pytest.raises((SystemExit, Crash)) as ended:
            runpy.run_path(str(ROOT / program), run_name="__main__")
            sys.exit(0)
        said = self._captured.readouterr()
        return said.out, said.err, ended.value.code if isinstance(ended.value, SystemExit) else None


class Crash(BaseException):
    """The program ends here."""


@pytest.fixture
def shell(
    gateway: GatewayThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(gateway, monkeypatch, capsys)


def test_every_request_is_answered_as_shown(gateway: GatewayThread) -> None:
    client = gateway.client()
    assert len(exchanges()) > 10
    for request, reply in exchanges():
        assert client.ask(request) == reply


def test_the_example_does_what_the_page_shows(shell: Shell, tmp_path: Path) -> None:
    parts = re.split(r"^\$ (.*)\n", blocks("console"), flags=re.MULTILINE)[1:]
    for command, expected in zip(parts[::2], parts[1::2], strict=True):
        out, err, code = shell.run(command)
        assert out + err == expected, command
        assert code == (3 if err else 0)
    assert list((tmp_path / "pending-requests").iterdir()) == []


def test_every_code_is_one_of_the_table() -> None:
    codes = set(re.findall(r"ERROR ([A-Z_]+)", TEXT)) | set(re.findall(r"`([A-Z]+_[A-Z_]+)`", TEXT))
    codes -= {"ALREADY_SUBSCRIBED"}
    assert len(codes) > 10
    assert codes <= set(errors.BY_CODE)


@pytest.mark.parametrize("has_arrived", [False, True])
def test_a_client_that_crashed_before_its_reply_finishes_the_request_once(
    gateway: GatewayThread, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_arrived: bool
) -> None:
    import lazy_pirate  # type: ignore[import-not-found]

    client, folder = gateway.client(), tmp_path / "pending-requests"

    def crash(_url: str, request: bytes) -> None:
        assert [path.read_bytes() for path in folder.iterdir()] == [request]
        if has_arrived:
            client.ask(request)
        raise Crash

    client.ask("sub orders alice")
    with monkeypatch.context() as patch:
        patch.setattr(lazy_pirate, "ask", crash)
        shell.run("python examples/text/client.py put bob orders pizza")
    assert shell.run("python examples/text/client.py put bob orders salad")[0] == "STORED 1\nSTORED 1\n"
    for expected in ("pizza", "salad"):
        with monkeypatch.context() as patch:
            patch.setattr(lazy_pirate, "ask", crash)
            shell.run("python examples/text/client.py get alice orders")
        assert shell.run("python examples/text/client.py get alice orders")[0] == f"{expected}\n"
    assert client.code("get orders alice") == "NOTHING_NEW"
    assert list(folder.iterdir()) == []


def test_one_line_from_the_command_line(shell: Shell) -> None:
    assert shell.run("python examples/text/one_line.py sub orders alice")[0] == "SUBSCRIBED\n"
    assert shell.run("python examples/text/one_line.py put tea black")[2] == "TOPIC_UNKNOWN: there is no topic 'tea'"
    one_line, names = "python examples/text/one_line.py", """'Cooking "Recipes" \\' "'alice' at home" """
    assert shell.run(f"{one_line} sub {names}earliest")[0] == "SUBSCRIBED\n"
    assert shell.run(f"""{one_line} put 'Cooking "Recipes" \\' '"Soup":' water""")[0] == "STORED 1\n"
    assert shell.run(f"{one_line} get {names}")[0] == '"Soup": water\n'


def test_a_server_that_is_away_seems_to_be_offline(shell: Shell, tmp_path: Path) -> None:
    import lazy_pirate

    with pytest.raises(lazy_pirate.ServerOffline, match="seems to be offline"):
        lazy_pirate.ask("tcp://127.0.0.1:9", b"get orders alice", timeout_s=0.02)
    assert set(lazy_pirate.UNDECIDED) <= set(errors.BY_CODE)
    assert [code for code in lazy_pirate.UNDECIDED if code not in TEXT] == []
