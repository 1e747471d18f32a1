"""The ack sender of a shared consumer: acks and returns, gathered into ranges and sent together.

A `Settle` is numbered, so it happens once. If it is not known whether one happened (the broker did not answer in time),
the same is sent again: if it had happened, the broker answers that the leases are lost. So an ack may be reported as
late when it was not; the other way round is impossible.

All of this runs under the client's lock, except for the lists of the leases (leases.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from oncemq.client.core.commands.pending import Pending
from oncemq.client.runtime.flow import Flow
from oncemq.client.worker.dead_letter_sender import DeadLetterSender
from oncemq.client.worker.leases import Lease, take_prefix
from oncemq.client.worker.membership import Membership, ranges_of
from oncemq.protocol import errors
from oncemq.protocol.commands import Settle
from oncemq.protocol.limits import RANGES_MAX
from oncemq.protocol.replies import SettleReply

#: In place of a delay: the messages are acked.
_ACKED = -1

#: (lease, first offset, count, milliseconds after which they are delivered again)
_Entry = tuple[Lease, int, int, int]


class _Settlement:
    """A settle in flight."""

    __slots__ = ("entries", "epoch", "pending")

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries = entries
        self.epoch = entries[0][0].epoch
        self.pending: Pending | None = None

    def holds(self, lease: Lease, offset: int) -> bool:
        return any(each is lease and first <= offset < first + count for each, first, count, _ in self.entries)

    def command(self) -> Settle:
        lease = self.entries[0][0]
        return Settle(
            lease.topic_id,
            lease.subscriber,
            lease.epoch,
            tuple((each.token, first, count) for each, first, count, delay in self.entries if delay == _ACKED),
            tuple((each.token, *rest) for each, *rest in self.entries if rest[2] != _ACKED),  # type: ignore[misc]
        )


class AckSender:
    """Tells the broker which messages are settled."""

    def __init__(self, membership: Membership, dead_letters: DeadLetterSender) -> None:
        self._membership = membership
        self._dead_letters = dead_letters
        self._in_flight: list[_Settlement] = []

    @property
    def is_waiting(self) -> bool:
        """Something was sent whose reply no caller may be waiting for."""
        return bool(self._in_flight) or self._dead_letters.is_waiting

    # Sending.

    def send(self) -> bool:
        """Send everything that was settled, in as few commands as possible. False: there was nothing."""
        has_resent = self._dead_letters.resend()
        entries: list[_Entry] = []
        for lease in self._membership.table.take_unsent():
            entries += self._gather(lease)
        for part in _settles_of(entries):
            self._submit(_Settlement(part))
        return bool(entries) or has_resent

    def _gather(self, lease: Lease) -> list[_Entry]:
        acked = take_prefix(lease.done)
        returned = dict(take_prefix(lease.returned))
        entries: list[_Entry] = [(lease, first, count, _ACKED) for first, count in ranges_of(acked)]
        for delay_ms in set(returned.values()):
            offsets = [offset for offset, delay in returned.items() if delay == delay_ms]
            entries += [(lease, first, count, delay_ms) for first, count in ranges_of(offsets)]
        settled = sum(count for _, _, count, _ in entries)
        self._membership.table.mark_sent(lease, settled + len(take_prefix(lease.settled_by_transaction)))
        return entries

    def _submit(self, settlement: _Settlement) -> None:
        self._in_flight.append(settlement)
        on_done = partial(self._take_reply, settlement)
        try:
            settlement.pending = self._membership.driver.core.submit(settlement.command(), on_done=on_done)
        except errors.OutboxError as error:
            self._in_flight.remove(settlement)
            self._settle_again(settlement)
            self._membership.note_failure(error)

    def wait_for(self, lease: Lease, offset: int) -> Flow[None]:
        """Wait until the broker has answered an ack. Raises LeaseLost if it came too late."""
        self.send()
        settlement = next((each for each in self._in_flight if each.holds(lease, offset)), None)
        if settlement is not None:
            assert settlement.pending is not None
            yield settlement.pending
        self._membership.raise_late(lease, offset)
        if settlement is not None and settlement.pending is not None:
            settlement.pending.result()
        if offset in lease.done:
            self._membership.check()

    def flush(self) -> Flow[None]:
        """Wait until the broker has answered everything that was settled. Raises BrokerAway or NotNow if it has not."""
        self.send()
        for settlement in list(self._in_flight):
            assert settlement.pending is not None
            yield settlement.pending
            if isinstance(settlement.pending.error, errors.TRANSIENT):
                settlement.pending.result()
        while (pending := self._dead_letters.first_pending) is not None:
            yield pending
            if isinstance(pending.error, errors.TRANSIENT):
                pending.result()
            self.send()

    # Replies.

    def _take_reply(self, settlement: _Settlement, pending: Pending) -> None:
        self._in_flight.remove(settlement)
        error = pending.error
        if error is None:
            assert isinstance(pending.reply, SettleReply)
            self._note_lost(settlement, pending.reply.lost)
        elif isinstance(error, errors.TRANSIENT):
            self._settle_again(settlement)
        elif isinstance(error, errors.Sought):
            self._membership.lose_epoch(settlement.epoch)
            self._note_lost(settlement, [(first, count) for _, first, count, _ in settlement.entries])
        else:
            self._membership.fail(error)
            self._membership.note_failure(error)

    def _note_lost(self, settlement: _Settlement, lost: Iterable[tuple[int, int]]) -> None:
        """Acks came too late. A message that was returned, and lost before, is where it should be."""
        for lost_first, lost_count in lost:
            for lease, first, count, delay_ms in settlement.entries:
                offsets = range(max(first, lost_first), min(first + count, lost_first + lost_count))
                if delay_ms == _ACKED and offsets:
                    self._membership.note_late(lease, list(offsets))

    def _settle_again(self, settlement: _Settlement) -> None:
        for lease, first, count, delay_ms in settlement.entries:
            offsets = range(first, first + count)
            if delay_ms == _ACKED:
                lease.done += offsets
            else:
                lease.returned += [(offset, delay_ms) for offset in offsets]
            self._membership.table.mark_unsent(lease, count)


def _settles_of(entries: list[_Entry]) -> Iterator[list[_Entry]]:
    """Yield the entries of each settle. None names an offset twice, not even under two tokens: the reply does not tell
    them apart."""
    while entries:
        part: list[_Entry] = []
        rest: list[_Entry] = []
        end = -1
        for entry in sorted(entries, key=lambda entry: entry[1]):
            if entry[1] < end or len(part) >= RANGES_MAX or (part and entry[0].epoch != part[0][0].epoch):
                rest.append(entry)
            else:
                part.append(entry)
                end = entry[1] + entry[2]
        yield part
        entries = rest
