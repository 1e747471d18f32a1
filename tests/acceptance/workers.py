"""Publishers and consumers of the crash campaign: each a process, each with a diary of what it did.

Diaries are appended to with one write per entry, so that SIGKILL leaves whole entries behind:

    publisher   will  TOPIC ID            before the put
                done  TOPIC ID OFFSET     the put was answered; OFFSET -1 where the answer does not say
    consumer    life  N                   a new process begins
                got   OFFSET ID           a message was processed
                acked OFFSET              an ack up to here was answered
    both        error TEXT                something that must not happen

A message's value follows from its id, so that a consumer can check every byte.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType

import msgspec
import xxhash

import oncemq
from oncemq.protocol.errors import BrokerAway, Malformed, Standby

#: Long enough for any restart: these clients never give up.
PATIENT = (0.25, 240)
#: These do, again and again: what they give up may be stored once or not at all.
IMPATIENT = (0.08, 2)
_FILLER_BYTES = (0, 10, 40, 200, 1000, 6000)


class Plan(msgspec.Struct, frozen=True):
    """What a worker is."""

    name: str
    #: A key of PUBLISHERS or CONSUMERS.
    kind: str
    topics: tuple[str, ...]
    is_named: bool = False


def value_of(message_id: str) -> bytes:
    digest = xxhash.xxh3_64_digest(message_id.encode())
    size = _FILLER_BYTES[digest[0] % len(_FILLER_BYTES)]
    return message_id.encode() + b"|" + (digest * (size // 8 + 1))[:size]


def id_of(value: bytes) -> str:
    """Raises Malformed unless the value is one of ours, to the last byte."""
    message_id = value.partition(b"|")[0].decode("utf-8", "replace")
    if value_of(message_id) != value:
        raise Malformed(f"a damaged value: {value[:80]!r}")
    return message_id


class Diary:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *lines: str) -> None:
        os.write(self._descriptor, "".join(line + "\n" for line in lines).encode())


class Worker:
    def __init__(self, plan: Plan, url: str, folder: Path, life: int) -> None:
        self.plan = plan
        self.life = life
        self.diary = Diary(folder / f"{plan.name}.diary")
        self.random = Random(f"{plan.name}/{life}")
        self.is_stopping = False
        self._url = url
        self._folder = folder
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.is_stopping = True

    def run(self) -> int:
        try:
            body = PUBLISHERS.get(self.plan.kind) or CONSUMERS[self.plan.kind]
            body(self)
        except Exception as error:
            self.diary.write(f"error {type(error).__name__}: {' '.join(str(error).split())}")
            return 1
        return 0

    def connect(self, patience: tuple[float, int] = PATIENT) -> oncemq.Client:
        name = self.plan.name if self.plan.is_named else None
        return oncemq.connect(self._url, name=name, timeout_s=patience[0], tries=patience[1], linger_ms=2)

    def end_of(self, topic: str) -> int | None:
        """The offset at which to stop, once it is known."""
        if not self.is_stopping:
            return None
        ends: dict[str, int] = json.loads((self._folder / "ends.json").read_text())
        return ends[topic]


# Publishers.


class Stream:
    """One thread's messages: their ids rise with each put."""

    def __init__(self, worker: Worker, thread: int) -> None:
        self.random = Random(f"{worker.plan.name}/{worker.life}/{thread}")
        self._diary = worker.diary
        self._topics = worker.plan.topics
        self._prefix = f"{worker.plan.name}.{worker.life}.{thread}"
        self._next = 0

    def begin(self, count: int) -> tuple[str, list[str]]:
        topic = self.random.choice(self._topics)
        ids = [f"{self._prefix}.{number}" for number in range(self._next, self._next + count)]
        self._next += count
        self._diary.write(*(f"will {topic} {message_id}" for message_id in ids))
        return topic, ids

    def done(self, topic: str, message_id: str, offset: int) -> None:
        self._diary.write(f"done {topic} {message_id} {offset}")


def publish_singly(worker: Worker) -> None:
    stream = Stream(worker, 0)
    with worker.connect() as client:
        while not worker.is_stopping:
            topic, (message_id,) = stream.begin(1)
            stream.done(topic, message_id, client.put(topic, value_of(message_id)).offset)


