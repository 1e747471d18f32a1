"""Models of shared subscriptions: which member has a lease on which message, and what was settled.

Violations: a message that is acked twice or never, two leases on a message at the same time, a late settle that
succeeds, a redelivery before its delay has ended, two messages of a key in flight or in the wrong order.

A command that releases a message counts when it is sent; one that claims a message counts when it is answered. So the
model never reports a correct schedule.
"""

from __future__ import annotations

from oncemq.protocol import commands, replies
from tests.simulation.checks.history import History
from tests.simulation.environment.world import Violation, World

Key = tuple[int, str]
_NO_KEY = b""


def key_of(value: bytes) -> bytes:
    """Return the key of a message, which is part of its value."""
    _, found, rest = value.partition(b";key=")
    return rest.split(b";")[0] if found else _NO_KEY


class Lease:
    """A lease on a message: no other member may get the message before `until_ms`."""

    __slots__ = ("member", "offset", "token", "until_ms")

    def __init__(self, offset: int, token: int, member: str, until_ms: int) -> None:
        self.offset = offset
        self.token = token
        self.member = member
        self.until_ms = until_ms


class LeaseModel:
    def __init__(
        self, world: World, history: History, label: str, topic_id: int, start: int, sharing: commands.Sharing
    ) -> None:
        self._world = world
        self._history = history
        self.label = label
        self.topic_id = topic_id
        self.start = start
        self.sharing = sharing
        #: The newest known lease, by offset.
        self.leases: dict[int, Lease] = {}
        self._tries: dict[int, int] = {}
        #: Offset → the operation that acked it; and offset → number of acks that are undecided.
        self.done: dict[int, commands.Operation] = {}
        self.maybe_done: dict[int, int] = {}
        #: Offset → (token, earliest redelivery) of nacks that were sent; and the nacks that were accepted.
        self._returned: dict[int, tuple[int, int]] = {}
        self._accepted_returns: set[tuple[int, int]] = set()
        #: Redeliveries before the delay of a nack had ended, which are correct only if the nack failed.
        self._early: set[tuple[int, int]] = set()

    # Takes.

    def taken(self, offset: int, token: int, member: str, tries: int, until_ms: int, value: bytes) -> None:
        before = self.leases.get(offset)
        if before is not None and token < before.token:
            return  # A late reply: that lease ended before the newest one started.
        if offset in self.done:
            raise Violation(f"duplicated: {self.label} delivered {offset} to {member}, but it was acked before")
        self._check_leases(offset, token, member)
        self._check_delay(offset, token)
        if self.sharing.key_order and key_of(value):
            self._check_key(offset, token, key_of(value), member)
        if before is not None and token > before.token and tries <= self._tries[offset]:
            raise Violation(f"inconsistent: {self.label} delivered {offset} with delivery count {tries} again")
        if before is None or token > before.token:
            self.leases[offset] = Lease(offset, token, member, until_ms)
            self._tries[offset] = tries

    def _check_leases(self, offset: int, token: int, member: str) -> None:
        lease = self.leases.get(offset)
        if lease is not None and lease.token != token and lease.until_ms > self._world.now_ms:
            raise Violation(
                f"{self.label}: {member} got {offset}, but {lease.member} has a lease on it "
                f"for {lease.until_ms - self._world.now_ms} ms at least"
            )

    def _check_delay(self, offset: int, token: int) -> None:
        returned_token, not_before_ms = self._returned.get(offset, (0, 0))
        if token <= returned_token or not_before_ms <= self._world.now_ms:
            return
        if (offset, returned_token) in self._accepted_returns:
            self._too_early(offset)
        self._early.add((offset, returned_token))

    def _too_early(self, offset: int) -> None:
        raise Violation(f"too early: {self.label} delivered {offset} again before its delay had ended")

    def _check_key(self, offset: int, token: int, key: bytes, member: str) -> None:
        log = self._history.log.get(self.topic_id, {})
        for other, (value, _) in log.items():
            if other == offset or other < self.start or other in self.done or other in self.maybe_done:
                continue
            if key_of(value) != key:
                continue
            if other < offset:
                raise Violation(f"out of order: {self.label} gave {member} {offset} of key {key!r} before {other}")
            lease = self.leases.get(other)
            if lease is not None and lease.until_ms > self._world.now_ms:
                raise Violation(f"{self.label}: {offset} and {other} of key {key!r} are out at a time")

    def extended(self, tokens: tuple[int, ...], until_ms: int) -> None:
        for lease in self.leases.values():
            if lease.token in tokens and lease.until_ms:
                lease.until_ms = max(lease.until_ms, until_ms)

    def left(self, member: str) -> None:
        """A member is about to leave: its messages may be given to others."""
        for lease in self.leases.values():
            if lease.member == member:
                lease.until_ms = 0

    def recovered(self, died_ms: int, now_ms: int) -> None:
        """Leases that had not ended when the broker died get their full duration again."""
        for lease in self.leases.values():
            if lease.until_ms > died_ms:
                lease.until_ms = now_ms + self.sharing.lease_ms

    # Settles.

    def sent(self, settle: commands.Settle) -> None:
        for _, first, count in settle.done:
            for offset in range(first, first + count):
                self.maybe_done[offset] = self.maybe_done.get(offset, 0) + 1
        for token, first, count, delay_ms in settle.returned:
            for offset in range(first, first + count):
                self._free(offset, token)
                if delay_ms and token >= self._returned.get(offset, (0, 0))[0]:
                    self._returned[offset] = (token, self._world.now_ms + delay_ms)

    def _free(self, offset: int, token: int) -> None:
        lease = self.leases.get(offset)
        if lease is not None and lease.token == token:
            lease.until_ms = 0

    def late(self, settle: commands.Settle) -> set[int]:
        """Return the offsets that are known to be leased to another member when this is sent."""
        ranges = [*settle.done, *(entry[:3] for entry in settle.returned)]
        return {
            offset
            for token, first, count in ranges
            for offset in range(first, first + count)
            if (lease := self.leases.get(offset)) is not None and lease.token > token
        }

    def settled(
        self, operation: commands.Operation, settle: commands.Settle, lost: set[int] | None, late: set[int]
    ) -> None:
        """A settle was decided. `lost` is None if it was not executed."""
        for _, first, count in settle.done:
            for offset in range(first, first + count):
                self._not_maybe(offset)
                if lost is not None and offset not in lost:
                    self._accept_done(offset, operation)
        for token, first, count, _ in settle.returned:
            for offset in range(first, first + count):
                if lost is not None and offset not in lost:
                    self._accept_return(offset, token)
        accepted = late - lost if lost is not None else ()
        if accepted:
            raise Violation(f"{self.label}: a settle of {sorted(accepted)} came too late and was accepted")

    def _not_maybe(self, offset: int) -> None:
        self.maybe_done[offset] -= 1
        if not self.maybe_done[offset]:
            del self.maybe_done[offset]

    def _accept_done(self, offset: int, operation: commands.Operation) -> None:
        if offset in self.done:
            raise Violation(f"duplicated: {self.label}: {offset} was done twice")
        self.done[offset] = operation

    def _accept_return(self, offset: int, token: int) -> None:
        self._accepted_returns.add((offset, token))
        if (offset, token) in self._early:
            self._too_early(offset)

    # At the end.

    def check(self, info: replies.SubscriptionInfo) -> None:
        if info.acked != info.end_offset or info.leased or info.done:
            raise Violation(f"lost: {self.label} is not done: {info}")
        for offset in range(self.start, info.end_offset):
            if offset not in self.done:
                raise Violation(f"lost: {self.label}: {offset} is acked, but no member settled it")


