"""Clients of the native protocol: blocking and asyncio, with an outbox, transactions, delays and times to live."""

from __future__ import annotations

import asyncio
import time

import oncemq
import oncemq.aio
from oncemq.tools.faults.event_log import MessageStream, id_of, value_of
from tests.soak.clients.client import PATIENT, SoakClient
from tests.soak.plan import COPIED

_BATCH_MAX = 12
_WAIT_S = 0.5
_FLUSH_S = 60.0
#: With more than this in its outbox a producer waits for the broker.
_PENDING_MAX = 200
_DELAY_S_MAX = 2.0
#: Every other message has this time to live, which is shorter than many restarts.
TTL_S = 0.4


def _connect(client: SoakClient) -> oncemq.Client:
    return oncemq.connect(client.url, label=client.name, **PATIENT)


# Producers.


def put_blocking(client: SoakClient) -> None:
    """Single puts, batches, and puts without waiting."""
    stream = client.stream()
    with _connect(client) as mq:
        while not client.stop.is_set:
            _put_in_some_way(client, mq, stream)
        _sabotage(client, mq, stream)


def _put_in_some_way(client: SoakClient, mq: oncemq.Client, stream: MessageStream) -> None:
    messages = stream.attempt(client.topic, client.random.randint(1, _BATCH_MAX))
    if len(messages) == 1:
        stream.acknowledge(client.topic, messages, mq.put(client.topic, value_of(messages[0])).offset)
    elif client.random.random() < 0.5:
        receipt = mq.put_many(client.topic, map(value_of, messages))
        stream.acknowledge(client.topic, messages, receipt.offset if receipt.batches == 1 else -1)
    else:
        handles = [mq.put_nowait(client.topic, value_of(message)) for message in messages]
        mq.flush()
        for message, handle in zip(messages, handles, strict=True):
            stream.acknowledge(client.topic, [message], handle.result().offset)
    client.pause(len(messages))


def _sabotage(client: SoakClient, mq: oncemq.Client, stream: MessageStream) -> None:
    """Claim what did not happen: the verdict must notice."""
    if "lose" in client.context.sabotage:
        stream.acknowledge(client.topic, stream.attempt(client.topic, 1))
    if "double" in client.context.sabotage:
        [message] = stream.attempt(client.topic, 1)
        mq.put_many(client.topic, [value_of(message)] * 2)


def put_asyncio(client: SoakClient) -> None:
    asyncio.run(_put_asyncio(client))


async def _put_asyncio(client: SoakClient) -> None:
    stream = client.stream()
    async with oncemq.aio.connect(client.url, label=client.name, **PATIENT) as mq:
        while not client.stop.is_set:
            messages = stream.attempt(client.topic, client.random.randint(1, _BATCH_MAX))
            receipt = await mq.put_many(client.topic, map(value_of, messages))
            stream.acknowledge(client.topic, messages, receipt.offset if receipt.batches == 1 else -1)
            await asyncio.sleep(client.context.pause_s * len(messages))


def put_through_outbox(client: SoakClient) -> None:
    """The outbox outlives the rounds."""
    stream = client.stream()
    outbox = client.context.run_folder / f"{client.name}.outbox"
    with oncemq.connect(client.url, outbox=outbox, **PATIENT) as mq:
        while not client.stop.is_set:
            messages = stream.attempt(client.topic, client.random.randint(1, 3))
            mq.put_many(client.topic, map(value_of, messages))
            stream.acknowledge(client.topic, messages)
            client.pause(len(messages))
            while mq.pending > _PENDING_MAX and not client.stop.is_set:
                time.sleep(client.context.pause_s)
        mq.flush(timeout_s=_FLUSH_S)


def put_singly(client: SoakClient) -> None:
    stream = client.stream()
    with _connect(client) as mq:
        while not client.stop.is_set:
            [message] = stream.attempt(client.topic, 1)
            stream.acknowledge(client.topic, [message], mq.put(client.topic, value_of(message)).offset)
            client.pause()


def put_brief(client: SoakClient) -> None:
    """Every other message has a time to live."""
    stream = client.stream()
    with _connect(client) as mq:
        while not client.stop.is_set:
            ttl_s = TTL_S if stream.next_number % 2 else None
            [message] = stream.attempt(client.topic, 1)
            mq.put(client.topic, value_of(message), ttl_s=ttl_s)
            if ttl_s is None:
                stream.acknowledge(client.topic, [message])
            client.pause()


