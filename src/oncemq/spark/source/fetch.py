"""Reads a range of offsets from the broker in a Spark task, and converts it to Arrow record batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from oncemq.arrow.columns import FetchedBatches
from oncemq.client.internal import internal_api
from oncemq.client.sync import Client
from oncemq.protocol import errors
from oncemq.protocol.commands import START_EARLIEST, Read
from oncemq.protocol.replies import BatchHead, GetReply
from oncemq.spark.source.ranges import Range

#: The size of one request.
_FETCH_BYTES = 4 * 1024 * 1024
#: Stored batches become one record batch until it is this large. A stored batch of this size is not copied.
_RECORD_BATCH_BYTES = 1024 * 1024

_log = logging.getLogger(__name__)


def fetch(
    client: Client, wanted: Range, convert: Callable[[FetchedBatches], Any], *, fail_on_loss: bool
) -> Iterator[Any]:
    """Yield the record batches of a whole range, which `convert` makes of stored batches.

    If messages are missing, raises RangeGone, TopicGone or OffsetOutOfRange. With `fail_on_loss=False`, logs a warning
    and yields the messages that are left."""
    rest = wanted if fail_on_loss else _stored_part(client, wanted)
    while rest.count:
        try:
            for batches in _record_batches(client, rest):
                head, _ = batches[-1]
                rest = msgspec.structs.replace(rest, start=head.first_offset + head.count)
                yield convert(FetchedBatches(wanted.topic, wanted.topic_id, batches))
            break
        except (errors.RangeGone, errors.TopicGone) as error:
            if fail_on_loss:
                raise type(error)(
                    f"messages {wanted.start} to {wanted.stop} of '{wanted.topic}' are no longer all stored "
                    f"({error.text}); failOnDataLoss=false (in a pipeline `on_loss: skip`, for an archive "
                    "--on-loss skip) reads the messages that are left"
                ) from None
        # Some messages were deleted during the read.
        rest = _stored_part(client, rest)
    if rest.count and fail_on_loss:
        raise errors.OffsetOutOfRange(
            f"topic '{wanted.topic}' ends at offset {rest.start}, but it had messages up to {wanted.stop} before: "
            "has the broker been restored from an older copy?"
        )


def _record_batches(client: Client, wanted: Range) -> Iterator[list[tuple[BatchHead, bytes]]]:
    """Yield the stored batches of each record batch."""
    topic, topic_id = wanted.topic, wanted.topic_id
    for fetched in internal_api(client).read_batches(topic, wanted.start, wanted.stop, topic_id, _FETCH_BYTES):
        group: list[tuple[BatchHead, bytes]] = []
        size = 0
        for batch in fetched:
            group.append(batch)
            size += len(batch[1])
            if size >= _RECORD_BATCH_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group


def _stored_part(client: Client, wanted: Range) -> Range:
    """The part of a range that is still stored. Expiry and deletion always remove the oldest messages first."""
    command = Read(wanted.topic, START_EARLIEST, 1, 0, wanted.topic_id)
    try:
        reply = internal_api(client).ask(command, GetReply)
        first = min(max(wanted.start, reply.acked), wanted.stop)
    except (errors.TopicGone, errors.TopicUnknown):
        first = wanted.stop
    if first > wanted.start:
        _log.warning("topic '%s': messages %d to %d are no longer stored", wanted.topic, wanted.start, first)
    return Range(wanted.topic, wanted.topic_id, first, wanted.stop)
