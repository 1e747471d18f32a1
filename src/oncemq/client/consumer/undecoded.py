"""Messages and undecoded batches, each as the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oncemq.protocol.batch import encode_batch
from oncemq.protocol.message import Message
from oncemq.protocol.replies import BatchHead

Batches = list[tuple[BatchHead, bytes]]


def batches_of(messages: Sequence[Message]) -> Batches:
    """Encode messages of one topic, some of which may have been left out, as batches again."""
    return [_batch_of(run) for run in _runs(messages)]


def _batch_of(run: Sequence[Message]) -> tuple[BatchHead, bytes]:
    first = run[0]
    payload = encode_batch(
        [message.value for message in run],
        [message.key for message in run],
        [message.headers for message in run],
        [message.timestamp_ms for message in run],
        first.schema_version,
    )
    # The checksum was verified when the messages arrived.
    return BatchHead(first.offset, len(run), 0, first.timestamp_ms, 0), payload


def _runs(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yield messages without a gap between their offsets, and with the same version of the schema."""
    start = 0
    for index in range(1, len(messages) + 1):
        before = messages[index - 1]
        if index == len(messages) or (messages[index].offset, messages[index].schema_version) != (
            before.offset + 1,
            before.schema_version,
        ):
            yield messages[start:index]
            start = index


def ends_of(topic: str, topic_id: int, batches: Sequence[tuple[BatchHead, bytes]]) -> list[Message]:
    """Return the first and the last message of batches, without their values: where they begin and end."""
    first, last = batches[0][0], batches[-1][0]
    return [
        Message(topic, first.first_offset, b"", None, {}, first.time_ms, topic_id),
        Message(topic, last.first_offset + last.count - 1, b"", None, {}, last.time_ms, topic_id),
    ]
