"""Workers that share a subscription. Some messages can't be processed: they end as dead letters."""

from __future__ import annotations

import zlib

import oncemq
from oncemq.protocol.errors import LeaseLost
from oncemq.tools.faults.event_log import id_of
from tests.soak.clients.client import PATIENT, SoakClient
from tests.soak.plan import RESULTS

SUBSCRIBER = "workers"
LEASE_S = 2.0
#: More deliveries than a message can lose to kills of workers in one round.
TRIES_MAX = 20
_WAIT_S = 0.2
_POISON_EVERY = 12


def is_poisoned(message: str) -> bool:
    return zlib.crc32(message.encode()) % _POISON_EVERY == 0


def work(client: SoakClient) -> None:
    """Put the result of each task, and ack it, in one transaction."""
    with (
        oncemq.connect(client.url, label=client.name, **PATIENT) as mq,
        mq.shared_subscription(client.topic, SUBSCRIBER) as workers,
    ):
        while not _is_done(client, mq):
            for task in workers.take_many(client.random.randint(1, 10), timeout_s=_WAIT_S):
                _finish(client, mq, task)


def _finish(client: SoakClient, mq: oncemq.Client, task: oncemq.Task) -> None:
    try:
        if is_poisoned(id_of(task.value)):
            _refuse(client, task)
            return
        with mq.transaction() as transaction:
            transaction.put(client.context.topic(RESULTS), task.value)
            transaction.ack(task)
    except LeaseLost:
        # Another worker has the task.
        return


def _refuse(client: SoakClient, task: oncemq.Task) -> None:
    if client.random.random() < 0.7:
        task.reject("it is poisoned")
    else:
        task.nack(delay_s=0.1)


def _is_done(client: SoakClient, mq: oncemq.Client) -> bool:
    if not client.stop.is_set:
        return False
    acked = next(found.acked for found in mq.subscriptions(client.topic) if found.subscriber == SUBSCRIBER)
    return client.is_done(acked)
