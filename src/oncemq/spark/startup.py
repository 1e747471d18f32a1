"""What makes Spark start faster on one machine, without a change in what it does.

**Python.** Spark puts archives on the path of its Python processes: its own packages as `pyspark.zip`, and a jar. Each
process compiles what it imports from the archive, which takes longer than the import. A pipeline starts about ten
processes, one after the other. Where the same packages are installed next to this module, a script removes the archives
from the path:

    CACHE/python/HASH/python

**Java.** A JVM reads and verifies thousands of classes of Spark at each start. When the first JVM ends, it archives
them (class data sharing), and later ones map the archive into memory:

    CACHE/classes/HASH.jsa       HASH is that of the Java runtime and of Spark's jars
    CACHE/classes/HASH.*.new     is being written by a JVM that ends; the next start renames it

A JVM checks the archive against its version, its class path and the times of the jars, and ignores it if it does not
match. It writes the head of an archive last, so that one that is incomplete is recognised.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import sys
import time
import uuid
from pathlib import Path

from oncemq.spark import java

#: The first bytes of a complete archive: the magic number of a dynamic archive of HotSpot.
_MAGIC = (0xF00BABA8).to_bytes(4, "little")
#: An archive has about 170 MB.
_FREE_BYTES_MIN = 2 << 30
#: An unfinished archive that is older belongs to a JVM that was killed.
_UNFINISHED_S_MAX = 300.0
#: An archive that was not used for this time is removed when another one is created.
_UNUSED_S_MAX = 30 * 86_400.0
#: Options with which the user decides about archives.
_DECIDED = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare", "AutoCreateSharedArchive")
#: An archive that does not match is no reason for a warning.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_SCRIPT = """\
#!/bin/sh
# Python for Spark's workers, without the archives that Spark puts on its path: the same packages are installed.
set -f
IFS=:
rest=
for entry in $PYTHONPATH; do
    case "$entry" in
        {home}/python/lib/*.zip | {home}/jars/*.jar) ;;
        *) rest="${{rest:+$rest:}}$entry" ;;
    esac
done
unset IFS
if [ -n "$rest" ]; then export PYTHONPATH="$rest"; else unset PYTHONPATH; fi
exec {python} "$@"
"""


def worker_python() -> str:
    """The Python for Spark's processes on this machine: that of this process, or a script that starts it."""
    home = _spark_home()
    given = os.environ.get("SPARK_HOME")
    if os.name == "nt" or home is None or (given and os.path.realpath(given) != os.path.realpath(home)):
        return sys.executable
    script = _SCRIPT.format(home=shlex.quote(str(home)), python=shlex.quote(sys.executable))
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    return str(java.write_once(java.cache_folder() / "python" / name / "python", script, mode=0o755))


def class_archive_options(runtime: str, options: str) -> str:
    """The options of Java that use the archive of Spark's classes, or that create it; "" if there can't be one.

    `runtime` is the folder of the Java runtime, and `options` are the user's."""
    home = _spark_home()
    if home is None or any(word in options for word in _DECIDED):
        return ""
    if not os.path.exists(os.path.join(runtime, "lib", "server", "classes.jsa")):
        # The archive extends one that belongs to the Java runtime, which some runtimes lack.
        return ""
    archive = java.cache_folder() / "classes" / f"{_key(runtime, home)}.jsa"
    _adopt(archive)
    if _is_complete(archive):
        with contextlib.suppress(OSError):
            os.utime(archive)
        return f"{_QUIET} -XX:SharedArchiveFile={shlex.quote(str(archive))}"
    if not _may_create(archive):
        return ""
    unfinished = archive.with_suffix(f".{uuid.uuid4().hex[:8]}.new")
    return f"{_QUIET} -XX:ArchiveClassesAtExit={shlex.quote(str(unfinished))}"


def _spark_home() -> Path | None:
    """The folder of the installed PySpark, which is Spark's home unless SPARK_HOME names another one."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    home = Path(found.origin).parent
    has_py4j = importlib.util.find_spec("py4j") is not None
    return home if has_py4j and (home / "jars").is_dir() else None


def _key(runtime: str, home: Path) -> str:
    """Identifies the classes: another Java or another Spark has other ones."""
    jars = home / "jars"
    text = f"{runtime}\n{os.stat(runtime).st_mtime_ns}\n{jars}\n{jars.stat().st_mtime_ns}\n"
    return hashlib.sha256((text + importlib.metadata.version("pyspark")).encode()).hexdigest()[:16]


def _adopt(archive: Path) -> None:
    """Give an archive that a former JVM has completed its name, and remove what one that was killed has left."""
    if not archive.parent.is_dir():
        return
    for path in archive.parent.glob(f"{archive.stem}.*.new"):
        try:
            if _is_complete(path):
                os.replace(path, archive)
            elif time.time() - path.stat().st_mtime > _UNFINISHED_S_MAX:
                path.unlink()
        except OSError:
            # Another process was faster.
            continue


def _may_create(archive: Path) -> bool:
    """Whether there is space for an archive, and no other JVM writes one."""
    try:
        archive.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        archive.unlink(missing_ok=True)
        _remove_unused(archive.parent)
        free = shutil.disk_usage(archive.parent).free
    except OSError:
        return False
    return free >= _FREE_BYTES_MIN and not any(archive.parent.glob(f"{archive.stem}.*.new"))


def _remove_unused(folder: Path) -> None:
    """Remove the archives of other versions that no session has used for a month."""
    for path in folder.glob("*.jsa"):
        if time.time() - path.stat().st_mtime > _UNUSED_S_MAX:
            path.unlink(missing_ok=True)


def _is_complete(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == _MAGIC
    except OSError:
        return False
