"""A view of a disk that keeps its own changes in memory: the disk below is only read.

`journal check` and `journal cut` run the recovery of a broker on it, so that they find what a broker would find.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.disk.contract import Disk, DiskFile


class _Node:
    """A file. `path` is its path on the disk below; empty if it was created here."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: Offset and content, the oldest first.
        self.writes: list[tuple[int, bytes]] = []


class OverlayFile:
    def __init__(self, node: _Node, below: DiskFile | None) -> None:
        self._node = node
        self._below = below

    def write(self, offset: int, parts: Sequence[bytes | memoryview]) -> None:
        self._node.writes.append((offset, b"".join(parts)))

    def read(self, offset: int, size: int) -> bytes:
        data = self._below.read(offset, size) if self._below is not None else b""
        if not self._node.writes:
            return data
        content = bytearray(data)
        for at, written in self._node.writes:
            begin, end = max(at, offset), min(at + len(written), offset + size)
            if begin < end:
                content.extend(bytes(max(0, begin - offset - len(content))))
                content[begin - offset : end - offset] = written[begin - at : end - at]
        return bytes(content)

    def sync(self, label: str) -> None:
        pass

    def size(self) -> int:
        below = self._below.size() if self._below is not None else 0
        return max([below, *(at + len(written) for at, written in self._node.writes)])

    def close(self) -> None:
        if self._below is not None:
            self._below.close()


class _NoLock:
    def close(self) -> None:
        pass


class OverlayDisk:
    """Whoever uses it holds the lock of the disk below."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        #: Files whose name or content was changed; None = removed.
        self._nodes: dict[str, _Node | None] = {}
        self._folders: set[str] = set()

    def describe(self) -> str:
        return self._disk.describe()

    def _node(self, path: str) -> _Node:
        if path not in self._nodes:
            if not self._disk.exists(path):
                raise FileNotFoundError(path)
            self._nodes[path] = _Node(path)
        node = self._nodes[path]
        if node is None:
            raise FileNotFoundError(path)
        return node

    def open(self, path: str, create: bool = False) -> OverlayFile:
        if create:
            if self.exists(path):
                raise FileExistsError(path)
            self._nodes[path] = _Node("")
        node = self._node(path)
        return OverlayFile(node, self._disk.open(node.path) if node.path else None)

    def exists(self, path: str) -> bool:
        return self._nodes[path] is not None if path in self._nodes else self._disk.exists(path)

    def list(self, folder: str) -> list[str]:
        below = [] if folder in self._folders and not self._disk.exists(folder) else self._disk.list(folder)
        prefix = f"{folder}/" if folder else ""
        here = [path.removeprefix(prefix) for path in self._nodes if path.startswith(prefix)]
        names = {name for name in (*below, *here) if "/" not in name}
        return sorted(name for name in names if self._nodes.get(prefix + name, name) is not None)

    def make_folder(self, folder: str) -> None:
        self._folders.add(folder)

    def rename(self, old: str, new: str) -> None:
        self._nodes[new] = self._node(old)
        self._nodes[old] = None

    def remove(self, path: str) -> None:
        self._node(path)
        self._nodes[path] = None

    def sync_folder(self, folder: str, label: str) -> None:
        pass

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def lock(self, path: str) -> _NoLock:  # noqa: ARG002
        return _NoLock()
