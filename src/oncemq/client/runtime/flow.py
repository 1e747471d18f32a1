"""Flows: every operation that waits is written once, and is a method of the blocking and of the asyncio client.

A flow is a generator. It does what is to be done at once, yields what it waits for, and returns its result:

    pending = self._driver.core.submit(operation)      # the core numbers it
    yield pending                                      # a driver sends, receives and comes back
    return pending.result()                            # or raises what it was refused with

What a flow may yield, and what it then gets:

    pending                    nothing, when it is done
    Until(pending, until_ms)   True when it is done, False when the time was over first (None: never)
    Until(is_true, until_ms)   the same for a condition, which is looked at whenever something has arrived
    Outside(function)          what the function returns; for code of the user and for long work

Between two yields nothing else happens to the client: the blocking driver holds its lock, and an event loop runs
one thing at a time. At a yield anything may have happened. An exception that ends the wait (the client was closed,
Ctrl-C, a cancelled task) is raised at the yield. An answer that only this caller waits for is waited for with
`wait_for_reply` (rpc.py): a caller that is interrupted gives it up, so that it does not happen later by surprise.
Nothing that was taken out of the client's state may be held only by a flow while it yields: who is interrupted would
lose it. It stays in place until the flow comes back, or is put back.

How an operation is added, to both shells:

    class Administration(Calling):
        @method
        def delete_topic(self, name: str) -> Flow[None]:
            \"\"\"Delete a topic, its messages and its subscriptions.\"\"\"
            return self._do(DeleteTopic(name))

`client.delete_topic("orders")` blocks, `await aio_client.delete_topic("orders")` does not; type checkers know both.
A flow that other flows use has a name of its own, with `_`, and no `@method`: `yield from self._call(…)`. To run
one by hand: `client._run(client._call(…))`, with `await` in asyncio. A new mixin of such methods is inherited by
`Connection` (connection.py), and with that by both clients.

A method need not be a generator itself. What it does before it returns a flow happens without the lock, so that is
where input is checked and encoded (see `put`). What must not cost a flow each time (`get` and `ack` of what is at
hand, `put_nowait`, iterating over a batch) is plain code, and takes to a flow when it has to wait. Only these and
the iterators are written by hand in each shell.

What is due by itself, without a caller, is a duty: see background.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload

from oncemq.client.core.pending import Pending

P = ParamSpec("P")
T = TypeVar("T")


class Until:
    """A wait that may end early: until it is done, or `until_ms` on the driver's clock."""

    __slots__ = ("until_ms", "what")

    def __init__(self, what: Pending | Callable[[], bool], until_ms: float | None = None) -> None:
        self.what = what
        self.until_ms = until_ms

    def is_done(self) -> bool:
        return self.what.done if isinstance(self.what, Pending) else self.what()


class Outside:
    """Call this without the lock; in asyncio, after others had their turn."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function


class WouldWait(Exception):
    """Raised in a flow that has to wait where its driver can't: see `EventLoopDriver.run_now`."""


Wait: TypeAlias = Pending | Until | Outside
Flow: TypeAlias = Generator[Wait, Any, T]


# From flows to methods.


class method(Generic[P, T]):  # noqa: N801 - used as a decorator
    """Makes a flow a method of each shell that inherits it."""

    def __init__(self, flow: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        self.flow = flow
        self.__doc__ = flow.__doc__

    if TYPE_CHECKING:

        @overload
        def __get__(self, shell: None, owner: Any = None) -> Callable[Concatenate[Any, P], Any]: ...
        @overload
        def __get__(self, shell: Blocking, owner: Any = None) -> Callable[P, T]: ...
        @overload
        def __get__(self, shell: Asynchronous, owner: Any = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
        def __get__(self, shell: Any, owner: Any = None) -> Any: ...


class Blocking:
    """A shell whose methods return when they are done."""

    #: A ThreadDriver.
    _driver: Any

    def __init_subclass__(cls) -> None:
        for name, flow in _flows_of(cls):
            setattr(cls, name, _blocking(flow))

    def _run(self, flow: Flow[T]) -> T:
        result: T = self._driver.run(flow)
        return result


class Asynchronous:
    """A shell whose methods are awaited."""

    #: A EventLoopDriver.
    _driver: Any

    def __init_subclass__(cls) -> None:
        for name, flow in _flows_of(cls):
            setattr(cls, name, _asynchronous(flow))

    async def _run(self, flow: Flow[T]) -> T:
        result: T = await self._driver.run(flow)
        return result


def _flows_of(shell: type) -> Iterator[tuple[str, Callable[..., Flow[Any]]]]:
    attributes: dict[str, Any] = {}
    for base in reversed(shell.__mro__):
        attributes.update(vars(base))
    for name, found in attributes.items():
        if isinstance(found, method):
            yield name, found.flow


def _blocking(flow: Callable[..., Flow[Any]]) -> Callable[..., Any]:
    @functools.wraps(flow)
    def call(self: Blocking, *args: Any, **options: Any) -> Any:
        return self._driver.run(flow(self, *args, **options))

    return _named(call, flow)


def _asynchronous(flow: Callable[..., Flow[Any]]) -> Callable[..., Any]:
    @functools.wraps(flow)
    async def call(self: Asynchronous, *args: Any, **options: Any) -> Any:
        return await self._driver.run(flow(self, *args, **options))

    return _named(call, flow)


def _named(call: Callable[..., Any], flow: Callable[..., Flow[Any]]) -> Callable[..., Any]:
    """For `help`: a method returns its flow's result, not a flow."""
    signature = inspect.signature(flow)
    result = str(signature.return_annotation).removeprefix("Flow[").removesuffix("]")
    call.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
    return call
