"""The contexts file: what it may contain, who may read it, and how it is changed."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from oncemq.config import contexts
from oncemq.config.contexts import Contexts
from oncemq.protocol.errors import SettingInvalid

TOKEN = "omq_k3v9x2aa_" + "s" * 43


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "contexts.toml"


def test_the_path_is_that_of_the_user_unless_a_variable_names_another_one() -> None:
    assert contexts.path_of({"HOME": "/x"}) == Path(os.path.expanduser("~/.config/oncemq/contexts.toml"))
    assert contexts.path_of({"XDG_CONFIG_HOME": "/etc/x"}) == Path("/etc/x/oncemq/contexts.toml")
    both = {"XDG_CONFIG_HOME": "/etc/x", "ONCEMQ_CONTEXTS": "/run/contexts"}
    assert contexts.path_of(both) == Path("/run/contexts")


def test_what_is_saved_is_loaded(path: Path) -> None:
    entries: dict[str, dict[str, Any]] = {
        "local": {"url": "oncemq://127.0.0.1:5554"},
        "prod.eu@me": {
            "url": "oncemq://a:1,oncemq://b:2",
            "token": TOKEN,
            "tls": True,
            "tls_server_name": 'quote " back \\ slash \x7f é',
        },
        "other": {"url": "tcp://a:1", "tls": "/ca.pem", "curve_server": "s" * 40},
    }
    saved = contexts.change(path, lambda _: Contexts("prod.eu@me", entries))
    assert contexts.load(path) == saved == Contexts("prod.eu@me", entries)


def test_a_file_that_does_not_exist_has_no_contexts(path: Path) -> None:
    assert contexts.load(path) == Contexts()
    assert contexts.load(path / "below a file") == Contexts()
    assert contexts.current({"ONCEMQ_CONTEXTS": str(path)}) == ""


def test_the_file_and_its_folder_are_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "contexts.toml"
    contexts.change(path, lambda _: Contexts("", {"a": {"url": "memory:"}}))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_change_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    contexts.change(path, lambda _: Contexts("a", {"a": {"url": "memory:"}}))
    before = path.read_bytes()
    with pytest.raises(TypeError):
        contexts.change(path, lambda _: Contexts("b", {"b": {"url": object()}}))
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["contexts.toml"]


def test_a_link_stays_a_link(tmp_path: Path, path: Path) -> None:
    target = tmp_path / "dotfiles" / "contexts.toml"
    target.parent.mkdir()
    path.symlink_to(target)
    contexts.change(path, lambda _: Contexts("", {"a": {"url": "memory:"}}))
    assert path.is_symlink()
    assert "a" in contexts.load(target).entries


def test_changes_at_the_same_time_are_all_made(path: Path) -> None:
    def add(number: int) -> None:
        contexts.change(path, lambda found: Contexts("", {**found.entries, f"c{number}": {"url": "memory:"}}))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(contexts.load(path).entries) == 16


@pytest.mark.parametrize("secret", [f'token = "{TOKEN}"', f'curve_secret = "{"s" * 40}"'])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o602])
def test_a_file_with_a_secret_that_others_can_read_is_refused(path: Path, secret: str, mode: int) -> None:
    write(path, f'[context.a]\nurl = "memory:"\n{secret}\n', mode)
    with pytest.raises(SettingInvalid) as caught:
        contexts.load(path)
    assert f"chmod 600 {path}" in caught.value.text
    assert "sss" not in caught.value.text
    path.chmod(0o600)
    assert contexts.load(path).entries


def test_a_file_without_secrets_may_be_readable(path: Path) -> None:
    write(path, '[context.a]\nurl = "memory:"\ntoken_file = "token"\n', 0o644)
    assert contexts.load(path).entries


def test_a_file_of_root_may_be_readable_by_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes mounts secrets in this way."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def status(mode: int, owner: int) -> os.stat_result:
        return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, 2000, 0, 0, 0, 0))

    contexts.check_private(Path("x"), status(0o440, 0))
    for mode, owner in ((0o444, 0), (0o460, 0), (0o440, 1000)):
        with pytest.raises(SettingInvalid, match="chmod 600 x"):
            contexts.check_private(Path("x"), status(mode, owner))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("currant = 'a'\n", ["currant is not a setting", "current"]),
        ("[context.a]\nurl = 'memory:'\ntokn = 'sss'\n", ["context.a.tokn is not a setting", "token"]),
        ("[context.a]\nurl = 'memory:'\nqqq = 'sss'\n", ["context.a.qqq", "url, token, token_file"]),
        ("[context.a]\nurl = 'memory:'\ntoken = 77777\n", ["context.a.token must be a text"]),
        ("[context.a]\nurl = 'memory:'\ntls = 77777\n", ["context.a.tls must be true, false or a text"]),
        ("[context.a]\nurl = true\n", ["context.a.url must be a text"]),
        ("[context.a]\ntls = true\n", ["context.a has no url"]),
        ("[context]\na = 'memory:'\n", ["context.a must be a table"]),
        ("[context.'a b']\nurl = 'memory:'\n", ["'a b' is not the name of a context"]),
        ("current = 1\n", ["`current` must be the name"]),
        ("context = 1\n", ["[context.NAME] a table"]),
        ("[context\n", ["is not valid TOML"]),
    ],
)
def test_an_invalid_file_is_reported_without_its_values(path: Path, text: str, expected: list[str]) -> None:
    write(path, text)
    with pytest.raises(SettingInvalid) as caught:
        contexts.load(path)
    for part in [str(path) if "is not the name" not in expected[0] else "", *expected]:
        assert part in caught.value.text
    assert "sss" not in caught.value.text
    assert "77777" not in caught.value.text


def test_an_unknown_context_is_reported_with_a_similar_one(path: Path) -> None:
    write(path, '[context.production]\nurl = "memory:"\n')
    variables = {"ONCEMQ_CONTEXTS": str(path)}
    with pytest.raises(SettingInvalid, match=r"no context 'produktion' in .*did you mean production"):
        contexts.find("produktion", variables)
    with pytest.raises(SettingInvalid, match="it has production") as caught:
        contexts.find("x", variables)
    assert "oncemq context add x" in caught.value.advice


def test_paths_are_relative_to_the_file(path: Path) -> None:
    write(
        path,
        '[context.a]\nurl = "memory:"\ntoken_file = "a.token"\ntls = "ca.pem"\ntls_certificate = "/abs.pem"\n'
        'tls_key = "~/key.pem"\n',
    )
    found = contexts.find("a", {"ONCEMQ_CONTEXTS": str(path)})
    assert found["token_file"] == str(path.parent / "a.token")
    assert found["tls"] == str(path.parent / "ca.pem")
    assert found["tls_certificate"] == "/abs.pem"
    assert found["tls_key"] == os.path.expanduser("~/key.pem")


def test_the_content_is_described_without_secrets() -> None:
    assert TOKEN not in repr(Contexts("a", {"a": {"url": "memory:", "token": TOKEN}}))
