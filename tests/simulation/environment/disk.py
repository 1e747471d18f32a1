"""A disk in memory that loses unsynced data.

It has two layers: the content that a process sees (*current*), and the content after a power loss (*durable*).

- A write changes the current layer and is pending. `sync` makes the pending writes of a file durable. At a power loss,
  each pending write is kept, dropped, torn (some of its sectors are kept) or flipped (one bit of it is wrong).
- Changes of names are pending too, in order, per folder. `sync_folder` makes them durable. At a power loss, a prefix of
  them is kept, never a later one without an earlier one.
- After a failed sync, the page cache looks as if it had succeeded, but the data is never written. Linux does this.
- `kill` ends the process and loses nothing; pending writes stay pending.

`faults` counts every injected fault.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

from oncemq.protocol import errors

SECTOR_BYTES = 512


class SimCrash(BaseException):
    """The process ends here. This is not an Exception, so that the process cannot catch it and continue."""


class _Node:
    """The content of a file, independent of its name."""

    __slots__ = ("current", "durable", "waiting")

    def __init__(self) -> None:
        self.current = bytearray()
        self.durable = bytearray()
        self.waiting: list[tuple[int, bytes]] = []


class _Folder:
    __slots__ = ("current", "durable", "waiting")

    def __init__(self) -> None:
        self.current: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.waiting: list[tuple[str, str | None, _Node | None]] = []


def _put(content: bytearray, offset: int, data: bytes | memoryview) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class SimFile:
    __slots__ = ("_disk", "_life", "_node", "_path")

    def __init__(self, disk: SimDisk, path: str, node: _Node) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._life = disk.life

    def _check_alive(self) -> None:
        if self._life != self._disk.life:
            raise AssertionError(f"a process that has ended still uses {self._path}")

    def write(self, offset: int, parts: Sequence[bytes | memoryview]) -> None:
        self._check_alive()
        disk = self._disk
        disk.operate()
        data = b"".join(parts)
        node = self._node
        grown = offset + len(data) - len(node.current)
        disk.check_write(self._path, grown)
        node.waiting.append((offset, data))
        _put(node.current, offset, data)
        if grown > 0:
            disk.used_bytes += grown

    def read(self, offset: int, size: int) -> bytes:
        self._check_alive()
        self._disk.check_read(self._path)
        return bytes(self._node.current[offset : offset + size])

    def sync(self, label: str) -> None:
        self._check_alive()
        disk = self._disk
        disk.operate()
        if disk.skips(label):
            return
        node = self._node
        if disk.sync_fails():
            disk.lose_waiting(node)
            raise OSError(errno.EIO, "simulated sync failure")
        for offset, data in node.waiting:
            _put(node.durable, offset, data)
        node.waiting.clear()

    def size(self) -> int:
        return len(self._node.current)

    def close(self) -> None:
        pass


class _SimLock:
    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._life = disk.life

    def close(self) -> None:
        if self._life == self._disk.life:
            self._disk.locked.discard(self._path)


class SimDisk:
    def __init__(self, random: Random, capacity_bytes: int = 1 << 40) -> None:
        self.random = random
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.faults: Counter[str] = Counter()
        #: Number of syncs by label.
        self.labels: Counter[str] = Counter()
        #: Syncs with these labels do nothing.
        self.skip_labels: set[str] = set()
        #: Thresholds of a random number for keeping, dropping and tearing a pending write; above them it is flipped.
        self.fates = (0.4, 0.65, 0.9)
        #: Reading these paths fails.
        self.unreadable: set[str] = set()
        #: Rises with each kill and power loss. File handles of earlier processes are invalid.
        self.life = 0
        self.locked: set[str] = set()
        self._folders: dict[str, _Folder] = {"": _Folder()}
        self._writes_until_failure = 0
        self._syncs_until_failure = 0
        self._reads_to_fail = 0
        self._operations_until_crash = 0

    def describe(self) -> str:
        return "simulated disk"

    # Faults that a test requests.

    def fail_write(self, count: int = 1) -> None:
        """Make the count-th next write fail."""
        self._writes_until_failure = count

    def fail_sync(self, count: int = 1) -> None:
        self._syncs_until_failure = count

    def fail_reads(self, count: int) -> None:
        """Make the next reads of segments fail."""
        self._reads_to_fail = count

    def crash_after(self, operations: int) -> None:
        """Raise SimCrash after this many more operations (writes, syncs, changes of names); -1 = never."""
        self._operations_until_crash = operations + 1

    def kill(self) -> None:
        """End the process. The page cache is kept."""
        self.faults["kill"] += 1
        self._end_life()

    def _end_life(self) -> None:
        self.life += 1
        self.locked.clear()
        self._writes_until_failure = self._syncs_until_failure = self._operations_until_crash = 0
        self._reads_to_fail = 0

    def power_loss(self) -> None:
        self.faults["power loss"] += 1
        self._end_life()
        nodes: dict[int, _Node] = {}
        for folder in self._folders.values():
            for node in (*folder.current.values(), *folder.durable.values()):
                nodes[id(node)] = node
            self._lose_names(folder)
        for node in nodes.values():
            self.lose_waiting(node)
            if node.current != node.durable:
                node.current = bytearray(node.durable)
        held = {id(node): node for folder in self._folders.values() for node in folder.current.values()}
        self.used_bytes = sum(len(node.current) for node in held.values())

    def _lose_names(self, folder: _Folder) -> None:
        if not folder.waiting:
            return
        kept = self.random.randint(0, len(folder.waiting))
        self.faults["name lost"] += len(folder.waiting) - kept
        _apply_names(folder.durable, folder.waiting[:kept])
        folder.waiting.clear()
        folder.current = dict(folder.durable)

    def lose_waiting(self, node: _Node) -> None:
        """Decide for each pending write whether it is kept, dropped, torn or flipped."""
        kept, dropped, torn = self.fates
        for offset, data in node.waiting:
            fate = self.random.random()
            if fate < kept:
                self.faults["write kept"] += 1
                _put(node.durable, offset, data)
            elif fate < dropped:
                self.faults["write dropped"] += 1
            elif fate < torn:
                self.faults["write torn"] += 1
                self._tear(node, offset, data)
            else:
                self.faults["write flipped"] += 1
                self._flip(node, offset, data)
        node.waiting.clear()

    def _tear(self, node: _Node, offset: int, data: bytes) -> None:
        count = (len(data) + SECTOR_BYTES - 1) // SECTOR_BYTES
        bits = self.random.getrandbits(count) if count else 0
        for sector in range(count):
            if bits >> sector & 1:
                start = sector * SECTOR_BYTES
                _put(node.durable, offset + start, data[start : start + SECTOR_BYTES])

    def _flip(self, node: _Node, offset: int, data: bytes) -> None:
        damaged = bytearray(data)
        if damaged:
            bit = self.random.randrange(8 * len(damaged))
            damaged[bit // 8] ^= 1 << bit % 8
        _put(node.durable, offset, bytes(damaged))

    def damage(self, path: str, offset: int, data: bytes) -> None:
        """Simulate bit rot: change the disk and the page cache without a write."""
        node = self._node(path)
        _put(node.current, offset, data)
        _put(node.durable, offset, data)

    @contextmanager
    def without(self, path: str) -> Iterator[None]:
        """Remove a file, and restore it at the end."""
        folder, name = self._split(path)
        node = folder.current.pop(name)
        durable = folder.durable.pop(name)
        yield
        folder.current[name] = node
        folder.durable[name] = durable

    # Called by files.

    def operate(self) -> None:
        if self._operations_until_crash > 0:
            self._operations_until_crash -= 1
            if not self._operations_until_crash:
                raise SimCrash

    def check_write(self, path: str, grown: int) -> None:
        if self._writes_until_failure > 0:
            self._writes_until_failure -= 1
            if not self._writes_until_failure:
                self.faults["write failed"] += 1
                raise OSError(errno.EIO, f"simulated write failure: {path}")
        if grown > 0 and self.used_bytes + grown > self.capacity_bytes:
            self.faults["no space"] += 1
            raise OSError(errno.ENOSPC, f"simulated full disk: {path}")

    def check_read(self, path: str) -> None:
        is_chosen = self._reads_to_fail > 0 and path.startswith("segments/")
        self._reads_to_fail -= is_chosen
        if is_chosen or path in self.unreadable:
            self.faults["read failed"] += 1
            raise OSError(errno.EIO, f"simulated read failure: {path}")

    def skips(self, label: str) -> bool:
        self.labels[label] += 1
        if label not in self.skip_labels:
            return False
        self.faults["sync skipped"] += 1
        return True

    def sync_fails(self) -> bool:
        if self._syncs_until_failure <= 0:
            return False
        self._syncs_until_failure -= 1
        if self._syncs_until_failure:
            return False
        self.faults["sync failed"] += 1
        return True

    # The disk interface of the journal.

    def _split(self, path: str) -> tuple[_Folder, str]:
        folder, _, name = path.rpartition("/")
        found = self._folders.get(folder)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, path)
        return found, name

    def _node(self, path: str) -> _Node:
        folder, name = self._split(path)
        node = folder.current.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, path)
        return node

    def open(self, path: str, create: bool = False) -> SimFile:
        if not create:
            return SimFile(self, path, self._node(path))
        self.operate()
        folder, name = self._split(path)
        if name in folder.current:
            raise FileExistsError(errno.EEXIST, path)
        node = _Node()
        folder.current[name] = node
        folder.waiting.append((name, None, node))
        return SimFile(self, path, node)

    def exists(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return folder in self._folders and name in self._folders[folder].current

    def list(self, folder: str) -> list[str]:
        return sorted(self._split(f"{folder}/" if folder else "")[0].current)

    def make_folder(self, folder: str) -> None:
        """The folder is durable immediately, which is a simplification."""
        self._folders.setdefault(folder, _Folder())

    def rename(self, old: str, new: str) -> None:
        self.operate()
        node = self._node(old)
        folder, old_name = self._split(old)
        other, new_name = self._split(new)
        assert folder is other, "renaming across folders is not modelled"
        replaced = folder.current.get(new_name)
        if replaced is not None:
            self.used_bytes -= len(replaced.current)
        del folder.current[old_name]
        folder.current[new_name] = node
        folder.waiting.append((old_name, new_name, None))

    def remove(self, path: str) -> None:
        self.operate()
        node = self._node(path)
        folder, name = self._split(path)
        self.used_bytes -= len(node.current)
        del folder.current[name]
        folder.waiting.append((name, None, None))

    def sync_folder(self, folder: str, label: str) -> None:
        self.operate()
        if self.skips(label):
            return
        if self.sync_fails():
            raise OSError(errno.EIO, "simulated sync failure")
        found = self._folders[folder]
        _apply_names(found.durable, found.waiting)
        found.waiting.clear()

    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)

    def lock(self, path: str) -> _SimLock:
        if path in self.locked:
            raise errors.JournalLocked(f"{path} on the simulated disk is in use")
        self.locked.add(path)
        return _SimLock(self, path)


def _apply_names(names: dict[str, _Node], waiting: Sequence[tuple[str, str | None, _Node | None]]) -> None:
    for name, new_name, node in waiting:
        if node is not None:
            names[name] = node
        elif new_name is not None:
            names[new_name] = names.pop(name)
        else:
            del names[name]
