"""The interface that a folder of files has for the file sinks, and its implementation on a local or mounted disk. The
other one is targets/objects/object_folder.py. Paths are relative to the folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from oncemq.spark.targets.files.disk import Disk, sync_names
from oncemq.spark.targets.files.file_writer import DataFile


class StoredFile(NamedTuple):
    path: str
    modified_s: float


class Folder(Protocol):
    #: The absolute path of the folder, or its URL.
    @property
    def url(self) -> str: ...

    def prepare(self) -> None:
        """Create the folder, or check that it can be reached."""

    def place(self, prefix: str, write: Callable[[str], list[DataFile]]) -> list[DataFile]:
        """Let `write` write files, which are durable below the prefix when this returns."""

    def read(self, path: str) -> bytes | None:
        """The content of a file; None if there is none."""

    def update(self, path: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace a small file by what `change` makes of its content (None = there is none), while no other process
        does. It is durable when this returns."""

    def remove(self, paths: Sequence[str]) -> None:
        """Delete files, as far as they exist."""

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        """All files below the prefix, in no particular order."""

    def open(self, path: str) -> Any:
        """A readable, seekable file."""


class LocalFolder:
    def __init__(self, root: str, disk: Disk) -> None:
        self.url = root
        self._disk = disk

    def prepare(self) -> None:
        self._disk.make_folder(self.url)
        self._disk.sync_folder(os.path.dirname(self.url))

    def place(self, prefix: str, write: Callable[[str], list[DataFile]]) -> list[DataFile]:
        folder = self._path(prefix) if prefix else self.url
        files = write(folder)
        sync_names(self._disk, (os.path.dirname(os.path.join(folder, file.path)) for file in files), self.url)
        return files

    def read(self, path: str) -> bytes | None:
        return self._disk.read_file(self._path(path))

    def update(self, path: str, change: Callable[[bytes | None], bytes]) -> None:
        whole = self._path(path)
        self._disk.update_file(whole, change)
        sync_names(self._disk, [os.path.dirname(whole)], self.url)

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._disk.remove_file(self._path(path))

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        for folder, _, names in os.walk(self._path(prefix) if prefix else self.url):
            for name in names:
                path = os.path.join(folder, name)
                # Another process may delete it meanwhile.
                with suppress(FileNotFoundError):
                    yield StoredFile(os.path.relpath(path, self.url), os.path.getmtime(path))

    def open(self, path: str) -> Any:
        return open(self._path(path), "rb")

    def _path(self, path: str) -> str:
        return os.path.join(self.url, path)


def visible_files(folder: Folder) -> Iterable[StoredFile]:
    """The Parquet files that readers see: those whose names, and folders, do not begin with an underscore or a dot."""
    return (
        file
        for file in folder.list()
        if file.path.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in file.path.split("/"))
    )
