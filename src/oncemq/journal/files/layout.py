"""Where things lie in the journal's folder, and the small heads that say so.

    journal.meta            what the folder is: id, version, sizes
    journal.lock            held while a process uses it
    journal.begun           which segment was begun last
    journal.last            the last group's copy while recovery writes that group again
    segments/000000000001   groups; the name is the segment's number
    segments/spare-000001   a segment that waits for its number
    snapshots/<sequence>    a state, and where replay goes on behind it
    snapshots/reserve-000001 room for the next snapshot
    cut/                    bytes that recovery or `journal cut` took off the end

A position is `segment number * segment_bytes + byte in the segment`. Numbers start at 1 and only grow, so a
position never comes back, whichever file holds it.

All heads have 64 bytes, little-endian, and keep this form in every version: an older program must be able to
read the version of a newer one.

    journal.meta                         first block of a segment, and "1MQBEGN\\0" in journal.begun
    byte  0  8s   "1MQMETA\\0"            0  8s   "1MQSEGM\\0"
          8  u32  JOURNAL_VERSION         8  u32  JOURNAL_VERSION; in journal.begun 1
         12  u32  block_bytes            12  u32  block_bytes
         16  16s  journal id             16  16s  journal id
         32  u64  term, of a copy        32  u64  segment number
         40  u64  segment_bytes          40  u64  segment_bytes
         48  u64  0                      48  u64  sequence of its first group; in journal.begun 0
         56  u64  XXH3 of the above      56  u64  XXH3 of the above
"""

from __future__ import annotations

import struct

import msgspec
import xxhash

from oncemq.disk.contract import Disk
from oncemq.protocol import errors
from oncemq.protocol.version import JOURNAL_VERSION

META = "journal.meta"
LOCK = "journal.lock"
MARKER = "journal.begun"
LAST = "journal.last"
SEGMENTS = "segments"
SNAPSHOTS = "snapshots"
CUT = "cut"

META_MAGIC = b"1MQMETA\0"
SEGMENT_MAGIC = b"1MQSEGM\0"
MARKER_MAGIC = b"1MQBEGN\0"
#: It is written before journal.meta has its new version, and must not keep an older OnceMQ away.
_MARKER_VERSION = 1

_HEAD = struct.Struct("<8sII16sQQQ")
_CHECKSUM = struct.Struct("<Q")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size

#: In front of every group's records; see group.py.
GROUP_HEADER_BYTES = 64


class Layout(msgspec.Struct, frozen=True):
    """What is fixed when a journal is made."""

    journal_id: bytes
    segment_bytes: int
    block_bytes: int
    #: Of every group's checksum: a payload that does not know the journal's id can't pose as a group.
    seed: int

    @property
    def capacity_bytes(self) -> int:
        """Records and events of the largest group."""
        return self.segment_bytes - self.block_bytes - GROUP_HEADER_BYTES

    def first_position(self, number: int) -> int:
        """Of a segment's first group."""
        return number * self.segment_bytes + self.block_bytes

    def padded(self, size: int) -> int:
        return size + -size % self.block_bytes


def make_layout(journal_id: bytes, segment_bytes: int, block_bytes: int) -> Layout:
    if len(journal_id) != 16:
        raise errors.JournalError(f"a journal's id has 16 bytes, not {len(journal_id)}")
    if block_bytes < 512 or block_bytes & (block_bytes - 1):
        raise errors.JournalError(f"block_bytes {block_bytes} is not a power of two of at least 512")
    if segment_bytes % block_bytes or not 4 * block_bytes <= segment_bytes <= 1 << 31:
        raise errors.JournalError(f"segment_bytes {segment_bytes} does not fit blocks of {block_bytes}")
    seed = xxhash.xxh3_64_intdigest(b"oncemq group seed" + journal_id)
    return Layout(journal_id, segment_bytes, block_bytes, seed)


def segment_path(number: int) -> str:
    return f"{SEGMENTS}/{number:012d}"


def segment_numbers(disk: Disk) -> list[int]:
    return [int(name) for name in disk.list(SEGMENTS) if name.isdigit()]


class Head(msgspec.Struct, frozen=True):
    version: int
    block_bytes: int
    journal_id: bytes
    #: In journal.meta: the term.
    number: int
    segment_bytes: int
    first_sequence: int


def _encode(magic: bytes, version: int, layout: Layout, number: int, first_sequence: int) -> bytes:
    raw = _HEAD.pack(
        magic, version, layout.block_bytes, layout.journal_id, number, layout.segment_bytes, first_sequence
    )
    return raw + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))


def encode_meta(layout: Layout, term: int) -> bytes:
    return _encode(META_MAGIC, JOURNAL_VERSION, layout, term, 0)


def encode_marker(layout: Layout, number: int) -> bytes:
    return _encode(MARKER_MAGIC, _MARKER_VERSION, layout, number, 0)


def encode_segment_head(layout: Layout, number: int, first_sequence: int) -> bytes:
    """A whole block, so that no older block has to be read for it."""
    return _encode(SEGMENT_MAGIC, JOURNAL_VERSION, layout, number, first_sequence).ljust(layout.block_bytes, b"\0")


def decode_head(raw: bytes, magic: bytes, path: str) -> Head | None:
    """None where there is no such head, or a damaged one. Raises JournalVersion for a newer one."""
    if len(raw) < HEAD_BYTES or raw[:8] != magic:
        return None
    (checksum,) = _CHECKSUM.unpack_from(raw, _HEAD.size)
    if checksum != xxhash.xxh3_64_intdigest(raw[: _HEAD.size]):
        return None
    _, version, block_bytes, journal_id, number, segment_bytes, first_sequence = _HEAD.unpack_from(raw)
    if version > JOURNAL_VERSION:
        raise errors.JournalVersion(
            f"{path} has journal format {version}; this OnceMQ knows {JOURNAL_VERSION}. Upgrade OnceMQ."
        )
    return Head(version, block_bytes, journal_id, number, segment_bytes, first_sequence)


def decode_segment_head(raw: bytes, layout: Layout, number: int) -> Head | None:
    """None unless it is this journal's head of this very segment."""
    head = decode_head(raw, SEGMENT_MAGIC, segment_path(number))
    if head is None or head.number != number or head.journal_id != layout.journal_id:
        return None
    if head.segment_bytes != layout.segment_bytes or head.block_bytes != layout.block_bytes:
        return None
    return head
