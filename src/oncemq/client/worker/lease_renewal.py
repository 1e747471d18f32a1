"""What happens to leases while people work: they are extended, and acks don't lie for long.

This is a duty of the client's keeper (background.py). While acks come, it looks every few milliseconds. When none came
for that long it is quiet: it rests until a lease is to be extended, and the next ack has to ring.
"""

from __future__ import annotations

from oncemq.client.context import ClientContext
from oncemq.client.core.pending import Pending
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow
from oncemq.client.runtime.rpc import check_reply, wait_for_reply
from oncemq.client.worker.acks import PASSING
from oncemq.client.worker.dead_lettering import Burying
from oncemq.client.worker.leases import Lease, taken_from
from oncemq.protocol import errors
from oncemq.protocol.commands import Extend
from oncemq.protocol.limits import RANGES_MAX
from oncemq.protocol.replies import ExtendReply

#: Acks are sent after this, unless there is a better moment.
_SETTLE_AFTER_MS = 20.0
#: The same while an answer is awaited that nobody else looks for.
_LOOK_AFTER_MS = 5.0
#: A lease is extended after this part of its time; those that are due soon go with it.
_EXTEND_AFTER = 1 / 3
_EXTEND_AHEAD = 1 / 6
#: After an extension that failed.
_EXTEND_AGAIN_MS = 100.0
#: While the answer is awaited.
_EXTEND_ASKED_MS = 1000.0
_NEVER = float("inf")


class Watch:
    """The duty of one shared subscription."""

    def __init__(self, extending: Extending) -> None:
        self.due_ms = _NEVER
        self._extending = extending

    def run(self) -> None:
        self._extending._attend()


