"""OnceMQ: durable topics, exactly once, through every crash.

>>> import oncemq
>>> with oncemq.connect() as client:
...     client.put("orders", "one pizza", create=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemq import errors as errors
from oncemq.version import __version__ as __version__

if TYPE_CHECKING:
    from oncemq import aio as aio
    from oncemq.client.batching import Handle as Handle
    from oncemq.client.blocking import Client as Client
    from oncemq.client.blocking import OutboxClient as OutboxClient
    from oncemq.client.blocking import connect as connect
    from oncemq.client.dead_letters import DeadLetter as DeadLetter
    from oncemq.client.inbox import Inbox as Inbox
    from oncemq.client.outboxing import Ticket as Ticket
    from oncemq.client.receipt import Receipt as Receipt
    from oncemq.client.shared_subscription import SharedSubscription as SharedSubscription
    from oncemq.client.subscription import PatternSubscription as PatternSubscription
    from oncemq.client.subscription import Subscription as Subscription
    from oncemq.client.task import Task as Task
    from oncemq.client.transacting import Transaction as Transaction
    from oncemq.errors import *  # noqa: F403
    from oncemq.message import Message as Message

#: Public names and where they live; imported when they are used, so that `import oncemq` stays quick.
_WHERE = {
    "Client": "client.blocking",
    "DeadLetter": "client.dead_letters",
    "Handle": "client.batching",
    "Inbox": "client.inbox",
    "Message": "message",
    "OutboxClient": "client.blocking",
    "PatternSubscription": "client.subscription",
    "Receipt": "client.receipt",
    "SharedSubscription": "client.shared_subscription",
    "Subscription": "client.subscription",
    "Task": "client.task",
    "Ticket": "client.outboxing",
    "Transaction": "client.transacting",
    "connect": "client.blocking",
    # Every exception, so that nobody has to know which ones.
    **dict.fromkeys((kind.__name__ for kind in errors.BY_CODE.values()), "errors"),
}

_MODULES = ("aio", "errors")

__all__ = ["__version__", *_MODULES, *_WHERE]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"oncemq.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"oncemq.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_WHERE})
