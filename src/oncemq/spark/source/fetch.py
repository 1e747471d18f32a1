"""What a task does: fetch its range from the broker, and hand it to Spark as record batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from oncemq.client.consumer.reader import Reader
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.commands import START_EARLIEST, Read
from oncemq.protocol.replies import BatchHead, GetReply
from oncemq.spark.source.columns import Stored, record_batch
from oncemq.spark.source.ranges import Range

#: What is asked for at a time, and about what a record batch holds.
_PART_BYTES = 2 * 1024 * 1024

_log = logging.getLogger(__name__)


def fetch(client: Client, wanted: Range, columns: Sequence[str], *, fail_on_loss: bool) -> Iterator[Any]:
    """Record batches of a range, all of it. Raises RangeGone, TopicGone or OffsetOutOfRange where it is not there.
    Where loss is accepted, what is left of it."""
    rest = wanted if fail_on_loss else _what_is_left(client, wanted)
    while rest.count:
        try:
            for batches in _batches(client, rest):
                head, _ = batches[-1]
                rest = msgspec.structs.replace(rest, start=head.first_offset + head.count)
                yield record_batch(Stored(wanted.topic, wanted.topic_id, batches), columns)
            break
        except (errors.RangeGone, errors.TopicGone) as error:
            if fail_on_loss:
                raise type(error)(_gone(wanted, error.text)) from None
        # Something went while it was read.
        rest = _what_is_left(client, rest)
    if rest.count and fail_on_loss:
        raise errors.OffsetOutOfRange(
            f"topic '{wanted.topic}' ends at offset {rest.start}, and messages up to {wanted.stop} were there before: "
            "has the broker been restored from an older copy?"
        )


def _batches(client: Client, wanted: Range) -> Iterator[list[tuple[BatchHead, bytes]]]:
    reader = Reader(client._driver, wanted.topic, wanted.start, wanted.stop, False, wanted.topic_id, _PART_BYTES)
    try:
        while batches := client._run(reader.next_batches()):
            yield _within(batches, wanted.stop)
    finally:
        reader.close()


def _gone(wanted: Range, why: str) -> str:
    return (
        f"messages {wanted.start} to {wanted.stop} of '{wanted.topic}' are not all stored any more ({why}); "
        "failOnDataLoss=false (in a pipeline `on_loss: skip`, for an archive --on-loss skip) reads what is left of them"
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