def put_later(client: SoakClient) -> None:
    """Delayed messages. It waits until all of them are due."""
    stream = client.stream()
    with _connect(client) as mq:
        while not client.stop.is_set:
            [message] = stream.attempt(client.topic, 1)
            mq.put(client.topic, value_of(message), delay_s=client.random.uniform(0.05, _DELAY_S_MAX))
            stream.acknowledge(client.topic, [message])
            client.pause()
        while any(topic.delayed for topic in mq.topics() if topic.name == client.topic):
            time.sleep(0.1)


# Consumers.


def get_blocking(client: SoakClient) -> None:
    """Ack explicitly, and wait for each ack: what was acked must not be delivered again."""
    position = client.next_offset()
    with _connect(client) as mq:
        subscription = mq.subscription(client.topic, client.name, auto_ack=False)
        client.log.write(("started", client.incarnation))
        while not client.is_done(position):
            messages = subscription.get_many(client.random.randint(1, 100), timeout_s=_WAIT_S)
            if messages:
                client.log.write(*(("delivered", client.topic, each.offset, id_of(each.value)) for each in messages))
                position = messages[-1].offset + 1
                subscription.ack(messages[-1], wait=True)
                client.log.write(("acked", client.topic, position))
        _ack_rest(subscription, position)


def get_from_push(client: SoakClient) -> None:
    """The same from the push feed."""
    position = client.next_offset()
    with _connect(client) as mq:
        subscription = mq.push(client.topic, client.name, feed=client.addresses.feed, auto_ack=False)
        client.log.write(("started", client.incarnation))
        while not client.is_done(position):
            message = subscription.get(timeout_s=_WAIT_S)
            if message is not None:
                client.deliver(message.offset, id_of(message.value))
                position = message.offset + 1
                subscription.ack(message)
        _ack_rest(subscription, position)


def _ack_rest(subscription: oncemq.Subscription, position: int) -> None:
    if position:
        subscription.ack(position - 1, wait=True)
    subscription.close()


def get_brief(client: SoakClient) -> None:
    """Get what has not expired, in a process that is not killed. All that is left is due at once at the end."""
    with _connect(client) as mq, mq.subscription(client.topic, client.name) as subscription:
        is_empty = False
        while not (client.stop.is_set and is_empty):
            messages = subscription.get_many(10, timeout_s=_WAIT_S)
            is_empty = not messages
            client.log.write(*(("delivered", client.topic, each.offset, id_of(each.value)) for each in messages))


def get_asyncio(client: SoakClient) -> None:
    asyncio.run(_get_asyncio(client))


async def _get_asyncio(client: SoakClient) -> None:
    position = client.next_offset()
    async with oncemq.aio.connect(client.url, label=client.name, **PATIENT) as mq:
        subscription = await mq.subscription(client.topic, client.name, auto_ack=False)
        client.log.write(("started", client.incarnation))
        while not client.is_done(position):
            messages = await subscription.get_many(50, timeout_s=_WAIT_S)
            if messages:
                client.log.write(*(("delivered", client.topic, each.offset, id_of(each.value)) for each in messages))
                position = messages[-1].offset + 1
                await subscription.ack(messages[-1], wait=True)
                client.log.write(("acked", client.topic, position))


# Transformers.


def copy(client: SoakClient) -> None:
    """Copy from topic to topic in transactions. A killed copier leaves a whole transaction, or nothing of it."""
    target = client.context.topic(COPIED)
    with _connect(client) as mq:
        subscription = mq.subscription(client.topic, client.name, auto_ack=False)
        position = _position_of(mq, client)
        while not client.is_done(position):
            messages = subscription.get_many(client.random.randint(1, 30), timeout_s=_WAIT_S)
            if messages:
                with mq.transaction() as transaction:
                    for message in messages:
                        transaction.put(target, message.value)
                    transaction.ack(subscription)
                position = messages[-1].offset + 1


def _position_of(mq: oncemq.Client, client: SoakClient) -> int:
    return next(found.acked for found in mq.subscriptions(client.topic) if found.subscriber == client.name)
