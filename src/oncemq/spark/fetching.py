"""What a task does: fetch its range from the broker, and hand it to Spark as record batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from oncemq import errors
from oncemq.client.blocking import Client
from oncemq.client.reading import Reader
from oncemq.engine.commands import START_EARLIEST, Read
from oncemq.engine.replies import BatchHead, GetReply
from oncemq.spark.columns import Stored, record_batch
from oncemq.spark.ranges import Range

#: What is asked for at a time, and about what a record batch holds.
_PART_BYTES = 2 * 1024 * 1024

_log = logging.getLogger(__name__)


def fetch(client: Client, wanted: Range, columns: Sequence[str], *, fail_on_loss: bool) -> Iterator[Any]:
    """Record batches of a range, all of it. Raises RangeGone, TopicGone or OffsetOutOfRange where it is not there."""
    if not fail_on_loss:
        wanted = _what_is_left(client, wanted)
    reader = Reader(client._driver, wanted.topic, wanted.start, wanted.stop, False, wanted.topic_id, _PART_BYTES)
    reached = wanted.start
    try:
        while batches := client._run(reader.next_batches()):
            batches = _within(batches, wanted.stop)
            head, _ = batches[-1]
            reached = head.first_offset + head.count
            yield record_batch(Stored(wanted.topic, wanted.topic_id, batches), columns)
    except errors.RangeGone as error:
        raise errors.RangeGone(_gone(wanted, error.text)) from None
    finally:
        reader.close()
    if reached < wanted.stop and fail_on_loss:
        raise errors.OffsetOutOfRange(
            f"topic '{wanted.topic}' ends at offset {reached}, and messages up to {wanted.stop} were there before: "
            "has the broker been restored from an older copy?"
        )


def _gone(wanted: Range, why: str) -> str:
    return (
        f"messages {wanted.start} to {wanted.stop} of '{wanted.topic}' are not all stored any more ({why}); "
        '.option("failOnDataLoss", "false") reads what is left of them'
    )


def _within(batches: list[tuple[BatchHead, bytes]], stop: int) -> list[tuple[BatchHead, bytes]]:
    """Without what lies at `stop` or behind."""
    found = [batch for batch in batches if batch[0].first_offset < stop]
    head, payload = found[-1]
    beyond = head.first_offset + head.count - stop
    if beyond > 0:
        head = BatchHead(head.first_offset, head.count - beyond, head.skip, head.time_ms, head.checksum)
        found[-1] = (head, payload)
    return found


def _what_is_left(client: Client, wanted: Range) -> Range:
    command = Read(wanted.topic, START_EARLIEST, 1, 0, wanted.topic_id)
    try:
        reply = client._run(client._ask(command, GetReply))
        first = min(max(wanted.start, reply.acked), wanted.stop)
    except (errors.TopicGone, errors.TopicUnknown):
        first = wanted.stop
    if first > wanted.start:
        _log.warning("topic '%s': messages %d to %d are gone", wanted.topic, wanted.start, first)
    return Range(wanted.topic, wanted.topic_id, first, wanted.stop)
