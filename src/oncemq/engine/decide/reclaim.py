"""Whether acks let go of as many bytes as a transaction puts. Asked on a full disk alone. Decides; changes nothing.

A message counts for the ack after which no subscription needs it, so for one ack at the most. What others still need,
and what is retained, does not count. Of a batch each message counts as its share, though the batch goes as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oncemq.engine import events
from oncemq.engine.state.batch_index import EXPIRED, BatchIndex
from oncemq.engine.state.state import State
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.journal.contract import record_bytes

#: So much more than each message may what is put for it take: a dead letter has headers that the message had not.
MORE_BYTES = 1024


def lets_go(state: State, acks: Iterable[events.Acked | events.Settled], need_bytes: int) -> bool:
    for ack in acks:
        topic = state.topics_by_id[ack.topic_id]
        if topic.retained:
            continue
        subscription = topic.subscriptions[ack.subscriber]
        end_max = _needed_by_others(topic, subscription)
        for first, end in _done(ack, subscription):
            for size in _sizes(topic.index, max(first, topic.index.first), min(end, end_max)):
                need_bytes -= size
                if need_bytes <= 0:
                    return True
    return False


def _needed_by_others(topic: Topic, subscription: Subscription) -> int:
    others = (other.acked for other in topic.subscriptions.values() if other is not subscription)
    return min(others, default=topic.next_offset)


def _done(ack: events.Acked | events.Settled, subscription: Subscription) -> Iterator[tuple[int, int]]:
    if isinstance(ack, events.Acked):
        yield subscription.acked, ack.upto
    else:
        yield from ((first, first + count) for _, first, count in ack.done)


def _sizes(index: BatchIndex, first: int, end: int) -> Iterator[int]:
    """What the messages of a range take, batch by batch."""
    entry = index.find(first)
    while first < end:
        upto = min(end, index.ends[entry])
        if index.expires[entry] != EXPIRED:
            count = index.ends[entry] - index.first_offset(entry)
            yield (upto - first) * (record_bytes(index.sizes[entry]) // count + MORE_BYTES)
        first = upto
        entry += 1
