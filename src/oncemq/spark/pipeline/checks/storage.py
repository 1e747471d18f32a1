"""Checks of folders: local ones must be writable, and remote ones must have a scheme that is supported."""

from __future__ import annotations

import os
from collections.abc import Iterator

from oncemq.spark.pipeline.problems import Path, Problem, nearest, problem

#: File systems of Hadoop in which Spark can keep a checkpoint. Those of object stores need a jar on Spark's class path.
_CHECKPOINT_SCHEMES = ("file", "hdfs", "viewfs", "s3a", "gs", "abfs", "abfss")


def scheme_of(path: str) -> str:
    """The scheme of a URL; "" for a path."""
    return path.partition("://")[0].lower() if "://" in path else ""


def check_output_folder(path: str, key: Path) -> Iterator[Problem]:
    """Check the folder of a target, which the tasks of OnceMQ write without Hadoop."""
    scheme = scheme_of(path)
    if scheme:
        text = f"{scheme}:// is not supported: a target is a folder on a local or mounted file system"
        yield problem(key, text, "write a path, without a scheme")
    else:
        yield from _check_local(path, key)


def check_checkpoint_folder(path: str, key: Path) -> Iterator[Problem]:
    """Check the folder of a checkpoint, which Spark writes through Hadoop."""
    scheme = scheme_of(path)
    if not scheme:
        yield from _check_local(path, key)
    elif scheme not in _CHECKPOINT_SCHEMES:
        known = ", ".join(f"{name}://" for name in _CHECKPOINT_SCHEMES)
        advice = nearest(scheme, _CHECKPOINT_SCHEMES, f"write a path, or one of {known}")
        yield problem(key, f"Spark has no file system for {scheme}://", advice)


def _check_local(path: str, key: Path) -> Iterator[Problem]:
    """Check that a path is a writable folder, or that the folder can be created."""
    existing = path
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing) or "."
    if not os.path.isdir(existing):
        yield problem(key, f"{path} can't be a folder: {existing} is a file", "choose another path")
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield problem(key, f"{existing} is not writable", "change its permissions, or choose another path")
