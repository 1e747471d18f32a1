"""Changes to auth.toml. They keep its comments and its order, and never write a file that is not valid.

Two commands that change the file at the same time wait for each other. A broker uses a change after it has read the
file again.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, TypeVar

from oncemq.auth.file import check_user_name, load, users_of
from oncemq.auth.private_file import changes_locked, write_private
from oncemq.auth.rules import parse_rule
from oncemq.auth.tokens import new_token, parse_stored, stored
from oncemq.protocol.errors import MissingExtra, SettingInvalid

#: What `add_credential` can add: public keys of CURVE clients, and common names of client certificates.
CURVE_KEYS = "curve"
CERTIFICATES = "certificates"

_NEW_FILE = """# The users of this broker, their tokens and rules. `oncemq auth` changes it; it can also be edited.
# A running broker reads it again after `oncemq auth reload`.
"""

T = TypeVar("T")
Tables = MutableMapping[str, Any]


def add_user(path: Path, name: str, allow: Iterable[str] = ()) -> None:
    """Add a user, who has no credentials yet. The file is created if it does not exist."""
    check_user_name(name)
    rules = list(dict.fromkeys(_normal(rule) for rule in allow))

    def change(tables: Tables) -> None:
        users = tables.setdefault("user", {})
        if name in users:
            raise SettingInvalid(f"there is a user '{name}' already; `oncemq auth grant {name}` adds rules")
        users[name] = {"allow": rules} if rules else {}

    _change(path, change, is_new_allowed=True)


def remove_user(path: Path, name: str) -> None:
    """Remove a user with all credentials."""

    def change(tables: Tables) -> None:
        _user(tables, name)
        del tables["user"][name]
        if not tables["user"]:
            del tables["user"]

    _change(path, change)


def add_token(path: Path, user: str) -> str:
    """Create a token for a user and return it. The file gets only its hash."""
    token = new_token()
    _change(path, lambda tables: _list(_user(tables, user), "tokens").append(str(stored(token))))
    return token


def remove_token(path: Path, user: str, token_id: str) -> None:
    """Remove the token with this id."""

    def change(tables: Tables) -> None:
        tokens = [(parse_stored(text), text) for text in _user(tables, user).get("tokens", ())]
        found = [text for token, text in tokens if token is not None and token.id == token_id]
        if not found:
            ids = ", ".join(token.id for token, _ in tokens if token is not None) or "none"
            raise SettingInvalid(f"user '{user}' has no token with the id '{token_id}'; the ids are: {ids}")
        _remove(_user(tables, user), "tokens", found[0])

    _change(path, change)


def add_credential(path: Path, user: str, kind: str, value: str) -> bool:
    """Add a key or a common name. Returns False if the user has it already."""

    def change(tables: Tables) -> bool:
        return _add(_user(tables, user), kind, value)

    return _change(path, change)


def remove_credential(path: Path, user: str, kind: str, value: str) -> None:
    """Remove a key or a common name."""

    def change(tables: Tables) -> None:
        values = _values(_user(tables, user), kind)
        if value not in values:
            raise SettingInvalid(f"user '{user}' has no '{value}' in `{kind}`; there are: {_listed(values)}")
        _remove(_user(tables, user), kind, value)

    _change(path, change)


def grant(path: Path, user: str, rule: str) -> bool:
    """Add a rule. Returns False if the user has it already."""
    added = _normal(rule)

    def change(tables: Tables) -> bool:
        table = _user(tables, user)
        if added in map(_normal, table.get("allow", ())):
            return False
        return _add(table, "allow", added)

    return _change(path, change)


def revoke(path: Path, user: str, rule: str) -> None:
    """Remove a rule."""
    removed = _normal(rule)

    def change(tables: Tables) -> None:
        table = _user(tables, user)
        rules = list(table.get("allow", ()))
        found = [text for text in rules if _normal(text) == removed]
        if not found:
            raise SettingInvalid(f"user '{user}' has no rule '{removed}'; there are: {_listed(rules)}")
        for text in found:
            _remove(table, "allow", text)

    _change(path, change)


def set_quotas(path: Path, user: str, quotas: Mapping[str, int]) -> None:
    """Set limits of a user; 0 = no limit."""

    def change(tables: Tables) -> None:
        table = _user(tables, user)
        limits = table.setdefault("quotas", {})
        for name, limit in quotas.items():
            if limit:
                limits[name] = limit
            else:
                limits.pop(name, None)
        if not limits:
            del table["quotas"]

    _change(path, change)


def _change(path: Path, change: Callable[[Tables], T], *, is_new_allowed: bool = False) -> T:
    """Change the tables of the file, and return what `change` returns.

    It is made twice: in the text, and in plain dictionaries. The text is written only if it says the same as they do.
    """
    tomlkit = _tomlkit()
    if not is_new_allowed:
        # Before a folder is created for the lock.
        load(path)
    with changes_locked(path):
        text = _NEW_FILE
        if path.exists():
            load(path)
            text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
        result = change(tables)
        users_of(tables, "the change is not valid")
        document = tomlkit.parse(text)
        change(document)
        changed = tomlkit.dumps(document)
        if _tables_of(changed) != tables:
            raise SettingInvalid(f"{path} is written in a way that commands can't change; change it with an editor")
        if changed != text:
            write_private(path, changed)
    return result


def _tables_of(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _tomlkit() -> Any:
    try:
        import tomlkit
    except ImportError:
        raise MissingExtra("tomlkit, which changes auth.toml, is not installed: pip install 'oncemq[secure]'") from None
    return tomlkit


def _user(tables: Tables, name: str) -> Tables:
    users: Tables = tables.get("user", {})
    if name not in users:
        raise SettingInvalid(f"there is no user '{name}'; the users are: {_listed(users)}")
    found: Tables = users[name]
    return found


def _values(table: Tables, key: str) -> list[str]:
    """Return the entries of a key, which may also be a single text."""
    value = table.get(key, ())
    return [value] if isinstance(value, str) else list(value)


def _list(table: Tables, key: str) -> Any:
    """Return the list of a key, to be changed. A single text becomes a list."""
    if key not in table or isinstance(table[key], str):
        table[key] = [str(value) for value in _values(table, key)]
    return table[key]


def _add(table: Tables, key: str, value: str) -> bool:
    if value in _values(table, key):
        return False
    _list(table, key).append(value)
    return True


def _remove(table: Tables, key: str, value: str) -> None:
    values = _list(table, key)
    values.remove(value)
    if not values:
        del table[key]


def _normal(rule: str) -> str:
    """Return a rule in the form in which it is written."""
    parsed = parse_rule(rule)
    return f"{parsed.verb} {parsed.pattern}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
