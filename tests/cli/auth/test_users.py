"""Users, tokens, rules and quotas on the command line, with real files."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest

from oncemq.auth.tokens import token_id
from oncemq.auth.users import Quotas
from oncemq.cli.auth import token as token_module
from oncemq.protocol.commands import TOKEN
from tests.cli.auth.conftest import FILE, Auth, users


@pytest.fixture
def kitchen(auth: Auth) -> Auth:
    auth("user", "add", "kitchen", "--allow", "consume orders.*", "--allow", "write meals", "--role", "viewer")
    return auth


def test_the_first_user_makes_the_file(auth: Auth) -> None:
    done = auth("user", "add", "alice", "--role", "admin")
    assert done.stdout == f"Added alice to {FILE}. `oncemq auth token alice` creates a token.\n"
    assert done.stderr == "No broker runs on ./oncemq-data; the next one uses it.\n"
    assert stat.S_IMODE(FILE.stat().st_mode) == 0o600
    assert users().by_name["alice"].rights.is_admin


@pytest.mark.parametrize(
    ("options", "file"),
    [
        (["--data", "d"], "d/auth.toml"),
        (["--auth", "etc/users.toml"], "etc/users.toml"),
        (["--config", "other.toml"], "of-config/auth.toml"),
    ],
)
def test_the_file_is_where_serve_looks_for_it(options: list[str], file: str, auth: Auth) -> None:
    Path("other.toml").write_text('[serve]\ndata = "of-config"\nlisten = "oncemq://0.0.0.0:5554"\n')
    assert file in auth("user", "add", "alice", *options).stdout
    assert Path(file).exists()
    assert json.loads(auth("user", "ls", "--json", *options).stdout)["user"] == "alice"


def test_with_a_journal_in_a_database_the_file_is_in_the_current_folder(
    auth: Auth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEMQ_JOURNAL", "postgresql://db/queue")
    assert auth("user", "add", "alice").stderr == "Running brokers use it after `oncemq auth reload`.\n"
    assert Path("auth.toml").exists()


def test_users_are_listed_without_secrets(kitchen: Auth) -> None:
    kitchen("user", "add", "bar")
    kitchen("quota", "bar", "topics=3", "stored_bytes=1MiB")
    token = kitchen("token", "kitchen").stdout.strip()
    heads, first, second = kitchen("user").stdout.splitlines()
    assert heads.split() == ["USER", "TOKENS", "ROLES", "RULES", "QUOTAS"]
    assert re.split("  +", first) == ["kitchen", "1", "viewer", "consume orders.*, write meals", "-"]
    assert second.split()[0] == "bar"
    assert "stored_bytes=1048576, topics=3" in second
    text = kitchen("user", "ls", "--json").stdout
    listed = json.loads(text.splitlines()[0])
    assert listed == {
        "user": "kitchen",
        "tokens": [token_id(token)],
        "curve": [],
        "certificates": [],
        "roles": ["viewer"],
        "rules": [
            {"verb": "consume", "topic": "orders.*", "role": ""},
            {"verb": "write", "topic": "meals", "role": ""},
        ],
        "quotas": {},
    }
    assert token not in text
    assert users().by_name["kitchen"].tokens[token_id(token)].sha256 not in text


def test_removing_a_user_asks(kitchen: Auth) -> None:
    asked = kitchen("user", "rm", "kitchen", code=1, input="n\n")
    assert "Remove kitchen with 0 tokens?" in asked.stderr
    assert "kitchen" in users().by_name
    assert kitchen("user", "rm", "kitchen", "--yes").stdout == f"Removed kitchen from {FILE}.\n"
    assert users().by_name == {}
    refused = kitchen("user", "rm", "kitchen", code=2, input="y\n")
    assert refused.stderr == "error: there is no user 'kitchen'; the users are: none\n"


def test_a_token_is_alone_on_standard_output(kitchen: Auth) -> None:
    done = kitchen("token", "kitchen")
    token = done.stdout.removesuffix("\n")
    assert users().login(TOKEN, token) == f"kitchen/{token_id(token)}"
    assert token not in done.stderr
    assert "not displayed again" in done.stderr


def test_a_token_is_written_to_a_file_for_its_owner_only(kitchen: Auth) -> None:
    done = kitchen("token", "kitchen", "--out", "kitchen.token")
    assert done.stdout == ""
    path = Path("kitchen.token")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = path.read_text().strip()
    assert first not in done.stderr
    kitchen("token", "kitchen", "--out", "kitchen.token")
    second = path.read_text().strip()
    assert first != second
    assert users().login(TOKEN, first)
    assert users().login(TOKEN, second)


def test_a_token_does_not_replace_another_file(kitchen: Auth) -> None:
    for data in (b"recipes\n", b"\xff"):
        Path("notes").write_bytes(data)
        refused = kitchen("token", "kitchen", "--out", "notes", code=2)
        assert refused.stderr == "error: notes exists and contains no token; it is not replaced\n"
        assert Path("notes").read_bytes() == data
    assert users().by_name["kitchen"].tokens == {}


def test_a_token_that_cannot_be_written_does_not_exist(kitchen: Auth, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").touch()
    monkeypatch.setattr(token_module, "_check_file", lambda _: None)
    assert kitchen("token", "kitchen", "--out", "file/token", code=1).stdout == ""
    assert users().by_name["kitchen"].tokens == {}


def test_tokens_are_listed_and_removed(kitchen: Auth) -> None:
    assert kitchen("token", "kitchen", "--ls").stderr == "kitchen has no tokens.\n"
    ids = [token_id(kitchen("token", "kitchen").stdout.strip()) for _ in range(2)]
    assert kitchen("token", "kitchen", "--ls").stdout.split() == ["ID", *ids]
    lines = kitchen("token", "kitchen", "--ls", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"user": "kitchen", "id": each} for each in ids]
    assert kitchen("token", "kitchen", "--rm", ids[0]).stdout == f"Removed {ids[0]} of kitchen.\n"
    assert list(users().by_name["kitchen"].tokens) == ids[1:]
    assert f"the ids are: {ids[1]}" in kitchen("token", "kitchen", "--rm", ids[0], code=2).stderr
    assert "the users are: kitchen" in kitchen("token", "eve", "--ls", code=2).stderr


@pytest.mark.parametrize("options", [("--ls", "--out", "x"), ("--rm", "x", "--ls"), ("--json",)], ids=" ".join)
def test_contradictory_options_are_a_usage_error(options: tuple[str, ...], kitchen: Auth) -> None:
    kitchen("token", "kitchen", *options, code=2)
    assert users().by_name["kitchen"].tokens == {}


def test_rights_are_granted_and_revoked(kitchen: Auth) -> None:
    assert kitchen("grant", "kitchen", "read", "menu.#").stdout == "kitchen has the rule `read menu.#` now.\n"
    assert kitchen("grant", "kitchen", "read", "menu.#").stdout == "kitchen has the rule `read menu.#` already.\n"
    assert kitchen("check", "kitchen", "read", "menu.eu").stdout == "yes: read menu.#\n"
    assert kitchen("revoke", "kitchen", "read", "menu.#").stdout == "kitchen has the rule `read menu.#` no more.\n"
    kitchen("check", "kitchen", "read", "menu.eu", code=10)
    kitchen("grant", "kitchen", "role", "admin")
    assert kitchen("check", "kitchen", "delete", "menu").stdout == "yes: role admin\n"
    kitchen("revoke", "kitchen", "role", "admin")
    kitchen("check", "kitchen", "delete", "menu", code=10)


def test_a_rule_that_does_not_exist_cannot_be_revoked(kitchen: Auth) -> None:
    refused = kitchen("revoke", "kitchen", "write", "meal", code=2)
    assert refused.stderr == (
        "error: user 'kitchen' has no rule 'write meal'; there are: consume orders.*, write meals, role viewer\n"
    )


def test_revoke_says_what_still_grants_the_same(kitchen: Auth) -> None:
    kitchen("grant", "kitchen", "all", "meals")
    assert (
        "kitchen may still write meals: `all meals` grants it." in kitchen("revoke", "kitchen", "write", "meals").stderr
    )


def test_check_names_the_deciding_rule(kitchen: Auth) -> None:
    with FILE.open("a") as file:
        file.write('[role.cook]\nallow = ["write soup.#"]\n')
    kitchen("grant", "kitchen", "role", "cook")
    assert kitchen("check", "kitchen", "write", "soup.hot").stdout == "yes: write soup.# (role cook)\n"
    assert kitchen("check", "kitchen", "read", "orders.eu").stdout == "yes: consume orders.*\n"
    assert kitchen("check", "kitchen", "describe", "anything").stdout == "yes: role viewer\n"
    assert json.loads(kitchen("check", "kitchen", "write", "soup", "--json").stdout)["allowed"]
    refused = kitchen("check", "kitchen", "consume", "orders.#", code=10)
    assert refused.stdout == "no: no rule of kitchen grants consume on orders.#\n"
    refused = kitchen("check", "kitchen", "create", "meals", "--json", code=10)
    assert json.loads(refused.stdout) == {
        "user": "kitchen",
        "verb": "create",
        "topic": "meals",
        "allowed": False,
        "rule": "",
    }
    kitchen("check", "kitchen", "eat", "meals", code=2)
    kitchen("check", "eve", "read", "meals", code=2)


def test_quotas_are_set_lifted_and_listed(kitchen: Auth) -> None:
    kitchen("quota", "kitchen", "connections=20", "in_flight_bytes=8MiB")
    assert users().by_name["kitchen"].quotas == Quotas(connections=20, in_flight_bytes=8 * 2**20)
    kitchen("quota", "kitchen", "connections=0")
    listed = dict(line.split() for line in kitchen("quota", "kitchen").stdout.splitlines())
    assert (listed["connections"], listed["in_flight_bytes"]) == ("-", "8,388,608")
    assert json.loads(kitchen("quota", "kitchen", "--json").stdout)["in_flight_bytes"] == 8 * 2**20


@pytest.mark.parametrize("limit", ["topics", "tables=3", "topics=many", "topics=3MiB", "topics=-1", "stored_bytes=1d"])
def test_a_wrong_quota_is_refused(limit: str, kitchen: Auth) -> None:
    kitchen("quota", "kitchen", limit, code=2)
    assert users().by_name["kitchen"].quotas == Quotas()


def test_a_wrong_rule_is_refused_with_what_is_possible(auth: Auth) -> None:
    refused = auth("user", "add", "kitchen", "--allow", "eat cake", code=2)
    assert refused.stderr.startswith(
        "error: 'eat cake' is not a rule: use `VERB TOPIC` or `role NAME`; verbs are describe"
    )
    assert "there is no role 'king'" in auth("user", "add", "kitchen", "--role", "king", code=2).stderr
    assert not FILE.exists()


def test_errors_are_json_if_the_output_is(auth: Auth) -> None:
    error = json.loads(auth("user", "ls", "--json", code=2).stderr)
    assert error["code"] == "SETTING_INVALID"
    assert error["advice"] == ""
    assert "`oncemq auth user add NAME` creates it" in error["text"]


def test_a_file_of_another_user_is_one_sentence(kitchen: Auth) -> None:
    if os.geteuid() == 0:
        pytest.skip("root can read everything")
    FILE.chmod(0)
    assert "can't be read" in kitchen("user", "ls", code=2).stderr
