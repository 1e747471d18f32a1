"""Subscribers: with an inbox, whose effects are stored once even if they are killed, and plain ones, which come and
go, each time with another part of the topics."""

from __future__ import annotations

import sqlite3
from random import Random

import oncemq
from oncemq.client.inbox.inbox import Inbox
from oncemq.protocol.message import Message
from oncemq.tools.chaos.event_log import id_of
from oncemq.tools.chaos.plan import TOPICS
from oncemq.tools.chaos.worker import DELIVERED, Worker

_TOGETHER_MAX = 50
_WAIT_S = 0.02


def consume_into_inbox(worker: Worker) -> None:
    """Each life has the same topics: its effects are one story."""
    topics = Random(f"{worker.scene.seed}/{worker.name}").sample(TOPICS, 3)
    connection = sqlite3.connect(database_of(worker.scene.folder, worker.name), isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("create table if not exists effects (number integer primary key, topic, offset, message)")
    with oncemq.connect(worker.scene.url, label=worker.name, **worker.connecting()) as client:
        inboxes = {topic: client.inbox(topic, worker.name, connection, start="earliest") for topic in topics}
        positions = {topic: inbox.open() for topic, inbox in inboxes.items()}
        while not is_done(worker, positions):
            for topic, inbox in inboxes.items():
                positions[topic] = max(positions[topic], _store(worker, inbox, connection))
        for inbox in inboxes.values():
            inbox.close()
    connection.close()


def database_of(folder: object, name: str) -> str:
    return f"{folder}/{name}.db"


def _store(worker: Worker, inbox: Inbox, connection: sqlite3.Connection) -> int:
    """Where it stands; 0 where there was nothing."""
    with inbox.batch(_TOGETHER_MAX, timeout_s=_WAIT_S) as messages:
        rows = [(message.topic, message.offset, id_of(message.value)) for message in messages]
        connection.executemany("insert into effects (topic, offset, message) values (?, ?, ?)", rows)
    worker.count(DELIVERED, len(rows))
    return rows[-1][1] + 1 if rows else 0


def consume_plainly(worker: Worker) -> None:
    """Everything is acked, for sure, before it leaves: the next life goes on there."""
    with oncemq.connect(worker.scene.url, label=worker.name, **worker.connecting()) as client:
        positions = _subscribe(worker, client)
        subscriptions = {topic: client.subscription(topic, worker.name, auto_ack=False) for topic in positions}
        while not is_done(worker, positions):
            for topic, subscription in subscriptions.items():
                if messages := subscription.get_many(_TOGETHER_MAX, timeout_s=_WAIT_S):
                    _note(worker, messages)
                    subscription.ack(messages[-1])
                    positions[topic] = messages[-1].offset + 1
        for topic, subscription in subscriptions.items():
            if positions[topic]:
                subscription.ack(positions[topic] - 1, wait=True)
            subscription.close()


def _subscribe(worker: Worker, client: oncemq.Client) -> dict[str, int]:
    """End what is no longer wanted, begin what is new. Returns where each subscription stands."""
    before = _positions(worker, client)
    if before and worker.is_last_life():
        return before
    chosen = worker.random.sample(TOPICS, worker.random.randint(1, len(TOPICS)))
    for topic in before.keys() - {*chosen}:
        client.unsubscribe(topic, worker.name)
        worker.diary.write(("ended", topic))
    for topic in chosen:
        client.subscribe(topic, worker.name)
    positions = _positions(worker, client)
    worker.diary.write(*(("subscribed", topic, positions[topic]) for topic in chosen if topic not in before))
    return positions


def _positions(worker: Worker, client: oncemq.Client) -> dict[str, int]:
    return {entry.topic: entry.acked for entry in client.subscriptions() if entry.subscriber == worker.name}


def _note(worker: Worker, messages: list[Message]) -> None:
    worker.diary.write(*(("got", message.topic, message.offset, id_of(message.value)) for message in messages))
    worker.count(DELIVERED, len(messages))


def is_done(worker: Worker, positions: dict[str, int]) -> bool:
    """It was asked to leave; at the very end, when it has everything."""
    if not worker.is_ending:
        return False
    ends = worker.ends()
    return ends is None or all(position >= ends[topic] for topic, position in positions.items())