class Leases:
    """The models of all shared subscriptions."""

    def __init__(self, world: World, history: History) -> None:
        self._world = world
        self._history = history
        self.models: dict[Key, LeaseModel] = {}
        #: Offsets that were too late when the operation was sent.
        self._late: dict[commands.Operation, set[int]] = {}

    def subscribed(
        self, label: str, subscriber: str, reply: replies.SubscribeReply, sharing: commands.Sharing
    ) -> LeaseModel:
        key = (reply.topic_id, subscriber)
        found = self.models.get(key)
        if found is None:
            found = LeaseModel(self._world, self._history, label, reply.topic_id, reply.acked, sharing)
            self.models[key] = found
        return found

    def recovered(self, died_ms: int, now_ms: int) -> None:
        for model in self.models.values():
            model.recovered(died_ms, now_ms)

    def sent(self, operation: commands.Settle | commands.Transact) -> None:
        """An operation is about to be sent for the first time."""
        for settle in _settles(operation):
            model = self.models[settle.topic_id, settle.subscriber]
            self._late[operation] = self._late.get(operation, set()) | model.late(settle)
            model.sent(settle)

    def decided(self, operation: commands.Settle | commands.Transact, verdict: replies.Verdict | None) -> None:
        lost: set[int] | None = None
        if isinstance(verdict, replies.SettleReply):
            lost = {offset for first, count in verdict.lost for offset in range(first, first + count)}
        elif isinstance(verdict, replies.TransactReply):
            lost = set()
        for settle in _settles(operation):
            model = self.models[settle.topic_id, settle.subscriber]
            model.settled(operation, settle, lost, self._late.get(operation, set()))


def _settles(operation: commands.Settle | commands.Transact) -> tuple[commands.Settle, ...]:
    return (operation,) if isinstance(operation, commands.Settle) else operation.settles
