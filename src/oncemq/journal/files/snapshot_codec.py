"""The codec of snapshots: a state in opaque chunks, and the position where replay continues after it.

    file     header 64 | chunk | chunk | …        (bytes after the last chunk have no meaning)
    chunk    u32 size | bytes

    header   byte  0  8s   "1MQSNAP\\0"
                   8  u32  SNAPSHOT_VERSION
                  12  u32  count of chunks
                  16  16s  journal id
                  32  u64  sequence of the last group that the state holds; also the file name
                  40  u64  position where replay continues
                  48  u64  bytes of all chunks, their sizes included
                  56  u64  checksum: XXH3 of the header up to here and the XXH3 (u64) of the chunks, both seeded

The header is written last. Little-endian.
"""

from __future__ import annotations

import struct

import msgspec
import xxhash

from oncemq.disk.contract import Disk, DiskFile
from oncemq.journal.files.layout import SNAPSHOTS, Layout
from oncemq.protocol import errors
from oncemq.protocol.version import SNAPSHOT_VERSION

MAGIC = b"1MQSNAP\0"
READ_CHUNK_BYTES = 1024 * 1024

_HEAD = struct.Struct("<8sII16sQQQ")
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _U64.size


class SnapshotHead(msgspec.Struct, frozen=True):
    sequence: int
    position: int
    chunks: int
    #: Of all chunks, including their sizes.
    chunks_bytes: int


class SnapshotInvalid(Exception):
    """The file is not a complete, undamaged snapshot of this journal; the text says why."""


def snapshot_path(sequence: int) -> str:
    return f"{SNAPSHOTS}/{sequence:020d}"


def encode_chunk_size(size: int) -> bytes:
    return _U32.pack(size)


def encode_head(layout: Layout, head: SnapshotHead, chunks_digest: int) -> bytes:
    raw = _HEAD.pack(
        MAGIC, SNAPSHOT_VERSION, head.chunks, layout.journal_id, head.sequence, head.position, head.chunks_bytes
    )
    return raw + _checksum(raw, chunks_digest, layout)


def _checksum(raw: bytes, chunks_digest: int, layout: Layout) -> bytes:
    return _U64.pack(xxhash.xxh3_64_intdigest(raw + _U64.pack(chunks_digest), layout.seed))


def _read_head(file: DiskFile, layout: Layout, sequence: int) -> SnapshotHead:
    """Verify a whole snapshot and return its header."""
    raw = file.read(0, HEAD_BYTES)
    if len(raw) < HEAD_BYTES or raw[:8] != MAGIC:
        raise SnapshotInvalid("there is no snapshot header")
    _, version, chunks, journal_id, own, position, size = _HEAD.unpack_from(raw)
    if journal_id != layout.journal_id:
        raise SnapshotInvalid("it belongs to another journal")
    if version > SNAPSHOT_VERSION:
        raise errors.JournalVersion(
            f"{snapshot_path(sequence)} has snapshot format {version}; "
            f"this OnceMQ reads formats up to {SNAPSHOT_VERSION}. Upgrade OnceMQ."
        )
    if own != sequence or HEAD_BYTES + size > file.size():
        raise SnapshotInvalid("its header does not match the file")
    digest = xxhash.xxh3_64(seed=layout.seed)
    for offset in range(0, size, READ_CHUNK_BYTES):
        digest.update(file.read(HEAD_BYTES + offset, min(READ_CHUNK_BYTES, size - offset)))
    if raw[_HEAD.size :] != _checksum(raw[: _HEAD.size], digest.intdigest(), layout):
        raise SnapshotInvalid("its checksum is wrong")
    return SnapshotHead(own, position, chunks, size)


def load_snapshot(disk: Disk, layout: Layout, path: str, *, with_chunks: bool) -> tuple[SnapshotHead, list[bytes]]:
    """Verify a whole snapshot, and return its header and, if wanted, its chunks. Raise SnapshotInvalid, JournalVersion,
    or OSError if it can't be read."""
    file = disk.open(path)
    try:
        head = _read_head(file, layout, int(path.rpartition("/")[2]))
        return head, _read_chunks(file, head) if with_chunks else []
    finally:
        file.close()


def _read_chunks(file: DiskFile, head: SnapshotHead) -> list[bytes]:
    """Return the chunks of a snapshot that was verified."""
    data = file.read(HEAD_BYTES, head.chunks_bytes)
    chunks = []
    at = 0
    for _ in range(head.chunks):
        (size,) = _U32.unpack_from(data, at)
        chunks.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return chunks
