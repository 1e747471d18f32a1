"""What identifies the content of a micro-batch: where it starts and ends on each source of the query.

Spark numbers micro-batches. A checkpoint that lost its last entries, or is an older copy, uses numbers again for other
messages, and a sink that only compares numbers takes them for repetitions. So sinks store this digest with each batch.

The rows themselves are no identity: a replay may compute other values from the same messages, such as the current time,
and may partition and order them differently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import msgspec

from oncemq.protocol import errors
from oncemq.spark.checkpoint.location import CheckpointFiles

DIGEST_BYTES = 16
#: What to do about a batch number that comes back with other content.
REMEDY = (
    "The checkpoint has lost its last entries, or is an older copy. Nothing was written. Restore the newest copy of "
    "it; or start with a new checkpoint, which continues at the position of the subscription"
)


def batch_content(location: str, batch_id: int) -> bytes:
    """The digest of a micro-batch that Spark has planned; b"" if the checkpoint can't be read from here.

    Raises OnceMQError if the checkpoint does not contain the micro-batch."""
    files = CheckpointFiles(location)
    if not files.find():
        return b""
    end = _offsets(files, batch_id)
    if end is None:
        raise errors.OnceMQError(
            f"the checkpoint {location} does not contain micro-batch {batch_id}, which is being written: were its "
            "files deleted while the query was running?"
        )
    return digest([_offsets(files, batch_id - 1) if batch_id else [], end])


def query_content(query_id: str, batch_id: int) -> bytes:
    """The digest of a micro-batch whose checkpoint is not known."""
    return digest([query_id, batch_id])


def digest(parts: object) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(parts, order="deterministic"), digest_size=DIGEST_BYTES).digest()


def refuse_other_content(target: str, batch_id: int, last_batch: int, *, is_same: bool) -> None:
    """Refuse a batch that is not above the last one of its query in the target, unless it is the last one itself.

    Raises BatchChanged."""
    if is_same:
        return
    if batch_id == last_batch:
        what = f"{target} already contains batch {batch_id} of this query, with other messages"
    else:
        what = f"{target} already contains batch {last_batch} of this query, and this is batch {batch_id}"
    raise errors.BatchChanged(f"{what}. {REMEDY}")


def _offsets(files: CheckpointFiles, batch_id: int) -> list[object] | None:
    """The offsets of all sources after a micro-batch; None if the checkpoint does not contain it.

    An entry has a line with the version of its format, a line with settings and times, and a line for each source."""
    raw = files.read(f"offsets/{batch_id}")
    if raw is None:
        return None
    lines = raw.decode("utf-8", "replace").splitlines()[2:]
    return [[_parsed(line), *_files_of(files, index, line)] for index, line in enumerate(lines)]


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return line


def _files_of(files: CheckpointFiles, source: int, line: str) -> Iterable[str]:
    """Spark's file source only numbers its micro-batches. Their files are in a log of its own."""
    offset = _parsed(line)
    if not isinstance(offset, dict) or not isinstance(number := offset.get("logOffset"), int):
        return
    for name in (f"sources/{source}/{number}", f"sources/{source}/{number}.compact"):
        raw = files.read(name)
        if raw is not None:
            yield raw.decode("utf-8", "replace")
