"""A shared subscription, as one of its consumers uses it: the flows that both shells share.

A consumer is a member with a random name. Its takes are numbered: one whose answer was lost is asked again under the
same number, and brings the same lease. Messages that are taken and not handed out are few: about as many as were
worked on in the last second, so that a slow consumer does not sit on what others could do. While messages are
worked on quickly, one take is ahead.

A shared subscription is for one thread or task at a time, and its tasks for any: overlapping calls raise
RuntimeError. Only `close` may come from elsewhere; who waits then gets ClientClosed. Nothing is acked by itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import weakref
from collections.abc import Iterator
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any, Generic, TypeVar

from oncemq import errors
from oncemq.client.calling import ask
from oncemq.client.dead_letters import TRIES, Given, dead_subscription
from oncemq.client.driver import now_ms
from oncemq.client.extending import Extending
from oncemq.client.flow import Flow, Outside, Until, method
from oncemq.client.keeping import Keeping
from oncemq.client.leases import Lease, Part, decode_take
from oncemq.client.one_thread import OneUser
from oncemq.client.pending import Pending, again
from oncemq.client.settling import PASSING
from oncemq.client.task import AnyTask
from oncemq.engine.commands import Leave, Open, Take
from oncemq.engine.replies import Done, OpenReply, SubscribeReply, TakeReply

log = logging.getLogger("oncemq.client")

#: A shell's tasks.
K = TypeVar("K", bound=AnyTask)

#: A take waits at the broker for so long, then it is repeated: a broker that went away is noticed.
_WAIT_MS = 2000.0
#: One take asks for so many messages at the most, unless somebody wants more.
_TAKE_MAX = 1000
#: So much work may be at hand, half of it in the take that is ahead.
_AT_HAND_MS = 1000.0
#: Messages that take longer are not worth being fetched ahead.
_AHEAD_MS_MAX = 50.0
#: From one take to the next it may grow so much.
_GROWTH = 4
_STRIDE_MAX = 1024
#: Somebody may have forgotten to settle what he has.
_WARN_AFTER_MS = 10_000.0
#: A payload that arrives damaged so often in a row is not the network's fault.
_DAMAGES_MAX = 3
#: Politeness at close has its limits.
_BYE_MS = 500.0
#: What is about one take, not about the subscription: raised, and then it goes on.
_NOT_FINAL = (errors.RecordCorrupt, errors.LimitReached)


class Working(Extending, Generic[K]):
    """What a shared subscription knows and does, but for iterating and for what is at hand: see the shells for that."""

    _task_type: type[K]
    #: Who may use it, one at a time.
    _user = "thread"

    def __init__(
        self,
        client: Keeping,
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
        if unsettled_max < 1 or prefetch_bytes < 1 or (prefetch is not None and prefetch < 0):
            raise ValueError("unsettled_max and prefetch_bytes are at least 1, and prefetch is not below 0")
        super().__init__(client, topic, subscriber, auto_extend=auto_extend, extend_max_s=extend_max_s)
        #: `subscribe_shared` made it; False: it was there before.
        self.created = created
        self._prefetch = prefetch
        self._prefetch_bytes = prefetch_bytes
        self._unsettled_max = unsettled_max
        self._member = secrets.token_hex(8)
        self._opened: OpenReply | None = None
        #: The take that is on its way or was answered, its number, and how many messages it asks for.
        self._take: Pending | None = None
        self._take_number = 1
        self._take_count = 1
        self._take_waits = False
        self._lease: Lease | None = None
        self._damages = 0
        #: The last take brought what it asked for: there is more.
        self._has_more = False
        self._current: Iterator[K] = iter(())
        #: So many may be handed out without looking.
        self._room = 0
        #: When the current messages came and how many they were; how long one took, of those before.
        self._current_ms = 0.0
        self._current_count = 0
        self._pace_ms = 0.0
        self._one_user = OneUser(repr(self), self._user)
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
        with self._one_user:
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
        with self._one_user:
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
        with self._one_user:
            # Full hands do not end it: there may be more to do.
            yield from self._make_room(None)
            if has_ended and not (yield from self._advance(_until_ms(timeout_s), 1)):
                return 0
            stride = max(1, min(2 * stride, _STRIDE_MAX, self._room))
            self._room -= stride
            return stride

    # Room in the user's hands.

    def _in_hand(self) -> int:
        """Tasks that were handed out and not settled."""
        noted = sum(len(lease.done) + len(lease.returned) + len(lease.elsewhere) for lease in self._leases.values())
        arrived = self._lease.left if self._lease is not None and not self._lease.is_over else 0
        return self._out - noted - arrived - length_hint(self._current)

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
            return (yield Until(self._has_room, until_ms))
        if not (yield Until(self._has_room, warn_ms)):
            log.warning("%r waits: %d tasks are not settled, which is its limit", self, self._unsettled_max)
            return (yield Until(self._has_room, until_ms))
        return True

    # Joining and leaving.

    def _join(self) -> Flow[OpenReply]:
        """Once; and again after a seek."""
        if self._opened is not None:
            return self._opened
        reply = yield from self._client._call(Open(self.topic, self.subscriber), OpenReply)
        if reply.sharing is None:
            raise errors.KindMismatch(f"'{self.subscriber}' on '{self.topic}' is not shared: use client.subscription")
        if reply.sharing.dead_topic:
            yield from self._client._call(dead_subscription(reply.sharing.dead_topic), SubscribeReply)
        self._opened, self.sharing = reply, reply.sharing
        self._client._subscriptions.add(self)
        return reply

    def _moved(self, epoch: int) -> None:
        super()._moved(epoch)
        if self._opened is not None and self._opened.epoch == epoch:
            self._opened = None

    def _fail(self, error: errors.OnceMQError) -> None:
        self._error = self._error or error
        self._listen()
        if self._stragglers or any(lease.done for lease in self._leases.values()):
            # Acks that reach nobody.
            self._note_failure(error)
        self._drop_all()

    def _drop_all(self) -> None:
        for lease in list(self._leases.values()):
            self._end_lease(lease)
        self._stragglers.clear()
        self._lease = None
        # The old iterator is used up, and so ends a loop's hold on it.
        for _ in self._current:
            pass

    def _close(self, clean: bool) -> Flow[None]:
        self._client._subscriptions.discard(self)
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
            self._client._let_go(self._watch)
            self._drop_take()
            self._drop_all()

    def _leave(self, opened: OpenReply) -> Flow[None]:
        yield from self._flush_settled()
        yield from self._retract_take(opened)
        leave = Leave(opened.topic_id, self.subscriber, opened.epoch, self._member)
        # Whoever moved it took everything from us.
        with contextlib.suppress(errors.Sought):
            yield from ask(self._driver, leave, Done)

    def _retract_take(self, opened: OpenReply) -> Flow[None]:
        """A take that waits at the broker must not get anything once we have left: another one of ours replaces it."""
        if self._take is None or self._take.done or not self._take_waits:
            return
        former = self._take
        self._take_number += 1
        replacing = self._driver.core.ask(self._take_command(opened, 1, 1))
        until_ms = now_ms() + _BYE_MS
        yield Until(replacing, until_ms)
        yield Until(former, until_ms)

    def _drop_take(self) -> None:
        if self._take is not None:
            self._driver.give_up(self._take, errors.ClientClosed("this subscription was closed"))

    # Taking.

    def _advance(self, until_ms: float | None, wanted: int) -> Flow[bool]:
        """Make the next tasks current. False: none came in time."""
        self._measure()
        while True:
            opened = yield from self._join()
            # An empty answer to a take that was sent earlier says nothing about now.
            is_fresh = self._take is None
            self._send_settled()
            if self._take is None:
                left_ms = _WAIT_MS if until_ms is None else max(0.0, until_ms - now_ms())
                count = max(1, min(max(wanted, self._appetite()), self._room))
                self._ask_take(opened, count, int(min(left_ms, _WAIT_MS)))
            assert self._take is not None
            yield self._take
            tasks = yield from self._open_take()
            if tasks:
                self._make_current(tasks)
                return True
            self._check()
            if is_fresh and until_ms is not None and now_ms() >= until_ms:
                return False

    def _make_current(self, tasks: list[K]) -> None:
        self._current = iter(tasks)
        self._current_ms, self._current_count = now_ms(), len(tasks)
        if self._take is None and self._opened is not None and self._may_fetch_ahead():
            self._ask_take(self._opened, min(self._appetite(), self._unsettled_max), 0)
            # Somebody must see it come: its lease has to be extended.
            self._watch.due_ms = min(self._watch.due_ms, now_ms() + self.sharing.lease_ms / 10)
        self._driver.pump()

    def _is_answer_due(self) -> bool:
        is_ahead = self._take is not None and not self._take.done and not self._take_waits
        return is_ahead or super()._is_answer_due()

    def _ask_take(self, opened: OpenReply, count: int, wait_ms: int) -> None:
        self._take_count = count
        self._take_waits = wait_ms > 0
        self._take = self._driver.core.ask(self._take_command(opened, self._take_count, wait_ms))
        self._take.on_done = self._take_arrived

    def _take_command(self, opened: OpenReply, count: int, wait_ms: int) -> Take:
        return Take(
            opened.topic_id,
            self.subscriber,
            opened.epoch,
            self._member,
            self._take_number,
            count,
            max(1, self._prefetch_bytes // 2),
            wait_ms,
        )

    def _take_arrived(self, pending: Pending) -> None:
        """Whether anybody waits for it or not: its lease is ours from now on."""
        reply, opened = pending.reply, self._opened
        if not isinstance(reply, TakeReply) or not reply.token or opened is None or self._error is not None:
            return
        self._lease = Lease(self, self.subscriber, opened.epoch, reply)
        self._begin_lease(self._lease, reply.lease_ms, now_ms())

    def _open_take(self) -> Flow[list[K]]:
        """What the take brought; nothing, if it was empty or a seek came between."""
        pending = self._take
        assert pending is not None
        assert pending.done
        if pending.error is not None:
            self._take = None
            self._refused(pending.error)
            return []
        reply = pending.reply
        if not isinstance(reply, TakeReply):
            raise errors.Malformed(f"a take was answered with {type(reply).__name__}")
        try:
            # It stays in place meanwhile: who is interrupted here finds it again.
            parts = yield Outside(partial(decode_take, self.topic, reply, pending.payloads))
        except errors.DamagedInTransit:
            self._take = None
            self._note_damage()
            return []
        self._take = None
        self._take_number += 1
        self._damages = 0
        self._has_more = self._is_full(reply, pending)
        return self._sort(parts)

    def _is_full(self, reply: TakeReply, pending: Pending) -> bool:
        """It brought as much as it might."""
        count = sum(head.count for head in reply.heads)
        return count >= self._take_count or 4 * sum(map(len, pending.payloads)) >= self._prefetch_bytes

    def _refused(self, error: errors.OnceMQError) -> None:
        """Raises it, unless it is of a seek."""
        if isinstance(error, PASSING):
            # It may have happened: the same number brings the same messages.
            raise again(error)
        self._take_number += 1
        if isinstance(error, errors.Sought):
            if self._opened is not None:
                self._moved(self._opened.epoch)
            return
        if not isinstance(error, _NOT_FINAL):
            self._fail(error)
        raise again(error)

    def _note_damage(self) -> None:
        """The same take brings the same lease."""
        if self._lease is not None:
            self._end_lease(self._lease)
            self._lease = None
        self._damages += 1
        if self._damages >= _DAMAGES_MAX:
            self._damages = 0
            raise errors.DamagedInTransit(f"messages of '{self.topic}' don't match their checksums")

    def _sort(self, parts: list[Part]) -> list[K]:
        """Tasks; what was delivered too often is given up, what can't be read goes back."""
        lease, self._lease = self._lease, None
        if lease is None or lease.is_over:
            return []
        tries_max = self.sharing.tries_max or float("inf")
        tasks: list[K] = []
        worn: list[Given] = []
        make = self._task_type
        for part in parts:
            tries = part.head.tries
            if part.error is not None:
                self._give_back_unread(lease, part)
            elif tries > tries_max:
                worn += [Given(message, tries - 1, TRIES) for message in part.messages]
            else:
                tasks += [make(message, tries, lease) for message in part.messages]
        if worn:
            self._bury(lease, worn)
        return tasks

    def _give_back_unread(self, lease: Lease, part: Part) -> None:
        assert part.error is not None
        self._note_failure(part.error)
        first, count = part.head.first_offset, part.head.count
        lease.returned += [(offset, self.sharing.lease_ms) for offset in range(first, first + count)]

    # How much to take.

    def _measure(self) -> None:
        """The current tasks are used up."""
        if self._current_count:
            self._pace_ms = max((now_ms() - self._current_ms) / self._current_count, 1e-3)
            self._current_count = 0

    def _may_fetch_ahead(self) -> bool:
        """There is more, and what is taken is settled soon."""
        if not self._has_more or 2 * self._in_hand() > self._unsettled_max:
            return False
        if self._prefetch is not None:
            return self._prefetch > 1
        return 0 < self._pace_ms <= _AHEAD_MS_MAX

    def _appetite(self) -> int:
        """How many messages a take asks for."""
        if self._prefetch is not None:
            return max(1, self._prefetch // 2)
        if not self._pace_ms:
            return 1
        in_time = int(_AT_HAND_MS / 2 / self._pace_ms)
        return max(1, min(in_time, _GROWTH * self._take_count, _TAKE_MAX))


def _until_ms(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else now_ms() + timeout_s * 1000


_workings: weakref.WeakSet[Working[Any]] = weakref.WeakSet()


def _mark_forked() -> None:
    """In a forked child no ack goes anywhere: each has to ask, and is told."""
    for working in list(_workings):
        working._listens = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
