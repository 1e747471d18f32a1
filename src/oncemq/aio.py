"""The asyncio client. The same operations as `oncemq.connect` gives, to be awaited:

    async with oncemq.aio.connect() as client:
        subscription = await client.subscribe("orders", "kitchen")
        await client.put("orders", "one pizza")
        async for message in subscription:
            print(message.text)

`put_nowait` and `read` are not awaited: the one returns a handle (`await handle.result()`), the other is iterated
over with `async for`. Errors and messages are those of `oncemq`.
"""

from oncemq.client.asynchronous import Client as Client
from oncemq.client.asynchronous import Handle as Handle
from oncemq.client.asynchronous import OutboxClient as OutboxClient
from oncemq.client.asynchronous import connect as connect
from oncemq.client.asynchronous_push import PushSubscription as PushSubscription
from oncemq.client.asynchronous_shared import SharedSubscription as SharedSubscription
from oncemq.client.asynchronous_shared import Task as Task
from oncemq.client.asynchronous_subscription import PatternSubscription as PatternSubscription
from oncemq.client.asynchronous_subscription import Subscription as Subscription
from oncemq.client.transacting import AsyncTransaction as Transaction

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
