"""A disk that loses unsynced data when its process is killed, and keeps the rest in real files.

SIGKILL leaves the page cache intact, so on a plain disk it proves little. Here a write stays in this process until
`sync`, and a change of a name until `sync_folder`; a new file is in a second folder, the limbo, until its name is
synced. A sync writes in pieces and in random order, so that a kill in the middle leaves a torn write. Sometimes pieces
are written early, as an operating system does.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

from oncemq.disk.os_disk import OsDisk, OsFile, OsLock

_SECTOR_BYTES = 512
_SMALL_BYTES = 64 * 1024
_PAGE_BYTES = 4096
_EARLY_SHARE = 0.1
_SLOW_SHARE = 0.2
_SLOW_S = 0.002

_Piece = tuple[int, bytes]


def _pieces(offset: int, data: bytes) -> list[_Piece]:
    size = _SECTOR_BYTES if len(data) <= _SMALL_BYTES else _PAGE_BYTES
    return [(offset + at, data[at : at + size]) for at in range(0, len(data), size)]


class _Node:
    """The content of a file, independent of its name. `path` is its real path."""

    def __init__(self, path: str, is_named: bool) -> None:
        self.path = path
        #: Whether its first name is durable.
        self.is_named = is_named
        self.waiting: list[_Piece] = []


class LossyFile:
    def __init__(self, disk: LossyDisk, node: _Node, file: OsFile) -> None:
        self._disk = disk
        self._node = node
        self._file = file

    def write(self, offset: int, parts: Sequence[bytes | memoryview]) -> None:
        data = b"".join(parts)
        with self._disk.global_lock:
            self._node.waiting.append((offset, data))
            if self._disk.random.random() < _EARLY_SHARE:
                self._write_some_early(offset, data)

    def _write_some_early(self, offset: int, data: bytes) -> None:
        for at, piece in _pieces(offset, data)[:256]:
            if self._disk.random.random() < 0.5:
                self._file.write(at, [piece])

    def read(self, offset: int, size: int) -> bytes:
        with self._disk.global_lock:
            data = bytearray(self._file.read(offset, size))
            for at, piece in self._node.waiting:
                begin, end = max(at, offset), min(at + len(piece), offset + size)
                if begin >= end:
                    continue
                if begin - offset > len(data):
                    data.extend(bytes(begin - offset - len(data)))
                data[begin - offset : end - offset] = piece[begin - at : end - at]
            return bytes(data)

    def sync(self, label: str) -> None:
        random = self._disk.random
        with self._disk.global_lock:
            pieces = [piece for waiting in self._node.waiting for piece in _pieces(*waiting)]
            # If writes overlap, the later one has to win.
            if not _overlap(self._node.waiting):
                random.shuffle(pieces)
            slow_at = random.randrange(len(pieces)) if pieces and random.random() < _SLOW_SHARE else -1
            for index, (offset, data) in enumerate(pieces):
                if index == slow_at:
                    time.sleep(_SLOW_S)
                self._file.write(offset, [data])
            self._node.waiting.clear()

    def size(self) -> int:
        with self._disk.global_lock:
            ends = [offset + len(data) for offset, data in self._node.waiting]
            return max([self._file.size(), *ends])

    def close(self) -> None:
        self._file.close()


def _overlap(writes: list[_Piece]) -> bool:
    spans = sorted((offset, offset + len(data)) for offset, data in writes)
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))


class LossyDisk:
    def __init__(self, root: str | Path, seed: int) -> None:
        self.random = Random(seed)
        #: The worker of the journal writes from a thread of its own.
        self.global_lock = threading.RLock()
        self._root = str(root)
        self._disk = OsDisk(root)
        limbo = self._root + ".limbo"
        shutil.rmtree(limbo, ignore_errors=True)
        self._limbo = OsDisk(limbo)
        self._limbo_root = limbo
        self._made = 0
        self._names: dict[str, dict[str, _Node]] = {}
        #: Folder → changes of names that are not synced: (old name, node, new name).
        self._waiting: dict[str, list[tuple[str | None, _Node, str | None]]] = {}

    def describe(self) -> str:
        return self._disk.describe()

    def _folder(self, folder: str) -> dict[str, _Node]:
        names = self._names.get(folder)
        if names is None:
            path = os.path.join(self._root, folder)
            found = sorted(os.listdir(path)) if os.path.isdir(path) else []
            files = [name for name in found if os.path.isfile(os.path.join(path, name))]
            names = {name: _Node(os.path.join(path, name), True) for name in files}
            self._names[folder] = names
        return names

    def open(self, path: str, create: bool = False) -> LossyFile:
        folder, _, name = path.rpartition("/")
        with self.global_lock:
            names = self._folder(folder)
            if create:
                if name in names:
                    raise FileExistsError(path)
                return self._create(folder, name)
            if name not in names:
                raise FileNotFoundError(path)
            node = names[name]
            disk, root = (self._disk, self._root) if node.is_named else (self._limbo, self._limbo_root)
            return LossyFile(self, node, disk.open(os.path.relpath(node.path, root)))

    def _create(self, folder: str, name: str) -> LossyFile:
        self._made += 1
        made = str(self._made)
        node = _Node(os.path.join(self._limbo_root, made), False)
        self._folder(folder)[name] = node
        self._waiting.setdefault(folder, []).append((None, node, name))
        return LossyFile(self, node, self._limbo.open(made, create=True))

    def exists(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        with self.global_lock:
            return name in self._folder(folder)

    def list(self, folder: str) -> list[str]:
        with self.global_lock:
            return sorted(self._folder(folder))

    def make_folder(self, folder: str) -> None:
        self._disk.make_folder(folder)

    def rename(self, old: str, new: str) -> None:
        folder, _, old_name = old.rpartition("/")
        new_folder, _, new_name = new.rpartition("/")
        assert folder == new_folder, "files are renamed only within their folder"
        with self.global_lock:
            names = self._folder(folder)
            node = names.pop(old_name)
            names[new_name] = node
            self._waiting.setdefault(folder, []).append((old_name, node, new_name))

    def remove(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        with self.global_lock:
            node = self._folder(folder).pop(name)
            self._waiting.setdefault(folder, []).append((name, node, None))

    def sync_folder(self, folder: str, label: str) -> None:
        with self.global_lock:
            for old, node, new in self._waiting.pop(folder, []):
                self._change_name(folder, old, node, new)

    def _change_name(self, folder: str, old: str | None, node: _Node, new: str | None) -> None:
        source = node.path if old is None else os.path.join(self._root, folder, old)
        if new is None:
            os.remove(source)
            return
        node.path = os.path.join(self._root, folder, new)
        node.is_named = True
        os.rename(source, node.path)

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def lock(self, path: str) -> OsLock:
        return self._disk.lock(path)
