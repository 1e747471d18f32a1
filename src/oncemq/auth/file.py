"""auth.toml: users, tokens and rules.

[user.kitchen]
tokens = ["k3v9x2aa:9f86d0…"]         # `oncemq auth token kitchen`
curve  = "…public key…"               # or a list
certificates = ["kitchen.example"]    # common names
allow  = ["consume orders.*", "write meals", "role viewer"]

[user.kitchen.quotas]
connections = 20

[role.cook]
allow = ["consume orders.#"]
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from oncemq.auth.rules import ROLES, resolve
from oncemq.auth.tokens import StoredToken, parse_stored
from oncemq.auth.users import Quotas, User, Users
from oncemq.protocol.errors import SettingInvalid

FILE_NAME = "auth.toml"
FILE_MODE = 0o600
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CURVE_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class _UserTable(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[str] = []
    curve: str | list[str] = []
    certificates: str | list[str] = []
    allow: list[str] = []
    quotas: Quotas = Quotas()


class _RoleTable(msgspec.Struct, forbid_unknown_fields=True):
    allow: list[str] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    user: dict[str, _UserTable] = {}
    role: dict[str, _RoleTable] = {}


def load(path: Path) -> Users:
    """Read auth.toml. Raises SettingInvalid, which says what is wrong."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read().decode()
    except FileNotFoundError:
        raise SettingInvalid(f"{path} does not exist; `oncemq auth user add NAME` creates it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingInvalid(f"{path} can't be read: {error}") from None
    if mode & 0o077:
        raise SettingInvalid(f"{path} has the mode {mode:o}, so others can read or change it; run: chmod 600 {path}")
    return parse(text, str(path))


def parse(text: str, where: str = FILE_NAME) -> Users:
    """Parse the text of auth.toml. Raises SettingInvalid."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingInvalid(f"{where}: {error}") from None
    return users_of(tables, where)


def users_of(tables: dict[str, Any], where: str = FILE_NAME) -> Users:
    """Return the users that the tables of auth.toml define. Raises SettingInvalid."""
    try:
        return _users(msgspec.convert(tables, _File))
    except msgspec.ValidationError as error:
        raise SettingInvalid(f"{where}: {error}") from None
    except SettingInvalid as error:
        raise SettingInvalid(f"{where}: {error.text}") from None


def _users(tables: _File) -> Users:
    roles = {name: table.allow for name, table in tables.role.items()}
    for name in roles:
        if name in ROLES:
            raise SettingInvalid(f"role '{name}' is built in and can't be defined")
        check_user_name(name, "role")
        _resolved(f"role '{name}'", [f"role {name}"], roles)
    users = [_user(name, table, roles) for name, table in tables.user.items()]
    for what in ("tokens", "curve", "certificates"):
        seen: dict[Any, str] = {}
        for user in users:
            for credential in getattr(user, what):
                if credential in seen:
                    both = f"'{seen[credential]}' and '{user.name}'"
                    raise SettingInvalid(f"users {both} have the same entry in `{what}`")
                seen[credential] = user.name
    return Users(users)


def _user(name: str, table: _UserTable, roles: dict[str, list[str]]) -> User:
    check_user_name(name)
    tokens: dict[str, StoredToken] = {}
    for text in table.tokens:
        token = parse_stored(text)
        if token is None:
            # The text may be a token itself, which must not be displayed.
            raise SettingInvalid(f"user '{name}' has a token that is not ID:SHA256; `oncemq auth token` creates one")
        if token.id in tokens:
            raise SettingInvalid(f"user '{name}' has two tokens with the id {token.id}")
        tokens[token.id] = token
    curve = _listed(table.curve)
    if any(_CURVE_KEY.fullmatch(key) is None for key in curve):
        raise SettingInvalid(f"user '{name}' has a `curve` that is not a public key of 40 characters")
    negative = [field for field, value in msgspec.structs.asdict(table.quotas).items() if value < 0]
    if negative:
        raise SettingInvalid(f"user '{name}': the quota `{negative[0]}` is negative")
    rights = _resolved(f"user '{name}'", table.allow, roles)
    return User(name, rights, tokens, frozenset(curve), frozenset(_listed(table.certificates)), table.quotas)


def _resolved(whose: str, allow: list[str], roles: dict[str, list[str]]) -> Any:
    try:
        return resolve(allow, roles)
    except SettingInvalid as error:
        raise SettingInvalid(f"{whose}: {error.text}") from None


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def check_user_name(name: str, what: str = "user") -> None:
    """Raise SettingInvalid unless this can be the name of a user or role."""
    if _NAME.fullmatch(name) is None:
        raise SettingInvalid(
            f"'{name}' is not a {what}'s name: use 1 to 64 letters, digits, '.', '_' and '-', and begin with a letter "
            "or digit"
        )
