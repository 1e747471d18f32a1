"""Named contexts: addresses of brokers with credentials, in a file of the user. `oncemq context` edits it.

    current = "prod"

    [context.prod]
    url = "oncemq://broker.example:5554"
    token_file = "~/.config/oncemq/prod.token"
    tls = "prod-ca.pem"

The file is `contexts.toml` in the folder `oncemq` of XDG_CONFIG_HOME (`~/.config`), or the one that ONCEMQ_CONTEXTS
names. Paths in it are relative to its folder. If it contains a secret, nobody else may be able to read it.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from oncemq.protocol.errors import SettingInvalid

try:
    import fcntl
except ImportError:
    _HAS_LOCKS = False
else:
    _HAS_LOCKS = True

FILE_VARIABLE = "ONCEMQ_CONTEXTS"
FILE_NAME = "contexts.toml"
_HEAD = "# Written by `oncemq context`, which does not keep comments.\n"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_KINDS: dict[str, Any] = {
    "url": str,
    "token": str,
    "token_file": str,
    "tls": bool | str,
    "tls_certificate": str,
    "tls_key": str,
    "tls_server_name": str,
    "curve_server": str,
    "curve_public": str,
    "curve_secret": str,
}
PATHS = ("token_file", "tls", "tls_certificate", "tls_key")
_SECRETS = ("token", "curve_secret")


class Contexts(msgspec.Struct, frozen=True):
    """The content of the file."""

    #: The name of the context that is used if nothing else gives an address; "" = none.
    current: str = ""
    #: The settings of each context by its name.
    entries: Mapping[str, Mapping[str, Any]] = {}

    def __repr__(self) -> str:
        """Without secrets: it may be logged."""
        return f"Contexts(current={self.current!r}, {', '.join(self.entries) or 'none'})"


def path_of(variables: Mapping[str, str] = os.environ) -> Path:
    """The path of the file, which need not exist."""
    if named := variables.get(FILE_VARIABLE):
        return Path(os.path.expanduser(named))
    base = variables.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base, "oncemq", FILE_NAME)


def current(variables: Mapping[str, str] = os.environ) -> str:
    """Return the name of the current context; "" if there is none, or the file can't be read: the home folder of a
    service may be another user's. Raises SettingInvalid if the file is not valid."""
    path = path_of(variables)
    return load(path).current if os.access(path, os.R_OK) else ""


def find(name: str, variables: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the settings of a context, with absolute paths. Raises SettingInvalid."""
    path = path_of(variables)
    settings = dict(entry_of(load(path), name, path))
    for key in PATHS:
        if isinstance(settings.get(key), str):
            settings[key] = os.path.join(os.path.abspath(path.parent), os.path.expanduser(settings[key]))
    return settings


def entry_of(contexts: Contexts, name: str, path: Path) -> Mapping[str, Any]:
    """Return the settings of a context as they are in the file. Raises SettingInvalid if it does not exist."""
    if name in contexts.entries:
        return contexts.entries[name]
    close = difflib.get_close_matches(name, contexts.entries, n=1)
    known = f"did you mean {close[0]}?" if close else f"it has {', '.join(contexts.entries) or 'none'}"
    error = SettingInvalid(f"there is no context '{name}' in {path}; {known}")
    error.advice = f"`oncemq context add {name} --url URL` creates it; `oncemq context ls` lists the contexts."
    raise error


def load(path: Path) -> Contexts:
    """Read the file; if it does not exist, there are no contexts. Raises SettingInvalid, without showing a secret."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            document = tomllib.loads(file.read().decode())
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise SettingInvalid(f"{path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingInvalid(f"{path} is not valid TOML: {error}") from None
    contexts = _parse(document, path)
    if any(settings.get(key) for settings in contexts.entries.values() for key in _SECRETS):
        check_private(path, status)
    return contexts


def check_private(path: Path, status: os.stat_result) -> None:
    """Raise SettingInvalid if others can read a file with secrets. A file of root may be readable by a group, as those
    are that Kubernetes mounts."""
    if os.name != "posix":
        return
    allowed = 0o640 if status.st_uid == 0 and os.geteuid() != 0 else 0o600
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077 & ~allowed:
        raise SettingInvalid(
            f"{path} contains a secret and has the mode {mode:o}, so others can read or change it; run: "
            f"chmod 600 {shlex.quote(str(path))}"
        )


def _parse(document: dict[str, Any], path: Path) -> Contexts:
    _refuse_unknown(document, ("current", "context"), f"{path}: ")
    chosen, tables = document.get("current", ""), document.get("context", {})
    if not isinstance(chosen, str) or not isinstance(tables, dict):
        raise SettingInvalid(f"{path}: `current` must be the name of a context, and [context.NAME] a table")
    for name, settings in tables.items():
        where = f"{path}: context.{name}"
        if not isinstance(settings, dict):
            raise SettingInvalid(f"{where} must be a table: [context.{name}]")
        check_name(name)
        _refuse_unknown(settings, _KINDS, f"{where}.")
        for key, value in settings.items():
            # The value is not shown: it may be a secret.
            if not isinstance(value, _KINDS[key]):
                raise SettingInvalid(f"{where}.{key} must be {'true, false or a text' if key == 'tls' else 'a text'}")
        if not settings.get("url"):
            raise SettingInvalid(f"{where} has no url")
    return Contexts(chosen, tables)


def _refuse_unknown(table: Mapping[str, Any], known: Any, where: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, list(known), n=1)
            advice = f"the most similar one is {close[0]}" if close else f"there are {', '.join(known)}"
            raise SettingInvalid(f"{where}{key} is not a setting; {advice}")


def check_name(name: str) -> None:
    """Raise SettingInvalid unless this can be the name of a context."""
    if _NAME.fullmatch(name) is None:
        raise SettingInvalid(
            f"'{name}' is not the name of a context: use 1 to 64 letters, digits, '.', '_', '@' and '-', and begin "
            "with a letter or digit"
        )


def change(path: Path, edit: Callable[[Contexts], Contexts]) -> Contexts:
    """Change the file: completely or not at all, and not together with another process. Returns the new content. Raises
    SettingInvalid and OSError."""
    # The file may be a link to a folder of configuration files, which stays one.
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(path):
        changed = edit(load(path))
        _write(path, _text(changed))
    return changed


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock is on the folder: the file is replaced."""
    if not _HAS_LOCKS:
        yield
        return
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, text: str) -> None:
    import tempfile

    # mkstemp creates the file with the mode 0600.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _text(contexts: Contexts) -> str:
    lines = [_HEAD]
    if contexts.current:
        lines.append(f"current = {_quoted(contexts.current)}\n")
    for name, settings in contexts.entries.items():
        # A name with a dot or an @ is a key in quotes.
        lines.append(f"\n[context.{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else _quoted(name)}]\n")
        lines += [f"{key} = {_quoted(settings[key])}\n" for key in _KINDS if key in settings]
    return "".join(lines)


def _quoted(value: bool | str) -> str:
    """A value of TOML, whose texts are written as those of JSON, except for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
