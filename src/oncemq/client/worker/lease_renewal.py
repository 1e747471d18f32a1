"""The lease renewer of a shared consumer: leases are renewed and acks are sent while the caller works.

It is a periodic task of the client (background.py). While acks arrive, it collects them every few milliseconds. After a
pass without acks it is idle: it sleeps until the next renewal is due, and the next ack must wake it.
"""

from __future__ import annotations

from oncemq.client.core.commands.pending import Pending
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow
from oncemq.client.runtime.rpc import wait_for_reply
from oncemq.client.worker.acks import AckSender
from oncemq.client.worker.leases import Lease
from oncemq.client.worker.membership import Membership
from oncemq.client.worker.options import WorkerOptions
from oncemq.protocol import errors
from oncemq.protocol.commands import Extend
from oncemq.protocol.limits import RANGES_MAX
from oncemq.protocol.replies import ExtendReply, expect

#: Acks are sent after this time, unless there is a better moment.
_SEND_AFTER_MS = 20.0
#: The same while a reply is awaited that no caller looks for.
_LOOK_AFTER_MS = 5.0
#: A lease is renewed after this fraction of its duration. Leases that are due soon afterwards are renewed with it.
_RENEW_AFTER = 1 / 3
_RENEW_AHEAD = 1 / 6
#: After a renewal that failed.
_RENEW_AGAIN_MS = 100.0
#: While the reply is awaited.
_RENEW_SENT_MS = 1000.0
_NEVER = float("inf")


