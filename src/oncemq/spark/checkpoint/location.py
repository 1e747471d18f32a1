"""Where a checkpoint is, and how its files are read: on a local or mounted disk, or through Arrow's file systems."""

from __future__ import annotations

import json
import logging
import os
import re
from typing import Any
from urllib.parse import unquote, urlsplit

from oncemq.protocol import errors

_log = logging.getLogger(__name__)

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
#: Hadoop's names of schemes, and Arrow's.
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3", "s3": "s3", "gs": "gs", "hdfs": "hdfs", "abfs": "abfs", "abfss": "abfss"}
#: Locations that could not be read. They are not tried again: each attempt may take seconds.
_unreadable: set[str] = set()


def local_folder(location: str) -> str | None:
    """The folder of a checkpoint on a local or mounted disk; None if it is elsewhere.

    >>> local_folder("file:///var/checkpoints/totals"), local_folder("s3a://bucket/totals")
    ('/var/checkpoints/totals', None)
    """
    if location.startswith("file:"):
        return unquote(urlsplit(location).path)
    return None if _SCHEME.match(location) or not location else os.path.abspath(location)


class CheckpointFiles:
    """Reads the entries of one checkpoint."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._folder = local_folder(location)
        #: Arrow's file system, and the path in it.
        self._remote: tuple[Any, str] | None = None

    def find(self) -> bool:
        """Whether this process can read the checkpoint. If it can't, a warning says once what is not detected."""
        # Where paths without a scheme are not local, a folder of the same name may exist on this machine.
        if self._folder is not None and os.path.isdir(os.path.join(self._folder, "offsets")):
            return True
        if self._location in _unreadable:
            return False
        if self._folder is None:
            self._remote = _find_remote(self._location)
        if self._remote is not None:
            return True
        _unreadable.add(self._location)
        where = f"the checkpoint {self._location} can't be read here" if self._location else "no checkpoint is known"
        _log.warning(
            "%s: a checkpoint that lost its last entries is not recognised by the sink. Set the option "
            "checkpointLocation of the writer to a place that the driver's Python can read",
            where,
        )
        return False

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if it does not exist. Raises OSError."""
        try:
            if self._folder is not None:
                with open(os.path.join(self._folder, name), "rb") as file:
                    return file.read()
            assert self._remote is not None, "read without find"
            filesystem, root = self._remote
            with filesystem.open_input_stream(f"{root}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def query_id(self) -> str:
        """The id of the query; "" if it is not known here."""
        try:
            if self._folder is None and self._location not in _unreadable:
                self._remote = _find_remote(self._location)
            raw = self.read("metadata") if self._folder is not None or self._remote is not None else None
            return _id_in(raw) if raw is not None else ""
        except (OSError, ValueError):
            return ""


def _id_in(metadata: bytes) -> str:
    """The id of the query. Raises ValueError."""
    try:
        return str(json.loads(metadata)["id"])
    except (LookupError, TypeError) as error:
        raise ValueError(f"there is no id: {error}") from None


def refuse_damaged(location: str) -> None:
    """Refuse a checkpoint on this machine from which Spark would continue as if nothing were wrong:

    - It has lost the id of its query. Spark would give it a new id, and targets would take a replayed micro-batch for a
      new one.
    - It has lost the last entries of `offsets`, but not of `commits`. Spark would plan other micro-batches with these
      numbers, and after the next start it would believe that they are complete.

    Raises CheckpointBehind."""
    folder = local_folder(location)
    if folder is None:
        return
    planned, committed = (max(_entries(folder, kind), default=-1) for kind in ("offsets", "commits"))
    what = _metadata_problem(folder, has_entries=max(planned, committed) >= 0)
    if not what and committed > planned:
        what = f"has the entry commits/{committed}, but has lost offsets/{committed}. Restore its newest copy"
    if what:
        raise errors.CheckpointBehind(f"the checkpoint {location} {what}, or start with a new checkpoint")


def _metadata_problem(folder: str, *, has_entries: bool) -> str:
    try:
        with open(os.path.join(folder, "metadata"), "rb") as file:
            _id_in(file.read())
    except FileNotFoundError:
        what = "has lost" if has_entries else ""
    except ValueError:
        what = "is damaged in"
    else:
        what = ""
    return what and f"{what} its file 'metadata', which contains the id of its query. Restore that file"


def _entries(folder: str, kind: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(os.path.join(folder, kind)) if name.isdecimal()]
    except FileNotFoundError:
        return []


def _find_remote(location: str) -> tuple[Any, str] | None:
    """Arrow's file system for a URL and the path in it, if Arrow can read it with the credentials of this process."""
    import pyarrow as pa
    from pyarrow import fs

    scheme, separator, rest = location.partition("://")
    if scheme not in _ARROW_SCHEMES or not separator:
        return None
    try:
        filesystem, root = _from_uri(f"{_ARROW_SCHEMES[scheme]}://{rest}")
        found = filesystem.get_file_info(root)
    except (OSError, pa.ArrowException, ValueError) as error:
        _log.info("Arrow can't read %s: %s", location, error)
        return None
    return None if found.type == fs.FileType.NotFound else (filesystem, root)


def _from_uri(uri: str) -> tuple[Any, str]:
    from pyarrow import fs

    filesystem, path = fs.FileSystem.from_uri(uri)
    return filesystem, path