def publish_many(worker: Worker) -> None:
    stream = Stream(worker, 0)
    with worker.connect() as client:
        while not worker.is_stopping:
            topic, ids = stream.begin(stream.random.randint(1, 60))
            receipt = client.put_many(topic, [value_of(message_id) for message_id in ids])
            for place, message_id in enumerate(ids):
                stream.done(topic, message_id, receipt.offset + place if receipt.batches == 1 or place == 0 else -1)
            time.sleep(0.01)


def publish_pipelined(worker: Worker) -> None:
    stream = Stream(worker, 0)
    with worker.connect() as client:
        while not worker.is_stopping:
            sent = []
            for _ in range(stream.random.randint(1, 8)):
                topic, ids = stream.begin(stream.random.randint(1, 20))
                sent += [(topic, one, client.put_nowait(topic, value_of(one))) for one in ids]
                if stream.random.random() < 0.3:
                    topic, (single,) = stream.begin(1)
                    stream.done(topic, single, client.put(topic, value_of(single)).offset)
            client.flush()
            for topic, message_id, handle in sent:
                stream.done(topic, message_id, handle.result().offset)
            time.sleep(0.005)


def publish_in_threads(worker: Worker) -> None:
    """Several threads share one client that gives up soon."""
    client = _connect_at_last(worker)
    if client is None:
        return
    failures: list[Exception] = []

    def body(thread: int) -> None:
        try:
            _publish_impatiently(worker, client, Stream(worker, thread))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=body, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            # A short time-out, since signals are handled between joins.
            thread.join(0.1)
    if failures:
        raise failures[0]
    client.close()


def _connect_at_last(worker: Worker) -> oncemq.Client | None:
    while not worker.is_stopping:
        try:
            return worker.connect(IMPATIENT)
        except (BrokerAway, Standby):
            continue
    return None


def _publish_impatiently(worker: Worker, client: oncemq.Client, stream: Stream) -> None:
    while not worker.is_stopping:
        topic, (message_id,) = stream.begin(1)
        try:
            stream.done(topic, message_id, client.put(topic, value_of(message_id)).offset)
        except (BrokerAway, Standby):
            continue
        time.sleep(0.002)


# Consumers.


def consume_by_iterating(worker: Worker) -> None:
    topic = worker.plan.topics[0]
    with worker.connect() as client, client.subscription(topic, worker.plan.name) as subscription:
        worker.diary.write(f"life {worker.life}")
        position = -1
        while (end := worker.end_of(topic)) is None or position < end:
            for message in subscription.messages(timeout_s=0.2):
                worker.diary.write(f"got {message.offset} {id_of(message.value)}")
                position = message.offset + 1
            if end is not None and position < 0:
                position = _acked(client, topic, worker.plan.name)


def consume_with_acks(worker: Worker) -> None:
    """Acks by hand, each of them waited for."""
    topic = worker.plan.topics[0]
    with worker.connect() as client, client.subscription(topic, worker.plan.name, auto_ack=False) as subscription:
        worker.diary.write(f"life {worker.life}")
        position = -1
        while (end := worker.end_of(topic)) is None or position < end:
            messages = subscription.get_many(worker.random.randint(1, 100), timeout_s=0.2)
            if messages:
                worker.diary.write(*(f"got {message.offset} {id_of(message.value)}" for message in messages))
                position = messages[-1].offset + 1
                subscription.ack(messages[-1], wait=True)
                worker.diary.write(f"acked {position}")
            elif end is not None and position < 0:
                position = _acked(client, topic, worker.plan.name)


def _acked(client: oncemq.Client, topic: str, subscriber: str) -> int:
    """Where a subscription stands in which this life found nothing."""
    return next(found.acked for found in client.subscriptions(topic) if found.subscriber == subscriber)


PUBLISHERS: dict[str, Callable[[Worker], None]] = {
    "singly": publish_singly,
    "many": publish_many,
    "pipelined": publish_pipelined,
    "threads": publish_in_threads,
}
CONSUMERS: dict[str, Callable[[Worker], None]] = {
    "iterating": consume_by_iterating,
    "acking": consume_with_acks,
}
