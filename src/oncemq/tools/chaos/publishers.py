"""Publishers: with an outbox, whose puts survive a crash of the publisher, and plain ones."""

from __future__ import annotations

import time

import oncemq
from oncemq.tools.chaos.plan import TOPICS
from oncemq.tools.chaos.worker import ACKNOWLEDGED, ATTEMPTED, Worker
from oncemq.tools.faults.event_log import MessageStream, value_of

_BATCH_MAX = 5
_PAUSE_S_MAX = 0.02
#: With more than this in its outbox a publisher waits for the broker.
_PENDING_MAX = 200
_FLUSH_S = 30.0


def publish_through_outbox(worker: Worker) -> None:
    """Put into an outbox until the worker is stopped, then empty the outbox."""
    stream = MessageStream(worker.log, f"{worker.name}.{worker.incarnation}")
    outbox = worker.context.folder / f"{worker.name}.outbox"
    with oncemq.connect(worker.context.url, outbox=outbox, **worker.connect_options()) as client:
        while not worker.stop.is_set:
            topic, messages = attempt(worker, stream, worker.random.randint(1, _BATCH_MAX))
            client.put_many(topic, map(value_of, messages))
            _acknowledge(worker, stream, topic, messages, -1)
            while client.pending > _PENDING_MAX and not worker.stop.is_set:
                time.sleep(_PAUSE_S_MAX)
        client.flush(timeout_s=_FLUSH_S)


def publish_plainly(worker: Worker) -> None:
    """Put directly to the broker until the worker is stopped."""
    stream = MessageStream(worker.log, f"{worker.name}.{worker.incarnation}")
    if worker.stop.is_set:
        return
    with oncemq.connect(worker.context.url, label=worker.name, **worker.connect_options()) as client:
        while not worker.stop.is_set:
            topic, messages = attempt(worker, stream, worker.random.randint(1, _BATCH_MAX))
            receipt = client.put_many(topic, map(value_of, messages))
            _acknowledge(worker, stream, topic, messages, receipt.offset)


def attempt(worker: Worker, stream: MessageStream, size: int) -> tuple[str, list[str]]:
    """Return a topic and the ids of the next messages."""
    topic = worker.random.choice(TOPICS)
    worker.count(ATTEMPTED, size)
    return topic, stream.attempt(topic, size)


def _acknowledge(worker: Worker, stream: MessageStream, topic: str, messages: list[str], first_offset: int) -> None:
    stream.acknowledge(topic, messages, first_offset)
    worker.count(ACKNOWLEDGED, len(messages))
    time.sleep(worker.random.uniform(0, _PAUSE_S_MAX))
