"""The layout of the journal's folder, and the small headers of its files.

    journal.meta            what the folder is: id, version, sizes
    journal.copying         journal.meta of a copy that is not finished; its last step renames it
    journal.lock            locked while a process uses the folder
    journal.begun           the segment marker: which segment was begun last
    journal.last            a copy of the last group while recovery writes that group again
    segments/000000000001   groups; the name is the number of the segment
    segments/spare-000001   a segment that has no number yet
    snapshots/<sequence>    a state, and the position where replay continues after it
    snapshots/reserve-000001 space for the next snapshot
    cut/                    bytes that recovery or `journal cut` has cut off the end

A position is `segment number * segment_bytes + byte in the segment`. Numbers start at 1 and only grow, so a position is
never used again, whatever file holds it.

All headers have 64 bytes, little-endian, and keep this form in every version: an older program must be able to read the
version of a newer one.

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
from oncemq.journal.contract import GROUP_HEADER_BYTES
from oncemq.protocol import errors
from oncemq.protocol.version import JOURNAL_VERSION

META = "journal.meta"
COPYING = "journal.copying"
LOCK = "journal.lock"
MARKER = "journal.begun"
LAST = "journal.last"
SEGMENTS = "segments"
SNAPSHOTS = "snapshots"
CUT = "cut"

META_MAGIC = b"1MQMETA\0"
SEGMENT_MAGIC = b"1MQSEGM\0"
MARKER_MAGIC = b"1MQBEGN\0"
#: The marker is written before journal.meta has its new version, and must not keep out an older OnceMQ.
_MARKER_VERSION = 1

_HEAD = struct.Struct("<8sII16sQQQ")
_CHECKSUM = struct.Struct("<Q")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size


class Layout(msgspec.Struct, frozen=True):
    """What is fixed when a journal is created."""

    journal_id: bytes
    segment_bytes: int
    block_bytes: int
    #: Seeds the checksum of every group: a payload whose author does not know the journal's id can't imitate a group.
    seed: int

    @property
    def capacity_bytes(self) -> int:
        """The maximum size of the records and events of one group."""
        return self.segment_bytes - self.block_bytes - GROUP_HEADER_BYTES

    def first_position(self, number: int) -> int:
        """Return the position of the first group of a segment."""
        return number * self.segment_bytes + self.block_bytes

    def padded(self, size: int) -> int:
        return size + -size % self.block_bytes


def make_layout(journal_id: bytes, segment_bytes: int, block_bytes: int) -> Layout:
    if len(journal_id) != 16:
        raise errors.JournalError(f"the id of a journal must have 16 bytes, not {len(journal_id)}")
    if block_bytes < 512 or block_bytes & (block_bytes - 1):
        raise errors.JournalError(f"block_bytes must be a power of two and at least 512, not {block_bytes}")
    if segment_bytes % block_bytes or not 4 * block_bytes <= segment_bytes <= 1 << 31:
        raise errors.JournalError(f"segment_bytes {segment_bytes} is not a valid multiple of {block_bytes}")
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
    #: Of the segment; in journal.meta the term.
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
    """Return a whole block, so that the disk need not read the old one."""
    return _encode(SEGMENT_MAGIC, JOURNAL_VERSION, layout, number, first_sequence).ljust(layout.block_bytes, b"\0")


def decode_head(raw: bytes, magic: bytes, path: str) -> Head | None:
    """Return None if there is no such header or it is damaged. Raise JournalVersion if its format is newer."""
    if len(raw) < HEAD_BYTES or raw[:8] != magic:
        return None
    (checksum,) = _CHECKSUM.unpack_from(raw, _HEAD.size)
    if checksum != xxhash.xxh3_64_intdigest(raw[: _HEAD.size]):
        return None
    _, version, block_bytes, journal_id, number, segment_bytes, first_sequence = _HEAD.unpack_from(raw)
    if version > JOURNAL_VERSION:
        raise errors.JournalVersion(
            f"{path} has journal format {version}; this OnceMQ reads formats up to {JOURNAL_VERSION}. Upgrade OnceMQ."
        )
    return Head(version, block_bytes, journal_id, number, segment_bytes, first_sequence)


def decode_segment_head(raw: bytes, layout: Layout, number: int) -> Head | None:
    """Return None unless it is the header of this segment of this journal."""
    head = decode_head(raw, SEGMENT_MAGIC, segment_path(number))
    if head is None or head.number != number or head.journal_id != layout.journal_id:
        return None
    if head.segment_bytes != layout.segment_bytes or head.block_bytes != layout.block_bytes:
        return None
    return head
