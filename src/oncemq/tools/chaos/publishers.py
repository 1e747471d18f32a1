"""Publishers: with an outbox, whose puts outlive a crash, and plain ones, whose puts are answered by the broker."""

from __future__ import annotations

import time

import oncemq
from oncemq.tools.chaos.event_log import message_id, values_of
from oncemq.tools.chaos.plan import TOPICS
from oncemq.tools.chaos.worker import ACKNOWLEDGED, ATTEMPTED, Worker

_TOGETHER_MAX = 5
_PAUSE_S_MAX = 0.02
#: With so much in the outbox a publisher waits for the broker.
_PENDING_MAX = 200
_FLUSH_S = 30.0


class Stream:
    """One life's messages: their numbers rise with each put."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._next = 0

    def begin(self) -> tuple[str, list[str]]:
        """What is put next, and where."""
        worker = self._worker
        topic, size = worker.random.choice(TOPICS), worker.random.randint(1, _TOGETHER_MAX)
        messages = [message_id(worker.name, worker.life, self._next + place) for place in range(size)]
        self._next += size
        worker.diary.write(*(("will", topic, message) for message in messages))
        worker.count(ATTEMPTED, size)
        return topic, messages

    def done(self, topic: str, messages: list[str], first_offset: int) -> None:
        """Offset -1: not known yet."""
        offsets = [-1 if first_offset < 0 else first_offset + place for place in range(len(messages))]
        entries = [("done", topic, message, offset) for message, offset in zip(messages, offsets, strict=True)]
        self._worker.diary.write(*entries)
        self._worker.count(ACKNOWLEDGED, len(messages))


def publish_through_outbox(worker: Worker) -> None:
    stream = Stream(worker)
    outbox = worker.scene.folder / f"{worker.name}.outbox"
    with oncemq.connect(worker.scene.url, outbox=outbox, **worker.connecting()) as client:
        while not worker.is_ending:
            topic, messages = stream.begin()
            client.put_many(topic, values_of(messages))
            stream.done(topic, messages, -1)
            _pause(worker)
            while client.pending > _PENDING_MAX and not worker.is_ending:
                time.sleep(_PAUSE_S_MAX)
        client.flush(timeout_s=_FLUSH_S)


def publish_plainly(worker: Worker) -> None:
    stream = Stream(worker)
    if worker.is_ending:
        return
    with oncemq.connect(worker.scene.url, label=worker.name, **worker.connecting()) as client:
        while not worker.is_ending:
            topic, messages = stream.begin()
            stream.done(topic, messages, client.put_many(topic, values_of(messages)).offset)
            _pause(worker)


def _pause(worker: Worker) -> None:
    time.sleep(worker.random.uniform(0, _PAUSE_S_MAX))