class LeaseRenewer:
    """A periodic task: sends acks, renews leases and ends those that have expired."""

    def __init__(self, membership: Membership, acks: AckSender, options: WorkerOptions) -> None:
        self.due_ms = _NEVER
        self._membership = membership
        self._table = membership.table
        self._driver = membership.driver
        self._acks = acks
        self._auto_extend = options.auto_extend
        self._extend_max_ms = options.extend_max_s * 1000
        #: A reply to a take that perhaps no caller waits for.
        self._expected: Pending | None = None
        self._renewal: Pending | None = None
        self._renewed: list[Lease] = []
        self._renewal_sent_ms = 0.0

    # What makes it due.

    def wake(self, lease: Lease) -> None:
        """Send an ack of this lease soon. Tasks call it if the renewer is idle, or if the lease is over."""
        if lease.is_over:
            self._table.expired.append(lease)
        if self._table.awaits_capacity:
            self._driver.wake_waiters()
        if self._table.is_idle or lease.is_over:
            self._table.set_idle(False)
            self._look_at(now_ms() + _SEND_AFTER_MS)

    def expect(self, pending: Pending | None) -> None:
        """Look for this reply: its leases have to be renewed even if no caller waits for it."""
        self._expected = pending

    def look_within(self, delay_ms: float) -> None:
        """Run within this time."""
        self.due_ms = min(self.due_ms, now_ms() + delay_ms)

    def _look_at(self, due_ms: float) -> None:
        """Run at that time, or earlier."""
        if due_ms < self.due_ms:
            self.due_ms = due_ms
            self._membership.context.add_task(self)

    def run(self) -> None:
        """Do what is due. The lock is held."""
        # Set before acks are collected: an ack that is noted meanwhile is either collected, or wakes the renewer.
        self._table.set_idle(True)
        self._take_renewal()
        is_active = self._acks.send()
        self._table.end_expired(now_ms())
        self._renew_due()
        if is_active:
            self._table.set_idle(False)
        self.due_ms = self._next_ms(is_active)

    def _next_ms(self, is_active: bool) -> float:
        at_ms = now_ms()
        due_ms = min((_due_ms(lease, at_ms) for lease in self._table.leases.values()), default=_NEVER)
        if is_active:
            due_ms = min(due_ms, at_ms + _SEND_AFTER_MS)
        is_expecting = self._expected is not None and not self._expected.done
        if is_expecting or self._acks.is_waiting or self._renewal is not None:
            due_ms = min(due_ms, at_ms + _LOOK_AFTER_MS)
        return max(due_ms, at_ms + 1.0)

    # Leases.

    def start(self, lease: Lease, lease_ms: float, at_ms: float) -> None:
        """A take has brought a lease."""
        lease.extend_until_ms = at_ms + self._extend_max_ms if self._auto_extend else 0.0
        _set_times(lease, lease_ms, at_ms)
        self._table.add(lease)
        self._look_at(lease.extend_ms)

    def extend(self, lease: Lease) -> Flow[None]:
        """Renew a lease now. Raises LeaseLost."""
        membership = self._membership
        membership.check_open()
        sent_ms = now_ms()
        if (yield from self._is_lost(lease)):
            self._table.lose(lease)
            where = f"'{membership.subscriber}' on '{membership.topic}'"
            raise errors.LeaseLost(f"a lease of {where} has expired; another worker may have its messages")
        _set_times(lease, membership.sharing.lease_ms, sent_ms)
        if lease.is_over:
            self._table.add(lease)
        self._look_at(lease.extend_ms)

    def _is_lost(self, lease: Lease) -> Flow[bool]:
        """Renew a lease. True: that was too late."""
        command = self._command([lease])
        try:
            reply = yield from wait_for_reply(self._driver, self._driver.core.ask(command))
        except errors.Sought:
            self._membership.lose_epoch(lease.epoch)
            return True
        return lease.token in expect(reply, ExtendReply).lost

    def _renew_due(self) -> None:
        """Renew all leases that are due, and those that soon will be."""
        at_ms = now_ms()
        leases = self._table.leases.values()
        if self._renewal is not None or self._membership.error is not None:
            return
        if not any(lease.extend_ms <= at_ms < lease.extend_until_ms for lease in leases):
            return
        ahead_ms = at_ms + self._membership.sharing.lease_ms * _RENEW_AHEAD
        due = [lease for lease in leases if at_ms < lease.extend_until_ms and lease.extend_ms <= ahead_ms]
        due.sort(key=lambda lease: lease.extend_ms)
        self._renewed = due[:RANGES_MAX]
        for lease in self._renewed:
            lease.extend_ms = at_ms + _RENEW_SENT_MS
        self._renewal_sent_ms = at_ms
        self._renewal = self._driver.core.ask(self._command(self._renewed))

    def _command(self, leases: list[Lease]) -> Extend:
        tokens = tuple(lease.token for lease in leases)
        return Extend(leases[0].topic_id, self._membership.subscriber, leases[0].epoch, tokens)

    def _take_renewal(self) -> None:
        if self._renewal is None or not self._renewal.done:
            return
        pending, self._renewal = self._renewal, None
        renewed, self._renewed = self._renewed, []
        error = pending.error
        if error is None:
            assert isinstance(pending.reply, ExtendReply)
            self._set_renewed(renewed, set(pending.reply.lost))
        elif isinstance(error, errors.TRANSIENT):
            for lease in renewed:
                lease.extend_ms = now_ms() + _RENEW_AGAIN_MS
        elif isinstance(error, errors.Sought):
            self._membership.lose_epoch(renewed[0].epoch)
        else:
            self._membership.fail(error)

    def _set_renewed(self, leases: list[Lease], lost: set[int]) -> None:
        for lease in leases:
            if lease.token not in lost:
                _set_times(lease, self._membership.sharing.lease_ms, self._renewal_sent_ms)
            elif lease.left > 0:
                self._table.lose(lease)


def _set_times(lease: Lease, lease_ms: float, at_ms: float) -> None:
    lease.until_ms = at_ms + lease_ms
    extend_ms = at_ms + lease_ms * _RENEW_AFTER
    lease.extend_ms = extend_ms if extend_ms < lease.extend_until_ms else lease.until_ms


def _due_ms(lease: Lease, at_ms: float) -> float:
    """When a lease is to be renewed; when it expires, if it may not be renewed."""
    return lease.extend_ms if at_ms < lease.extend_until_ms else lease.until_ms