class Extending(Burying):
    """The part of a shared subscription that keeps what it has."""

    def __init__(
        self, context: ClientContext, topic: str, subscriber: str, *, auto_extend: bool, extend_max_s: float
    ) -> None:
        super().__init__(context, topic, subscriber)
        self._auto_extend = auto_extend
        self._extend_max_ms = extend_max_s * 1000
        self._watch = Watch(self)
        self._is_quiet = self._listens = True
        #: Somebody waits until enough is settled.
        self._awaits_room = False
        self._extend: Pending | None = None
        self._extended: list[Lease] = []
        self._extend_sent_ms = 0.0

    def _is_answer_due(self) -> bool:
        """Something was asked whose answer nobody waits for."""
        return bool(self._settlements or self._burials or self._unburied or self._extend is not None)

    # Listening.

    def _listen(self) -> None:
        self._listens = self._is_quiet or self._awaits_room or self._error is not None

    def _notice(self, lease: Lease) -> None:
        if lease.is_over:
            self._stragglers.append(lease)
        if self._awaits_room:
            self._driver.wake_waiters()
        if self._is_quiet or lease.is_over:
            self._is_quiet = False
            self._listen()
            self._look_at(now_ms() + _SETTLE_AFTER_MS)

    def _look_at(self, due_ms: float) -> None:
        """Look at that time, or earlier."""
        if due_ms < self._watch.due_ms:
            self._watch.due_ms = due_ms
            self._context.add_task(self._watch)

    # The duty.

    def _attend(self) -> None:
        # Said before it is looked for: who notes an ack meanwhile either is seen, or rings.
        self._is_quiet = True
        self._listen()
        self._note_extension()
        is_active = self._send_settled()
        self._end_leases(now_ms())
        self._extend_leases()
        if is_active:
            self._is_quiet = False
            self._listen()
        self._watch.due_ms = self._next_ms(is_active)

    def _next_ms(self, is_active: bool) -> float:
        at_ms = now_ms()
        due_ms = min((_due_ms(lease, at_ms) for lease in self._leases.values()), default=_NEVER)
        if is_active:
            due_ms = min(due_ms, at_ms + _SETTLE_AFTER_MS)
        if self._is_answer_due():
            due_ms = min(due_ms, at_ms + _LOOK_AFTER_MS)
        return max(due_ms, at_ms + 1.0)

    # Leases.

    def _begin_lease(self, lease: Lease, lease_ms: float, at_ms: float) -> None:
        lease.extend_until_ms = at_ms + self._extend_max_ms if self._auto_extend else 0.0
        self._set_times(lease, lease_ms, at_ms)
        self._leases[lease.token] = lease
        self._out += lease.left
        self._look_at(lease.extend_ms)

    def _set_times(self, lease: Lease, lease_ms: float, at_ms: float) -> None:
        lease.until_ms = at_ms + lease_ms
        extend_ms = at_ms + lease_ms * _EXTEND_AFTER
        lease.extend_ms = extend_ms if extend_ms < lease.extend_until_ms else lease.until_ms

    def _end_leases(self, at_ms: float) -> None:
        """Those whose time is over, and that are not extended."""
        for lease in list(self._leases.values()):
            if lease.until_ms <= at_ms and lease.extend_until_ms <= at_ms:
                self._end_lease(lease)

    def _end_lease(self, lease: Lease) -> None:
        lease.is_over = True
        if self._leases.pop(lease.token, None) is not None:
            self._out -= lease.left
        # Whoever noted an ack before that is seen here.
        if lease.done or lease.returned:
            self._stragglers.append(lease)

    def _lose_lease(self, lease: Lease) -> None:
        """The broker said so. What was noted before is sent all the same: the answer tells of each."""
        lease.is_lost = True
        self._end_lease(lease)

    def _moved(self, epoch: int) -> None:
        """Acks of what was there before the seek can't reach anything: they came too late."""
        former = [lease for lease in (*self._leases.values(), *self._stragglers) if lease.epoch == epoch]
        for lease in dict.fromkeys(former):
            self._lose_lease(lease)
            late = sorted(set(taken_from(lease.done)))
            if late:
                self._note_late(lease, late)
            lease.returned.clear()
        self._stragglers = [lease for lease in self._stragglers if lease.epoch != epoch]

    # Extending.

    def _extend_leases(self) -> None:
        """All that are due, and those that soon will be."""
        at_ms = now_ms()
        if self._extend is not None or self._error is not None:
            return
        if not any(lease.extend_ms <= at_ms < lease.extend_until_ms for lease in self._leases.values()):
            return
        ahead_ms = at_ms + self.sharing.lease_ms * _EXTEND_AHEAD
        living = [lease for lease in self._leases.values() if at_ms < lease.extend_until_ms]
        due = sorted((lease for lease in living if lease.extend_ms <= ahead_ms), key=lambda lease: lease.extend_ms)
        self._extended = due[:RANGES_MAX]
        for lease in self._extended:
            lease.extend_ms = at_ms + _EXTEND_ASKED_MS
        self._extend_sent_ms = at_ms
        self._extend = self._driver.core.ask(self._extend_command(self._extended))

    def _extend_command(self, leases: list[Lease]) -> Extend:
        return Extend(leases[0].topic_id, self.subscriber, leases[0].epoch, tuple(lease.token for lease in leases))

    def _note_extension(self) -> None:
        if self._extend is None or not self._extend.done:
            return
        pending, self._extend = self._extend, None
        extended, self._extended = self._extended, []
        error = pending.error
        if error is None:
            assert isinstance(pending.reply, ExtendReply)
            self._take_extension(extended, pending.reply, self._extend_sent_ms)
        elif isinstance(error, PASSING):
            for lease in extended:
                lease.extend_ms = now_ms() + _EXTEND_AGAIN_MS
        elif isinstance(error, errors.Sought):
            self._moved(extended[0].epoch)
        else:
            self._fail(error)

    def _take_extension(self, leases: list[Lease], reply: ExtendReply, sent_ms: float) -> None:
        lost = set(reply.lost)
        for lease in leases:
            if lease.token not in lost:
                self._set_times(lease, self.sharing.lease_ms, sent_ms)
            elif lease.left > 0:
                self._lose_lease(lease)

    def _extend_now(self, lease: Lease) -> Flow[None]:
        self._check_open()
        sent_ms = now_ms()
        if (yield from self._ask_lost(lease)):
            self._lose_lease(lease)
            raise errors.LeaseLost(f"a lease of '{self.subscriber}' on '{self.topic}' is lost")
        self._set_times(lease, self.sharing.lease_ms, sent_ms)
        if lease.is_over:
            lease.is_over = False
            self._leases[lease.token] = lease
            self._out += lease.left
        self._look_at(lease.extend_ms)

    def _ask_lost(self, lease: Lease) -> Flow[bool]:
        """Extend it. True: that was too late."""
        command = self._extend_command([lease])
        try:
            reply = yield from wait_for_reply(self._driver, self._driver.core.ask(command))
        except errors.Sought:
            self._moved(lease.epoch)
            return True
        return lease.token in check_reply(reply, ExtendReply, command).lost


def _due_ms(lease: Lease, at_ms: float) -> float:
    """When it is to be extended; when it ends, if that may not be."""
    return lease.extend_ms if at_ms < lease.extend_until_ms else lease.until_ms
