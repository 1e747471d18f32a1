"""Changes to auth.toml, in real files."""

from __future__ import annotations

import multiprocessing
import os
import re
import stat
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from oncemq.auth import edit, private_file
from oncemq.auth.edit import CERTIFICATES, CURVE_KEYS
from oncemq.auth.file import load
from oncemq.auth.users import Quotas
from oncemq.protocol.commands import TOKEN
from oncemq.protocol.errors import MissingExtra, SettingInvalid

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
OTHER_KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
BY_HAND = """# Everybody in the house.

[role.cook]      # in the kitchen
allow = ["consume orders.#"]

# It is in the cellar.
[user.kitchen]   # old
allow = [
    "role cook",       # all orders
    "write   meals",
]
curve = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"

[role.guest]
allow = ["read menu"]

[user.bar]
allow = ["role guest"]

[user.bar.quotas]
connections = 5  # two machines
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "auth.toml"


@pytest.fixture
def by_hand(path: Path) -> Path:
    path.parent.mkdir()
    path.write_text(BY_HAND)
    path.chmod(0o600)
    return path


def comments(text: str) -> set[str]:
    return {*re.findall(r"# .*", text)}


def test_the_first_user_creates_the_file(path: Path) -> None:
    edit.add_user(path, "alice", ["role admin"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load(path).by_name["alice"].rights.is_admin
    assert sorted(each.name for each in path.parent.iterdir()) == [".auth.toml.lock", "auth.toml"]


def test_a_token_logs_in_until_it_is_removed(path: Path) -> None:
    edit.add_user(path, "alice")
    first, second = edit.add_token(path, "alice"), edit.add_token(path, "alice")
    assert first not in path.read_text()
    caller = load(path).login(TOKEN, first)
    assert caller.startswith("alice/")
    edit.remove_token(path, "alice", caller.removeprefix("alice/"))
    users = load(path)
    assert users.find(caller) is None
    assert users.login(TOKEN, second)
    with pytest.raises(SettingInvalid, match=f"the ids are: {users.login(TOKEN, second)[6:]}"):
        edit.remove_token(path, "alice", "nosuchid")


CHANGES: dict[str, tuple[Callable[[Path], Any], Callable[[dict[str, Any]], Any]]] = {
    "add a user": (
        lambda path: edit.add_user(path, "eve", ["read menu", "role cook", "read  menu"]),
        lambda tables: tables["user"].update(eve={"allow": ["read menu", "role cook"]}),
    ),
    "remove a user": (lambda path: edit.remove_user(path, "kitchen"), lambda tables: tables["user"].pop("kitchen")),
    "remove another": (lambda path: edit.remove_user(path, "bar"), lambda tables: tables["user"].pop("bar")),
    "grant": (
        lambda path: edit.grant(path, "kitchen", "read menu"),
        lambda tables: tables["user"]["kitchen"]["allow"].append("read menu"),
    ),
    "grant it twice": (lambda path: edit.grant(path, "kitchen", "write meals"), lambda _: None),
    "revoke": (
        lambda path: edit.revoke(path, "kitchen", "write meals"),
        lambda tables: tables["user"]["kitchen"].update(allow=["role cook"]),
    ),
    "revoke the last one": (
        lambda path: edit.revoke(path, "bar", "role guest"),
        lambda tables: tables["user"]["bar"].pop("allow"),
    ),
    "add a key": (
        lambda path: edit.add_credential(path, "kitchen", CURVE_KEYS, OTHER_KEY),
        lambda tables: tables["user"]["kitchen"].update(curve=[KEY, OTHER_KEY]),
    ),
    "remove a key": (
        lambda path: edit.remove_credential(path, "kitchen", CURVE_KEYS, KEY),
        lambda tables: tables["user"]["kitchen"].pop("curve"),
    ),
    "add a certificate": (
        lambda path: edit.add_credential(path, "bar", CERTIFICATES, "bar.example"),
        lambda tables: tables["user"]["bar"].update(certificates=["bar.example"]),
    ),
    "set a quota": (
        lambda path: edit.set_quotas(path, "bar", {"topics": 3, "connections": 6}),
        lambda tables: tables["user"]["bar"]["quotas"].update(topics=3, connections=6),
    ),
    "lift a quota": (
        lambda path: edit.set_quotas(path, "bar", {"connections": 0}),
        lambda tables: tables["user"]["bar"].pop("quotas"),
    ),
}


#: The comments that go with what is removed.
LOST = {
    "remove a user": {"# old", "# all orders"},
    "remove another": {"# two machines"},
    "lift a quota": {"# two machines"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_changes_only_what_it_says(name: str, by_hand: Path) -> None:
    change, expected = CHANGES[name]
    tables = tomllib.loads(BY_HAND)
    expected(tables)
    change(by_hand)
    assert tomllib.loads(by_hand.read_text()) == tables
    assert comments(BY_HAND) - comments(by_hand.read_text()) == LOST.get(name, set())


@pytest.mark.parametrize(
    "text",
    [
        'user = {alice = {allow = ["read menu"]}}\n',
        '[user]\nalice = {allow = ["read menu"]}\n',
        '[user.alice]\nallow = ["read menu"]',
        '[user.alice]\n"allow" = ["read menu"]\n[user.alice.quotas]\n',
        "[role.x]\n[user.alice]\nallow = ['read menu']\n[role.y]\n[user.bob]\n[role.z]\n",
    ],
)
def test_other_ways_to_write_the_same_can_be_changed(text: str, path: Path) -> None:
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o600)
    edit.add_user(path, "eve", ["role viewer"])
    edit.grant(path, "alice", "write meals")
    token = edit.add_token(path, "alice")
    edit.set_quotas(path, "alice", {"keys": 9})
    edit.remove_user(path, "eve")
    users = load(path)
    assert users.login(TOKEN, token)
    alice = users.by_name["alice"]
    assert [str(rule) for rule in alice.rights.rules] == ["read menu", "write meals"]
    assert alice.quotas == Quotas(keys=9)
    assert "eve" not in users.by_name


def test_the_last_user_can_be_removed(path: Path) -> None:
    edit.add_user(path, "alice")
    edit.remove_user(path, "alice")
    assert load(path).by_name == {}
    edit.add_user(path, "bob")
    assert list(load(path).by_name) == ["bob"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: edit.add_user(path, "bar"), "there is a user 'bar' already"),
        (lambda path: edit.add_user(path, "a b"), "is not a user's name"),
        (lambda path: edit.add_user(path, "eve", ["eat cake"]), "'eat cake' is not a rule"),
        (lambda path: edit.add_user(path, "eve", ["role king"]), "there is no role 'king'"),
        (lambda path: edit.remove_user(path, "eve"), "the users are: kitchen, bar"),
        (lambda path: edit.add_token(path, "eve"), "there is no user 'eve'"),
        (lambda path: edit.remove_token(path, "bar", "x"), "the ids are: none"),
        (lambda path: edit.grant(path, "bar", "role king"), "the change is not valid: user 'bar': there is no role"),
        (lambda path: edit.revoke(path, "kitchen", "read menu"), "there are: role cook, write   meals"),
        (lambda path: edit.add_credential(path, "bar", CURVE_KEYS, "short"), "40 characters"),
        (lambda path: edit.add_credential(path, "bar", CURVE_KEYS, KEY), "have the same entry in `curve`"),
        (lambda path: edit.remove_credential(path, "bar", CERTIFICATES, "x"), "there are: none"),
        (lambda path: edit.set_quotas(path, "bar", {"connections": -1}), "is negative"),
        (lambda path: edit.set_quotas(path, "bar", {"tables": 1}), "unknown field `tables`"),
    ],
)
def test_an_invalid_change_is_refused_and_the_file_stays(
    change: Callable[[Path], Any], said: str, by_hand: Path
) -> None:
    with pytest.raises(SettingInvalid, match=said):
        change(by_hand)
    assert by_hand.read_text() == BY_HAND


def test_a_broken_file_is_not_changed(by_hand: Path) -> None:
    by_hand.write_text(BY_HAND + "[user")
    with pytest.raises(SettingInvalid, match=r"auth\.toml"):
        edit.add_user(by_hand, "eve")
    assert by_hand.read_text() == BY_HAND + "[user"


def test_a_file_that_others_can_read_is_not_changed(by_hand: Path) -> None:
    by_hand.chmod(0o640)
    with pytest.raises(SettingInvalid, match="chmod 600"):
        edit.add_user(by_hand, "eve")


@pytest.mark.parametrize("text", [BY_HAND.replace("write   meals", "write #"), "[user"])
def test_a_text_that_says_something_else_is_not_written(
    text: str, by_hand: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tomlkit, "dumps", lambda _: text)
    with pytest.raises(SettingInvalid, match="change it with an editor"):
        edit.grant(by_hand, "bar", "read menu")
    assert by_hand.read_text() == BY_HAND


def test_only_a_new_user_creates_the_file(path: Path) -> None:
    with pytest.raises(SettingInvalid, match="does not exist; `oncemq auth user add NAME` creates it"):
        edit.add_token(path, "alice")
    assert not path.parent.exists()


def test_a_failed_write_leaves_the_former_file(by_hand: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        edit.add_user(by_hand, "eve")
    assert by_hand.read_text() == BY_HAND
    assert sorted(each.name for each in by_hand.parent.iterdir()) == [".auth.toml.lock", "auth.toml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_root_changes_still_belongs_to_the_owner_of_the_folder(path: Path) -> None:
    path.parent.mkdir()
    os.chown(path.parent, 12345, 12346)
    edit.add_user(path, "alice")
    for file in path.parent.iterdir():
        assert (file.stat().st_uid, file.stat().st_gid) == (12345, 12346), file
    os.chown(path, 12347, 12348)
    edit.add_user(path, "bob")
    assert (path.stat().st_uid, path.stat().st_gid) == (12347, 12348)


def test_a_link_to_the_file_stays_a_link(by_hand: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(by_hand)
    edit.add_user(link, "eve")
    assert link.is_symlink()
    assert "eve" in load(by_hand).by_name


def _add_users(path: Path, prefix: str) -> None:
    for number in range(20):
        edit.add_user(path, f"{prefix}{number}")


def test_two_administrators_lose_nothing(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_add_users, args=(path, prefix)) for prefix in "ab"]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert {*load(path).by_name} == {f"{prefix}{number}" for prefix in "ab" for number in range(20)}


def test_a_lock_that_is_held_for_long_is_an_error(by_hand: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_file, "_LOCK_WAIT_S", 0.0)
    with private_file.changes_locked(by_hand), pytest.raises(SettingInvalid, match="another command is changing"):
        edit.add_user(by_hand, "eve")


def test_tomlkit_is_an_extra(by_hand: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    with pytest.raises(MissingExtra, match=r"pip install 'oncemq\[secure\]'"):
        edit.add_user(by_hand, "eve")
