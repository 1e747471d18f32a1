"""Publishers and consumers of the broker campaign. Each is a process with an event log of what it did."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

import oncemq
from oncemq.protocol.errors import BrokerAway, Standby
from oncemq.tools.faults.event_log import EventLog, MessageStream, id_of, value_of
from oncemq.tools.faults.processes import StopRequest

#: (timeout_s, tries) of clients that outlast any restart.
PATIENT = (0.25, 240)
#: Of clients that give up: their messages may be stored once or not at all.
IMPATIENT = (0.08, 2)


class ClientPlan(msgspec.Struct, frozen=True):
    """A client of the campaign."""

    name: str
    #: A key of PUBLISHERS or CONSUMERS.
    kind: str
    topics: tuple[str, ...]
    is_named: bool = False


class BrokerClient:
    """One process of a client. `incarnation` counts them."""

    def __init__(self, plan: ClientPlan, url: str, folder: Path, incarnation: int) -> None:
        self.plan = plan
        self.incarnation = incarnation
        self.log = EventLog(folder / f"{plan.name}.events")
        self.random = Random(f"{plan.name}/{incarnation}")
        self.stop = StopRequest()
        self._url = url
        self._folder = folder

    def run(self) -> int:
        with self.log.errors():
            body = PUBLISHERS.get(self.plan.kind) or CONSUMERS[self.plan.kind]
            body(self)
        return 0

    def connect(self, patience: tuple[float, int] = PATIENT) -> oncemq.Client:
        name = self.plan.name if self.plan.is_named else None
        return oncemq.connect(self._url, name=name, timeout_s=patience[0], tries=patience[1], linger_ms=2)

    def end_of(self, topic: str) -> int | None:
        """Return the offset at which to stop, when it is known."""
        if not self.stop.is_set:
            return None
        ends: dict[str, int] = json.loads((self._folder / "ends.json").read_text())
        return ends[topic]


# Publishers.


class Stream(MessageStream):
    """The messages of one thread, to random topics."""

    def __init__(self, client: BrokerClient, thread: int) -> None:
        super().__init__(client.log, f"{client.plan.name}.{client.incarnation}.{thread}")
        self.random = Random(f"{client.plan.name}/{client.incarnation}/{thread}")
        self._topics = client.plan.topics

    def begin(self, count: int) -> tuple[str, list[str]]:
        topic = self.random.choice(self._topics)
        return topic, self.attempt(topic, count)

    def put_one(self, client: oncemq.Client) -> None:
        topic, [message] = self.begin(1)
        self.acknowledge(topic, [message], client.put(topic, value_of(message)).offset)


def publish_singly(worker: BrokerClient) -> None:
    stream = Stream(worker, 0)
    with worker.connect() as client:
        while not worker.stop.is_set:
            stream.put_one(client)


def publish_many(worker: BrokerClient) -> None:
    stream = Stream(worker, 0)
    with worker.connect() as client:
        while not worker.stop.is_set:
            topic, messages = stream.begin(stream.random.randint(1, 60))
            receipt = client.put_many(topic, map(value_of, messages))
            if receipt.batches == 1:
                stream.acknowledge(topic, messages, receipt.offset)
            else:
                # Other messages may be stored between the batches.
                stream.acknowledge(topic, messages[:1], receipt.offset)
                stream.acknowledge(topic, messages[1:])
            time.sleep(0.01)


def publish_pipelined(worker: BrokerClient) -> None:
    stream = Stream(worker, 0)
    with worker.connect() as client:
        while not worker.stop.is_set:
            sent = []
            for _ in range(stream.random.randint(1, 8)):
                topic, messages = stream.begin(stream.random.randint(1, 20))
                sent += [(topic, message, client.put_nowait(topic, value_of(message))) for message in messages]
                if stream.random.random() < 0.3:
                    stream.put_one(client)
            client.flush()
            for topic, message, handle in sent:
                stream.acknowledge(topic, [message], handle.result().offset)
            time.sleep(0.005)


def publish_in_threads(worker: BrokerClient) -> None:
    """Several threads share one impatient client."""
    client = _connect_with_retries(worker)
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
            # A short timeout, because signals are handled between joins.
            thread.join(0.1)
    if failures:
        raise failures[0]
    client.close()


def _connect_with_retries(worker: BrokerClient) -> oncemq.Client | None:
    while not worker.stop.is_set:
        try:
            return worker.connect(IMPATIENT)
        except (BrokerAway, Standby):
            continue
    return None


def _publish_impatiently(worker: BrokerClient, client: oncemq.Client, stream: Stream) -> None:
    while not worker.stop.is_set:
        try:
            stream.put_one(client)
        except (BrokerAway, Standby):
            continue
        time.sleep(0.002)


# Consumers.


def consume_by_iterating(worker: BrokerClient) -> None:
    topic = worker.plan.topics[0]
    with worker.connect() as client, client.subscription(topic, worker.plan.name) as subscription:
        worker.log.write(("started", worker.incarnation))
        position = -1
        while (end := worker.end_of(topic)) is None or position < end:
            for message in subscription.messages(timeout_s=0.2):
                worker.log.write(("delivered", topic, message.offset, id_of(message.value)))
                position = message.offset + 1
            if end is not None and position < 0:
                position = _acked(client, topic, worker.plan.name)


def consume_with_acks(worker: BrokerClient) -> None:
    """Ack explicitly, and wait for each ack."""
    topic = worker.plan.topics[0]
    with worker.connect() as client, client.subscription(topic, worker.plan.name, auto_ack=False) as subscription:
        worker.log.write(("started", worker.incarnation))
        position = -1
        while (end := worker.end_of(topic)) is None or position < end:
            messages = subscription.get_many(worker.random.randint(1, 100), timeout_s=0.2)
            if messages:
                worker.log.write(*(("delivered", topic, each.offset, id_of(each.value)) for each in messages))
                position = messages[-1].offset + 1
                subscription.ack(messages[-1], wait=True)
                worker.log.write(("acked", topic, position))
            elif end is not None and position < 0:
                position = _acked(client, topic, worker.plan.name)


def _acked(client: oncemq.Client, topic: str, subscriber: str) -> int:
    """Return the position of a subscription in which this process found no messages."""
    return next(found.acked for found in client.subscriptions(topic) if found.subscriber == subscriber)


PUBLISHERS: dict[str, Callable[[BrokerClient], None]] = {
    "singly": publish_singly,
    "many": publish_many,
    "pipelined": publish_pipelined,
    "threads": publish_in_threads,
}
CONSUMERS: dict[str, Callable[[BrokerClient], None]] = {
    "iterating": consume_by_iterating,
    "acking": consume_with_acks,
}
