"""Compares the micro-batches that a target recorded with those of the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from oncemq.spark.audit.pipelines.checkpoint import Batch, Checkpoint
from oncemq.spark.audit.pipelines.targets import TargetContent

#: (kind, number of the micro-batch, detail)
BatchFault = tuple[str, int, str]


def compare_batches(
    before: Checkpoint, after: Checkpoint, content: TargetContent, *, is_one_to_one: bool
) -> Iterator[BatchFault]:
    """`before` and `after`: the checkpoint before and after the target was read, because the query may be running.

    `is_one_to_one`: each message is one row, so the number of rows of each micro-batch is known."""
    yield from _extra(after, content)
    for batch in before.batches:
        if batch.is_committed and batch.messages:
            yield from _missing(batch, content, is_one_to_one=is_one_to_one)


def _extra(checkpoint: Checkpoint, content: TargetContent) -> Iterator[BatchFault]:
    numbers = {number for number, rows in (content.rows_by_batch or {}).items() if rows}
    if content.last_batch is not None:
        numbers.add(content.last_batch)
    for number in sorted(numbers):
        if number > checkpoint.last_planned:
            last = f"the checkpoint ends with micro-batch {checkpoint.last_planned}"
            yield "extra_batch", number, f"{last}: it lost entries, or is an older copy"


def _missing(batch: Batch, content: TargetContent, *, is_one_to_one: bool) -> Iterator[BatchFault]:
    if is_one_to_one and content.rows_by_batch is not None:
        found = content.rows_by_batch.get(batch.number, 0)
        if batch.is_start_known and found != batch.messages:
            kind = "wrong_count" if found else "missing_batch"
            yield kind, batch.number, f"{found:,} rows of {batch.messages:,} messages"
        return
    is_recorded = is_one_to_one or content.records_empty_batches
    if is_recorded and content.last_batch is not None and batch.number > content.last_batch:
        detail = f"the last micro-batch of the target is {content.last_batch}"
        yield "missing_batch", batch.number, detail


def compare_contents(
    checkpoint: Checkpoint, content: TargetContent, digest_of: Callable[[int], bytes]
) -> Iterator[BatchFault]:
    """Compare the digests that the target recorded with those of the same micro-batches in the checkpoint.

    `digest_of` returns the digest of a micro-batch of the checkpoint; b"" = it can't be read."""
    kept = {batch.number for batch in checkpoint.batches}
    for number, recorded in sorted(content.contents.items()):
        # The digest of a micro-batch includes its start, which is the end of the previous one.
        if number not in kept or (number and number - 1 not in kept):
            continue
        digest = digest_of(number)
        if digest and recorded and content.stored_digest(digest) != recorded:
            yield "changed_batch", number, "the target recorded other offsets for it"
