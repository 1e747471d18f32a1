"""Subscribers: with an inbox, whose effects are stored once even if it is killed, and plain ones, which leave and come
back, each time with another subset of the topics."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random

import oncemq
from oncemq.client.inbox.inbox import Inbox
from oncemq.tools.chaos.plan import TOPICS
from oncemq.tools.chaos.worker import DELIVERED, Worker
from oncemq.tools.faults.event_log import id_of

_BATCH_MAX = 50
_WAIT_S = 0.02


def consume_into_inbox(worker: Worker) -> None:
    """Store messages in SQLite. All processes of the subscriber have the same topics."""
    topics = Random(f"{worker.context.seed}/{worker.name}").sample(TOPICS, 3)
    connection = sqlite3.connect(database_path(worker.context.folder, worker.name), isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("create table if not exists effects (number integer primary key, topic, offset, message)")
    with oncemq.connect(worker.context.url, label=worker.name, **worker.connect_options()) as client:
        inboxes = {topic: client.inbox(topic, worker.name, connection, start="earliest") for topic in topics}
        positions = {topic: inbox.open() for topic, inbox in inboxes.items()}
        while not is_done(worker, positions):
            for topic, inbox in inboxes.items():
                positions[topic] = max(positions[topic], _store(worker, inbox, connection))
        for inbox in inboxes.values():
            inbox.close()
    connection.close()


def database_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.db"


def _store(worker: Worker, inbox: Inbox, connection: sqlite3.Connection) -> int:
    """Store the next batch. Returns the position after it, or 0 if there was none."""
    with inbox.batch(_BATCH_MAX, timeout_s=_WAIT_S) as messages:
        rows = [(message.topic, message.offset, id_of(message.value)) for message in messages]
        connection.executemany("insert into effects (topic, offset, message) values (?, ?, ?)", rows)
    worker.count(DELIVERED, len(rows))
    return rows[-1][1] + 1 if rows else 0


def consume_plainly(worker: Worker) -> None:
    """Log messages. All acks are confirmed before it leaves, so that the next process continues there."""
    with oncemq.connect(worker.context.url, label=worker.name, **worker.connect_options()) as client:
        positions = _subscribe(worker, client)
        subscriptions = {topic: client.subscription(topic, worker.name, auto_ack=False) for topic in positions}
        while not is_done(worker, positions):
            for topic, subscription in subscriptions.items():
                if messages := subscription.get_many(_BATCH_MAX, timeout_s=_WAIT_S):
                    worker.log.write(*(("delivered", topic, each.offset, id_of(each.value)) for each in messages))
                    worker.count(DELIVERED, len(messages))
                    subscription.ack(messages[-1])
                    positions[topic] = messages[-1].offset + 1
        for topic, subscription in subscriptions.items():
            if positions[topic]:
                subscription.ack(positions[topic] - 1, wait=True)
            subscription.close()


def _subscribe(worker: Worker, client: oncemq.Client) -> dict[str, int]:
    """Change to another subset of the topics. Returns the positions of the subscriptions."""
    before = _positions(worker, client)
    if before and worker.is_last_process():
        return before
    chosen = worker.random.sample(TOPICS, worker.random.randint(1, len(TOPICS)))
    for topic in before.keys() - {*chosen}:
        client.unsubscribe(topic, worker.name)
        worker.log.write(("unsubscribed", topic))
    for topic in chosen:
        client.subscribe(topic, worker.name)
    positions = _positions(worker, client)
    worker.log.write(*(("subscribed", topic, positions[topic]) for topic in chosen if topic not in before))
    return positions


def _positions(worker: Worker, client: oncemq.Client) -> dict[str, int]:
    return {entry.topic: entry.acked for entry in client.subscriptions() if entry.subscriber == worker.name}


def is_done(worker: Worker, positions: dict[str, int]) -> bool:
    """Whether it was asked to stop and, at the end of the run, has received everything."""
    if not worker.stop.is_set:
        return False
    ends = worker.end_offsets()
    return ends is None or all(position >= ends[topic] for topic, position in positions.items())
