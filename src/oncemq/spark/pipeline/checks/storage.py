"""Checks of folders: local ones must be writable, and remote ones must have a scheme that is supported."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping

from oncemq.spark.pipeline.problems import Path, Problem, local_problem, nearest, problem
from oncemq.spark.session import is_submitted, session_setting
from oncemq.spark.targets.objects.location import SCHEMES

#: The jars that Hadoop's file systems for object stores need.
_JARS = {
    "s3a": "hadoop-aws",
    "gs": "gcs-connector",
    "abfs": "hadoop-azure",
    "abfss": "hadoop-azure",
}
#: File systems of Hadoop in which Spark can keep a checkpoint.
_CHECKPOINT_SCHEMES = ("file", "hdfs", "viewfs", "s3a", "gs", "abfs", "abfss")


def scheme_of(path: str) -> str:
    """The scheme of a URL; "" for a path."""
    return path.partition("://")[0].lower() if "://" in path else ""


def check_output_folder(path: str, key: Path, storage: Mapping[str, str]) -> Iterator[Problem]:
    """Check the folder of a target, which the tasks of OnceMQ write without Hadoop."""
    scheme = scheme_of(path)
    if scheme in SCHEMES:
        yield from _check_objects(path, key, storage)
        return
    if scheme:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        advice = nearest(scheme, SCHEMES, f"write a path, or one of {known}")
        yield problem(key, f"{scheme}:// is not supported as a target", advice)
    else:
        yield from _check_local(path, key)
    if storage:
        yield problem(("target", "storage"), f"{path} is in no object store", "remove it")


def _check_objects(path: str, key: Path, storage: Mapping[str, str]) -> Iterator[Problem]:
    if not path.partition("://")[2].partition("/")[0]:
        yield problem(key, f"{path} names no bucket", "write s3://BUCKET/FOLDER")
    if importlib.util.find_spec("obstore") is None:
        yield local_problem(key, "obstore is not installed", 'pip install "oncemq[objects]"')
    for name, variable in storage.items():
        if variable not in os.environ:
            text = f"the environment variable {variable} is not set"
            yield local_problem(("target", "storage", name), text, "set it, here and where the tasks run")


def check_checkpoint_folder(path: str, key: Path) -> Iterator[Problem]:
    """Check the folder of a checkpoint, which Spark writes through Hadoop."""
    scheme = scheme_of(path)
    if not scheme:
        yield from _check_local(path, key)
    elif scheme not in _CHECKPOINT_SCHEMES:
        known = ", ".join(f"{name}://" for name in _CHECKPOINT_SCHEMES)
        advice = nearest(scheme, _CHECKPOINT_SCHEMES, f"write a path, or one of {known}")
        yield problem(key, f"Spark has no file system for {scheme}://", advice)
    elif scheme in _JARS and not _has_jar(_JARS[scheme]):
        advice = (
            f"put {_JARS[scheme]} and what it needs into Spark's folder `jars`, or name them in spark-defaults.conf "
            "(spark.jars, spark.jars.packages); or write a path on a disk"
        )
        yield local_problem(key, f"Spark can't store a checkpoint in {scheme}:// without a jar", advice)


def _has_jar(name: str) -> bool:
    """Whether a jar is on Spark's class path, or Spark's settings add jars to it."""
    found = importlib.util.find_spec("pyspark")
    homes = [os.environ.get("SPARK_HOME", ""), os.path.dirname(found.origin) if found and found.origin else ""]
    if any(glob.glob(os.path.join(glob.escape(home), "jars", f"{name}-*.jar")) for home in homes if home):
        return True
    if is_submitted() or session_setting("spark.jars") or session_setting("spark.jars.packages"):
        return True
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(homes[0], "conf")
    with contextlib.suppress(OSError), open(os.path.join(folder, "spark-defaults.conf"), encoding="utf-8") as file:
        if "spark.jars" in file.read():
            return True
    return bool(re.search(r"--(jars|packages)|spark\.jars", os.environ.get("PYSPARK_SUBMIT_ARGS", "")))


def _check_local(path: str, key: Path) -> Iterator[Problem]:
    """Check that a path is a writable folder, or that the folder can be created."""
    existing = path
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing) or "."
    if not os.path.isdir(existing):
        yield local_problem(key, f"{path} can't be a folder: {existing} is a file", "choose another path")
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield local_problem(key, f"{existing} is not writable", "change its permissions, or choose another path")
