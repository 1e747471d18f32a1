"""A shared subscription, as one of its consumers uses it: the flows that both shells share.

It is for one thread or task at a time, and its tasks for any: overlapping calls raise RuntimeError. Only `close` may
come from elsewhere; who waits then gets ClientClosed. Nothing is acked by itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

from oncemq.client.context import ClientContext
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Until, method
from oncemq.client.runtime.reentrancy import SingleUserGuard
from oncemq.client.runtime.rpc import ask
from oncemq.client.worker.takes import K, Taking
from oncemq.protocol import errors
from oncemq.protocol.commands import Leave
from oncemq.protocol.replies import Done, OpenReply

log = logging.getLogger("oncemq.client")

_STRIDE_MAX = 1024
#: Somebody may have forgotten to settle what he has.
_WARN_AFTER_MS = 10_000.0


class Working(Taking[K]):
    """What a shared subscription knows and does, but for iterating and for what is at hand: see the shells for that."""

    #: Who may use it, one at a time; and who is calling.
    _user = "thread"
    _who = staticmethod(threading.get_ident)

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        subscriber: str,
        *,
        created: bool = False,
        prefetch: int | None = None,
        prefetch_bytes: int = 1024 * 1024,
        unsettled_max: int = 1000,
        auto_extend: bool = True,
        extend_max_s: float = 3600.0,
    ) -> None:
        super().__init__(
            context,
            topic,
            subscriber,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            unsettled_max=unsettled_max,
            auto_extend=auto_extend,
            extend_max_s=extend_max_s,
        )
        #: `subscribe_shared` made it; False: it was there before.
        self.created = created
        self._one_user = SingleUserGuard(repr(self), self._user, self._who)
        _workings.add(self)

    def __repr__(self) -> str:
        return f"SharedSubscription({self.topic!r}, {self.subscriber!r})"

    # What people call.

    @method
    def take_many(self, tasks_max: int = 100, timeout_s: float | None = 0.0) -> Flow[list[K]]:
        """Up to so many tasks, as soon as there are any; an empty list if none come within `timeout_s`.

        >>> for task in workers.take_many(100, timeout_s=5):
        ...     pack(task.value)
        ...     task.ack()
        """
        if tasks_max < 1:
            raise ValueError(f"tasks_max is at least 1, and is {tasks_max}")
        return self._one_user.around(self._take_many(tasks_max, timeout_s))

    def _take_many(self, tasks_max: int, timeout_s: float | None) -> Flow[list[K]]:
        until_ms = _until_ms(timeout_s)
        found: list[K] = []
        while not found:
            if not (yield from self._make_room(until_ms)):
                break
            wanted = min(tasks_max, self._room)
            found = list(islice(self._living(), wanted))
            if not found and not (yield from self._advance(until_ms, wanted)):
                break
        self._room -= len(found)
        return found

    @method
    def flush(self) -> Flow[None]:
        """Wait until everything that was settled is on the broker's disk. Raises LeaseLost for what came too late.

        >>> workers.flush()
        """
        return self._one_user.around(self._flush())

    def _flush(self) -> Flow[None]:
        self._check()
        yield from self._flush_settled()
        self._check()

    @method
    def close(self) -> Flow[None]:
        """Send what was settled, give back what was not, and stop. The durable subscription stays."""
        return self._close(clean=True)

    # One by one.

    def _living(self) -> Iterator[K]:
        """What is at hand, and not over."""
        return (task for task in self._current if not task.lease.is_over)

    def _take_at_hand(self) -> K | None:
        """The next task, where there is one and nothing else is due."""
        if self._room <= 0 or self._late or self._failures or self._error is not None:
            return None
        for task in self._current:
            if not task.lease.is_over:
                self._room -= 1
                return task
        return None

    def _take_one(self, timeout_s: float | None) -> Flow[K | None]:
        until_ms = _until_ms(timeout_s)
        while (yield from self._make_room(until_ms)):
            task = self._take_at_hand()
            if task is not None:
                return task
            if not (yield from self._advance(until_ms, 1)):
                return None
        return None

    def _next_stride(self, stride: int, has_ended: bool, timeout_s: float | None) -> Flow[int]:
        """How many tasks to iterate over until this is asked again; 0: none came in time."""
        return self._one_user.around(self._find_stride(stride, has_ended, timeout_s))

    def _find_stride(self, stride: int, has_ended: bool, timeout_s: float | None) -> Flow[int]:
        # Full hands do not end it: there may be more to do.
        yield from self._make_room(None)
        if has_ended and not (yield from self._advance(_until_ms(timeout_s), 1)):
            return 0
        stride = max(1, min(2 * stride, _STRIDE_MAX, self._room))
        self._room -= stride
        return stride

    # Room in the user's hands.

    def _has_room(self) -> bool:
        self._room = self._unsettled_max - self._in_hand()
        return self._room > 0 or self._error is not None

    def _make_room(self, until_ms: float | None) -> Flow[bool]:
        """Before anything is handed out. False: too much is in the user's hands, and there it stayed."""
        self._check()
        if self._has_room():
            return True
        self._awaits_room = True
        self._listen()
        try:
            has_room = yield from self._wait_for_room(until_ms)
        finally:
            self._awaits_room = False
            self._listen()
        self._check()
        return has_room

    def _wait_for_room(self, until_ms: float | None) -> Flow[bool]:
        warn_ms = now_ms() + _WARN_AFTER_MS
        if until_ms is not None and until_ms <= warn_ms:
            return bool((yield Until(self._has_room, until_ms)))
        if (yield Until(self._has_room, warn_ms)):
            return True
        log.warning("%r waits: %d tasks are not settled, which is its limit", self, self._unsettled_max)
        return bool((yield Until(self._has_room, until_ms)))

    # Leaving.

    def _close(self, clean: bool) -> Flow[None]:
        self._context.open_subscriptions.discard(self)
        opened, error = self._opened, self._error
        self._error = error or errors.ClientClosed("this subscription was closed")
        self._listen()
        try:
            if error is None and opened is not None:
                yield from self._leave(opened)
            if self._late or self._failures:
                self._check()
        except errors.OnceMQError as met:
            if clean:
                raise
            log.warning("while closing %r: %s", self, met)
        finally:
            self._context.remove_task(self._watch)
            self._drop_take()
            self._drop_all()

    def _leave(self, opened: OpenReply) -> Flow[None]:
        yield from self._flush_settled()
        leave = Leave(opened.topic_id, self.subscriber, opened.epoch, self._member)
        # Whoever moved it, or ended it, took everything from us.
        with contextlib.suppress(errors.Sought, errors.TopicGone, errors.NotSubscribed):
            yield from ask(self._driver, leave, Done)


def _until_ms(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else now_ms() + timeout_s * 1000


_workings: weakref.WeakSet[Working[Any]] = weakref.WeakSet()


def _mark_forked() -> None:
    """In a forked child no ack goes anywhere: each has to ask, and is told."""
    for working in list(_workings):
        working._listens = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
