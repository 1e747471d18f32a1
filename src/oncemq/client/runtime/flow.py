"""Flows: every operation that waits is written once, for the blocking and for the asyncio client.

A flow is a generator. It does what can be done at once, yields what it waits for, and returns its result:

    pending = driver.core.submit(operation)            # the core numbers it
    yield pending                                      # the driver sends, receives, and resumes the flow
    return pending.result()                            # or raises the error that it was refused with

What a flow may yield, and what it then gets:

    pending                    nothing, when it is done
    Until(pending, until_ms)   True when it is done, False when the time was over first (None: no time limit)
    Until(is_true, until_ms)   the same for a condition, which is checked whenever something has arrived
    Outside(function)          what the function returns; for code of the user and for long work

Between two yields nothing else happens to the client: the blocking driver holds its lock, and an event loop runs one
thing at a time. At a yield anything may have happened. An exception that ends the wait (the client was closed, Ctrl-C,
a cancelled task) is raised at the yield. A reply that only this caller waits for is waited for with `wait_for_reply`
(rpc.py): a caller that is interrupted gives it up, so that it does not happen later by surprise. What was taken out of
the client's state must not be held only by a flow while it yields: an interrupt would lose it. It stays in place until
the flow is resumed, or is put back.

How an operation is added:

1. A part of the client has the flow:

       class Admin:
           def delete_topic(self, name: str) -> Flow[None]:
               return self._context.do(DeleteTopic(name))

2. Both clients have a method that runs it. `Client` in sync.py documents it:

       def delete_topic(self, name: str) -> None:
           self._driver.run(self._admin.delete_topic(name))

   and `Client` in aio.py refers to that:

       async def delete_topic(self, name: str) -> None:
           await self._driver.run(self._admin.delete_topic(name))

   A test fails if the two differ in a name or an argument.

What a method does before it makes the flow happens without the lock: arguments are checked and encoded there. What must
not cost a flow for each message (`get` and `ack` of what was fetched, `put_nowait`, iteration) is plain code, and uses
a flow only when it has to wait.

Work that becomes due without a call is a periodic task: see background.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

from oncemq.client.core.commands.pending import Pending

T = TypeVar("T")


class Until:
    """A wait until something is done, or until `until_ms` on the driver's clock."""

    __slots__ = ("until_ms", "what")

    def __init__(self, what: Pending | Callable[[], bool], until_ms: float | None = None) -> None:
        self.what = what
        self.until_ms = until_ms

    def is_done(self) -> bool:
        return self.what.done if isinstance(self.what, Pending) else self.what()


class Outside:
    """Call a function without the lock; in asyncio, after other tasks could run."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function


class WouldWait(Exception):
    """Raised in a flow that has to wait where its driver can't: see `EventLoopDriver.run_now`."""


Wait: TypeAlias = Pending | Until | Outside
Flow: TypeAlias = Generator[Wait, Any, T]
