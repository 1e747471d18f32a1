"""The asyncio client. It has the operations of the client that `oncemq.connect` returns, to be awaited:

    async with oncemq.aio.connect() as client:
        subscription = await client.subscribe("orders", "kitchen")
        await client.put("orders", "one pizza")
        async for message in subscription:
            print(message.text)

`put_nowait` and `read` are not awaited: `put_nowait` returns a handle (`await handle.result()`), and `read` is iterated
over with `async for`. Errors and messages are those of `oncemq`.
"""

from oncemq.client.aio import Client as Client
from oncemq.client.aio import Handle as Handle
from oncemq.client.connect_aio import connect as connect
from oncemq.client.consumer.aio import PatternSubscription as PatternSubscription
from oncemq.client.consumer.aio import Subscription as Subscription
from oncemq.client.outbox.aio import OutboxClient as OutboxClient
from oncemq.client.push.aio import PushSubscription as PushSubscription
from oncemq.client.transaction import AsyncTransaction as Transaction
from oncemq.client.worker.aio import SharedSubscription as SharedSubscription
from oncemq.client.worker.aio import Task as Task

__all__ = [
    "Client",
    "Handle",
    "OutboxClient",
    "PatternSubscription",
    "PushSubscription",
    "SharedSubscription",
    "Subscription",
    "Task",
    "Transaction",
    "connect",
]
