"""What a target contains of a pipeline: its rows, and the micro-batches that it recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TargetContent(msgspec.Struct, frozen=True, kw_only=True):
    #: The rows, with the columns `topic`, `topic_id` and `offset` if they have an identity. None: they can't be read.
    rows: DataFrame | None
    #: The number of rows, without those of other writers as far as they are known.
    count: int | None = None
    #: The last micro-batch that the target recorded; -1 = none, None = the target records none.
    last_batch: int | None = None
    #: Whether the target also records micro-batches without rows.
    records_empty_batches: bool = False
    #: The rows of each micro-batch; None = the target does not say to which one a row belongs.
    rows_by_batch: Mapping[int, int] | None = None
    #: Digests of the micro-batches, as far as the target recorded them.
    contents: Mapping[int, bytes] = {}
    #: What the target stores of a digest.
    stored_digest: Callable[[bytes], bytes] = bytes
    #: Files that the target should have and does not have.
    missing_files: tuple[str, ...] = ()
    #: Whether others write into the target too; None = not known.
    has_other_writers: bool | None = None
    #: The target may have deleted its oldest rows.
    is_trimmed: bool = False
    remarks: tuple[str, ...] = ()
