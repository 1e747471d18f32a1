"""On a full disk, decides whether a transaction frees at least as many bytes as it writes.

A message counts if no subscription needs it after the ack, so it counts for at most one ack. Messages that other
subscriptions still need, and retained messages, do not count. Each message counts as its share of its batch, although
a batch is deleted as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oncemq.engine import events
from oncemq.engine.state.batch_index import EXPIRED, BatchIndex
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.journal.contract import record_bytes

#: Tolerance per message: a dead letter has headers that the original message does not have.
TOLERANCE_BYTES = 1024


def frees_bytes(state: State, acks: Iterable[events.Acked | events.Settled], need_bytes: int) -> bool:
    """Return whether acks free at least `need_bytes`."""
    for ack in acks:
        topic = state.topics_by_id[ack.topic_id]
        if topic.retained:
            continue
        subscription = topic.subscriptions[ack.subscriber]
        end_max = _low_watermark_of_others(topic, subscription)
        for first, end in _acked_ranges(ack, subscription):
            for size in _sizes(topic.index, max(first, topic.index.first), min(end, end_max)):
                need_bytes -= size
                if need_bytes <= 0:
                    return True
    return False


def _low_watermark_of_others(topic: Topic, subscription: Subscription) -> int:
    others = (other.acked for other in topic.subscriptions.values() if other is not subscription)
    return min(others, default=topic.next_offset)


def _acked_ranges(ack: events.Acked | events.Settled, subscription: Subscription) -> Iterator[tuple[int, int]]:
    if isinstance(ack, events.Acked):
        yield subscription.acked, ack.upto
    else:
        yield from ((first, first + count) for _, first, count in ack.done)


def _sizes(index: BatchIndex, first: int, end: int) -> Iterator[int]:
    """Yield the bytes of the messages of a range, batch by batch."""
    entry = index.find(first)
    while first < end:
        upto = min(end, index.ends[entry])
        if index.expires[entry] != EXPIRED:
            count = index.ends[entry] - index.first_offset(entry)
            yield (upto - first) * (record_bytes(index.sizes[entry]) // count + TOLERANCE_BYTES)
        first = upto
        entry += 1
