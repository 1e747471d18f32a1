"""OnceMQ: durable topics with exactly-once delivery, through every crash.

>>> import oncemq
>>> with oncemq.connect() as client:
...     client.put("orders", "one pizza", create=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemq.client.runtime.embedded import register_embedded_broker
from oncemq.protocol import errors as errors
from oncemq.protocol.version import __version__ as __version__

if TYPE_CHECKING:
    from oncemq import aio as aio
    from oncemq.client.connect import connect as connect
    from oncemq.client.consumer.sync import PatternSubscription as PatternSubscription
    from oncemq.client.consumer.sync import Subscription as Subscription
    from oncemq.client.inbox.inbox import Inbox as Inbox
    from oncemq.client.outbox.producer import Ticket as Ticket
    from oncemq.client.outbox.sync import OutboxClient as OutboxClient
    from oncemq.client.producer.receipt import Receipt as Receipt
    from oncemq.client.sync import Client as Client
    from oncemq.client.sync import Handle as Handle
    from oncemq.client.transaction import Transaction as Transaction
    from oncemq.client.worker.dead_letters import DeadLetter as DeadLetter
    from oncemq.client.worker.sync import SharedSubscription as SharedSubscription
    from oncemq.client.worker.task import Task as Task
    from oncemq.protocol.errors import *  # noqa: F403
    from oncemq.protocol.message import Message as Message

#: Public names and their modules. They are imported when they are used, so that `import oncemq` is fast.
_MODULE_OF = {
    "Client": "client.sync",
    "DeadLetter": "client.worker.dead_letters",
    "Handle": "client.sync",
    "Inbox": "client.inbox.inbox",
    "Message": "protocol.message",
    "OutboxClient": "client.outbox.sync",
    "PatternSubscription": "client.consumer.sync",
    "Receipt": "client.producer.receipt",
    "SharedSubscription": "client.worker.sync",
    "Subscription": "client.consumer.sync",
    "Task": "client.worker.task",
    "Ticket": "client.outbox.producer",
    "Transaction": "client.transaction",
    "connect": "client.connect",
    # Every exception.
    **dict.fromkeys((kind.__name__ for kind in errors.BY_CODE.values()), "protocol.errors"),
}

_SUBMODULES = ("aio", "errors")

__all__ = ["__version__", *_SUBMODULES, *_MODULE_OF]


def _attach_embedded(url: str) -> Any:
    from oncemq.broker.embedded import attach

    return attach(url)


register_embedded_broker(_attach_embedded)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _SUBMODULES:
        return import_module(f"oncemq.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"oncemq.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES, *_MODULE_OF})
