"""The client: a sans-I/O core that owns numbering and retries, and the shells that move its bytes.

    core, answers, flight, requests, pending   what to send, what an answer means; no sockets, threads or clock
    batching, producing                        many small puts become few batches
    transport, driver                          sockets, and which thread looks after them
    blocking, subscription, reading, …         what people use
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncemq.client.consumer.sync import Subscription as Subscription
    from oncemq.client.producer.batch_buffer import Handle as Handle
    from oncemq.client.producer.receipt import Receipt as Receipt
    from oncemq.client.sync import Client as Client
    from oncemq.client.sync import connect as connect
    from oncemq.client.worker.dead_letters import DeadLetter as DeadLetter
    from oncemq.client.worker.sync import SharedSubscription as SharedSubscription
    from oncemq.client.worker.task import Task as Task

_WHERE = {
    "Client": "blocking",
    "DeadLetter": "dead_letters",
    "Handle": "batching",
    "Receipt": "receipt",
    "SharedSubscription": "shared_subscription",
    "Subscription": "subscription",
    "Task": "task",
    "connect": "blocking",
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are used: the simulator needs the core alone."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"oncemq.client.{_WHERE[name]}"), name)
