"""Settling: acks and returns of a shared subscription's messages, gathered into ranges and sent together.

A `Settle` is numbered, so it happens once. What the broker answers as lost was acked too late: that is never
forgotten, but raised, by the ack itself if it waits, else by the next call of the subscription. When it is not known
whether a settle happened (the broker was away for too long), the same is said again: if it had happened, that
shows as lost, too. So an ack that comes too late may be reported when it did not; the other way round it can't be.

All of this is under the client's lock, except for the lists that the leases have (leases.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

from oncemq.client.context import ClientContext
from oncemq.client.core.pending import Pending, again
from oncemq.client.runtime.driver import Driver
from oncemq.client.runtime.flow import Flow
from oncemq.client.worker.leases import Lease, taken_from
from oncemq.client.worker.task import ACKED, RETURNED, AnyTask
from oncemq.protocol import errors
from oncemq.protocol.commands import Settle
from oncemq.protocol.limits import LEASE_MS_MAX, RANGES_MAX
from oncemq.protocol.replies import SettleReply

#: What another try may cure.
PASSING = (errors.BrokerAway, errors.NotNow)
#: In place of a delay: it is done.
_DONE = -1
#: Offsets that an error names, at the most.
_NAMED_MAX = 20

#: (lease, first offset, count, deliver again after so many milliseconds)
Entry = tuple[Lease, int, int, int]


class Settlement:
    """A settle on its way."""

    __slots__ = ("entries", "epoch", "pending")

    def __init__(self, entries: list[Entry]) -> None:
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
            tuple((each.token, first, count) for each, first, count, delay in self.entries if delay == _DONE),
            tuple((each.token, *rest) for each, *rest in self.entries if rest[2] != _DONE),  # type: ignore[misc]
        )


class Settling:
    """The part of a shared subscription that tells the broker what was done."""

    def __init__(self, context: ClientContext, topic: str, subscriber: str) -> None:
        self.topic = topic
        self.subscriber = subscriber
        #: Acks that came too late, ever.
        self.lost = 0
        self._context = context
        self._driver: Driver = context.driver
        #: What is with us, by token; leases that are over have left it.
        self._leases: dict[int, Lease] = {}
        #: Leases that are over, with something to send.
        self._stragglers: list[Lease] = []
        #: Messages in all of `_leases` that are not on their way to being settled.
        self._out = 0
        self._settlements: list[Settlement] = []
        #: Acks that came too late, and other failures, that nobody was told of yet.
        self._late: list[tuple[Lease, int]] = []
        self._failures: list[errors.OnceMQError] = []
        #: The final error, once there is one: every call fails with it.
        self._error: errors.OnceMQError | None = None
        #: Whoever notes an ack has to say so.
        self._listens = False

    # What others know.

    def _moved(self, epoch: int) -> None:
        """A seek moved the subscription: what was taken in this epoch is lost."""
        raise NotImplementedError

    def _notice(self, lease: Lease) -> None:
        """Somebody noted an ack while we listen, or of a lease that is over."""
        raise NotImplementedError

    def _fail(self, error: errors.OnceMQError) -> None:
        """Final."""
        raise NotImplementedError

    # Complaints.

    def _check(self) -> None:
        """Raises what nobody was told of yet, and what is final."""
        if self._late:
            late, self._late = self._late, []
            raise self._lost_error([offset for _, offset in late])
        if self._failures:
            raise self._failures.pop(0)
        if self._error is not None:
            raise again(self._error)
        self._driver.check_usable()

    def _lost_error(self, offsets: Iterable[int]) -> errors.LeaseLost:
        ranges = list(ranges_of(list(offsets)))
        named = [str(first) if count == 1 else f"{first} to {first + count - 1}" for first, count in ranges]
        more = ["…"] if len(named) > _NAMED_MAX else []
        where = ", ".join(named[:_NAMED_MAX] + more)
        error = errors.LeaseLost(f"'{self.subscriber}' on '{self.topic}' has lost its lease on offset {where}")
        error.offsets = tuple(chain.from_iterable(range(first, first + count) for first, count in ranges))
        return error

    def _note_late(self, lease: Lease, offsets: list[int]) -> None:
        lease.lost.update(offsets)
        self.lost += len(offsets)
        self._late += [(lease, offset) for offset in offsets]

    def _note_failure(self, error: errors.OnceMQError) -> None:
        if not any(type(each) is type(error) for each in self._failures):
            self._failures.append(error)

    # What people say of a task.

    def _ack(self, task: AnyTask, wait: bool) -> Flow[None]:
        lease, offset = task.lease, task.message.offset
        if not task.outcome:
            self._refuse_lost(lease, offset)
            self._check_settleable(task, ACKED)
            task.outcome = ACKED
            lease.done.append(offset)
        elif offset in lease.done:
            # Noted a moment ago, perhaps when it was too late for that.
            self._check_open()
        else:
            self._check_settleable(task, ACKED)
        self._notice(lease)
        if wait:
            yield from self._await_settled(lease, offset)

    def _nack(self, task: AnyTask, delay_s: float, reason: str = "") -> Flow[None]:  # noqa: ARG002
        if not 0 <= delay_s <= LEASE_MS_MAX / 1000:
            raise ValueError(f"delay_s lies between 0 and {LEASE_MS_MAX // 1000} seconds, and is {delay_s}")
        if self._check_settleable(task, RETURNED):
            task.outcome = RETURNED
            self._give_back(task, round(delay_s * 1000))
            self._notice(task.lease)
        yield from ()

    def _give_back(self, task: AnyTask, delay_ms: int) -> None:
        task.lease.returned.append((task.message.offset, delay_ms))

    def _check_settleable(self, task: AnyTask, outcome: str) -> bool:
        """False: it was settled in this way before. Raises RuntimeError where it was in another."""
        if task.outcome not in ("", outcome):
            raise RuntimeError(f"offset {task.offset} of '{self.topic}' was {task.outcome} before")
        if not task.outcome:
            self._check_open()
        return not task.outcome

    def _check_open(self) -> None:
        if self._error is not None:
            raise again(self._error)
        self._driver.check_usable()

    def _refuse_lost(self, lease: Lease, offset: int) -> None:
        if lease.is_lost:
            lease.lost.add(offset)
            self.lost += 1
            raise self._lost_error([offset])

    def _await_settled(self, lease: Lease, offset: int) -> Flow[None]:
        """Until the broker has said what became of an ack."""
        self._send_settled()
        settlement = next((each for each in self._settlements if each.holds(lease, offset)), None)
        if settlement is not None:
            assert settlement.pending is not None
            yield settlement.pending
        if offset in lease.lost:
            self._late = [each for each in self._late if each != (lease, offset)]
            raise self._lost_error([offset])
        if settlement is not None and settlement.pending is not None:
            settlement.pending.result()
        if offset in lease.done:
            self._check()

    # Sending.

    def _send_settled(self) -> bool:
        """Everything that was settled, in as few commands as possible. False: there was nothing."""
        stragglers, self._stragglers = self._stragglers, []
        entries: list[Entry] = []
        for lease in [*self._leases.values(), *dict.fromkeys(stragglers)]:
            if lease.done or lease.returned or lease.elsewhere:
                entries += self._gather(lease)
        for part in _settles_of(entries):
            self._submit(Settlement(part))
        return bool(entries)

    def _gather(self, lease: Lease) -> list[Entry]:
        done = taken_from(lease.done)
        returned = dict(taken_from(lease.returned))
        entries: list[Entry] = [(lease, first, count, _DONE) for first, count in ranges_of(done)]
        for delay_ms in set(returned.values()):
            offsets = [offset for offset, delay in returned.items() if delay == delay_ms]
            entries += [(lease, first, count, delay_ms) for first, count in ranges_of(offsets)]
        settled = sum(count for _, _, count, _ in entries)
        self._count_out(lease, settled + len(taken_from(lease.elsewhere)))
        return entries

    def _count_out(self, lease: Lease, count: int) -> None:
        lease.left -= count
        if self._leases.get(lease.token) is lease:
            self._out -= count
            if lease.left <= 0:
                del self._leases[lease.token]

    def _count_in(self, lease: Lease, count: int) -> None:
        """It has to be settled after all."""
        lease.left += count
        if lease.is_over:
            self._stragglers.append(lease)
        elif lease.token in self._leases:
            self._out += count
        else:
            self._leases[lease.token] = lease
            self._out += lease.left

    def _submit(self, settlement: Settlement) -> None:
        self._settlements.append(settlement)
        on_done = partial(self._answered, settlement)
        try:
            settlement.pending = self._driver.core.submit(settlement.command(), on_done=on_done)
        except errors.OutboxError as error:
            self._settlements.remove(settlement)
            self._settle_again(settlement)
            self._note_failure(error)

    # Answers.

    def _answered(self, settlement: Settlement, pending: Pending) -> None:
        self._settlements.remove(settlement)
        error = pending.error
        if error is None:
            assert isinstance(pending.reply, SettleReply)
            self._note_lost(settlement, pending.reply.lost)
        elif isinstance(error, PASSING):
            self._settle_again(settlement)
        elif isinstance(error, errors.Sought):
            self._moved(settlement.epoch)
            self._note_lost(settlement, [(first, count) for _, first, count, _ in settlement.entries])
        else:
            self._fail(error)
            self._note_failure(error)

    def _note_lost(self, settlement: Settlement, lost: Iterable[tuple[int, int]]) -> None:
        """What was given back, and lost before, has gone where it should."""
        for lost_first, lost_count in lost:
            for lease, first, count, delay_ms in settlement.entries:
                offsets = range(max(first, lost_first), min(first + count, lost_first + lost_count))
                if delay_ms == _DONE and offsets:
                    self._note_late(lease, list(offsets))

    def _settle_again(self, settlement: Settlement) -> None:
        for lease, first, count, delay_ms in settlement.entries:
            offsets = range(first, first + count)
            if delay_ms == _DONE:
                lease.done += offsets
            else:
                lease.returned += [(offset, delay_ms) for offset in offsets]
            self._count_in(lease, count)

    def _flush_settled(self) -> Flow[None]:
        """Until everything that was settled so far is answered. Raises BrokerAway or NotNow where it is not."""
        self._send_settled()
        for settlement in list(self._settlements):
            pending = settlement.pending
            assert pending is not None
            yield pending
            if isinstance(pending.error, PASSING):
                pending.result()


def ranges_of(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of what lies together, each offset once, whatever their order."""
    if not offsets:
        return
    offsets.sort()
    first, last = offsets[0], offsets[-1]
    if last - first + 1 == len(offsets) and len(set(offsets)) == len(offsets):
        yield first, last - first + 1
        return
    end = first
    for offset in dict.fromkeys(offsets):
        if offset != end:
            yield first, end - first
            first = offset
        end = offset + 1
    yield first, end - first


def _settles_of(entries: list[Entry]) -> Iterator[list[Entry]]:
    """What each settle has. None names an offset twice, not even under two tokens: the answer does not tell them
    apart."""
    while entries:
        part: list[Entry] = []
        rest: list[Entry] = []
        end = -1
        for entry in sorted(entries, key=lambda entry: entry[1]):
            if entry[1] < end or len(part) >= RANGES_MAX or (part and entry[0].epoch != part[0][0].epoch):
                rest.append(entry)
            else:
                part.append(entry)
                end = entry[1] + entry[2]
        yield part
        entries = rest
