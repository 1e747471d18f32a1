"""Giving messages up: those that were delivered too often, and those that a consumer rejects.

A message goes to the dead-letter topic and is done on its own in one transaction, so that it is there once,
whatever happens. If the lease is lost, it is with somebody else, who sees to it; that also is the answer when it
happened before, and only the broker's word was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

from oncemq.client.context import ClientContext
from oncemq.client.core.pending import Pending
from oncemq.client.core.validation import check_name
from oncemq.client.runtime.flow import Flow
from oncemq.client.worker.acks import PASSING, Settling, ranges_of
from oncemq.client.worker.dead_letters import TRIES, Given, dead_subscription, make_dead_put
from oncemq.client.worker.leases import Lease
from oncemq.client.worker.task import REJECTED, AnyTask
from oncemq.protocol import errors
from oncemq.protocol.commands import Settle, Sharing, Transact
from oncemq.protocol.limits import RANGES_MAX

log = logging.getLogger("oncemq.client")

#: One transaction has values of about so many bytes.
_BYTES_MAX = 256 * 1024


class Burial:
    """Messages of one lease on their way to the dead-letter topic."""

    __slots__ = ("given", "lease", "pending")

    def __init__(self, lease: Lease, given: list[Given]) -> None:
        self.lease = lease
        self.given = given
        self.pending: Pending | None = None

    @property
    def offsets(self) -> list[int]:
        return [each.message.offset for each in self.given]

    def command(self, dead_topic: str) -> tuple[Transact, bytes]:
        lease = self.lease
        put, payload = make_dead_put(dead_topic, lease.subscriber, self.given)
        done = tuple((lease.token, first, count) for first, count in ranges_of(self.offsets))
        return Transact(settles=(Settle(lease.topic_id, lease.subscriber, lease.epoch, done),), puts=(put,)), payload


class Burying(Settling):
    """The part of a shared subscription that gives messages up."""

    def __init__(self, context: ClientContext, topic: str, subscriber: str) -> None:
        super().__init__(context, topic, subscriber)
        #: As the broker knows it.
        self.sharing = Sharing()
        self._burials: list[Burial] = []
        #: To be tried again.
        self._unburied: list[Burial] = []

    def _nack(self, task: AnyTask, delay_s: float, reason: str = "") -> Flow[None]:
        if self.sharing.dead_topic and task.tries >= self.sharing.tries_max:
            return self._give_up(task, reason or TRIES)
        return super()._nack(task, delay_s)

    def _reject(self, task: AnyTask, reason: str) -> Flow[None]:
        if not self.sharing.dead_topic:
            raise RuntimeError(f"'{self.subscriber}' on '{self.topic}' has no dead-letter topic: it has no tries_max")
        return self._give_up(task, reason)

    def _give_up(self, task: AnyTask, reason: str) -> Flow[None]:
        check_name(reason, "a reason")
        given = Given(task.message, task.tries, reason)
        if self._check_settleable(task, REJECTED):
            task.outcome = REJECTED
            self._bury(task.lease, [given])
            self._notice(task.lease)
            self._driver.pump()
        yield from ()

    def _bury(self, lease: Lease, given: list[Given]) -> None:
        """Under the lock. They are not handed out any more."""
        self._count_out(lease, len(given))
        for part in _parts(given):
            self._send_burial(Burial(lease, part))

    def _send_burial(self, burial: Burial) -> None:
        core = self._driver.core
        dead_topic = self.sharing.dead_topic
        self._burials.append(burial)
        try:
            # Each time: if somebody has removed it since, what comes would be lost.
            core.submit(dead_subscription(dead_topic))
            burial.pending = core.submit(*burial.command(dead_topic), on_done=partial(self._buried, burial))
        except errors.OutboxError as error:
            self._burials.remove(burial)
            self._keep(burial, error)

    def _buried(self, burial: Burial, pending: Pending) -> None:
        self._burials.remove(burial)
        error = pending.error
        if error is None:
            return
        if isinstance(error, PASSING):
            self._unburied.append(burial)
        elif isinstance(error, errors.LeaseLost) and len(burial.given) > 1:
            # One of them may have been lost alone.
            self._unburied += [Burial(burial.lease, [given]) for given in burial.given]
        elif isinstance(error, errors.LeaseLost | errors.Sought):
            log.info("offset %d of '%s' is with somebody else", burial.offsets[0], self.topic)
        else:
            self._keep(burial, error)

    def _keep(self, burial: Burial, error: errors.OnceMQError) -> None:
        """They can't be stored there: they go out again, after a while, and somebody is told."""
        where = f"offset {burial.offsets[0]} of '{self.topic}' can't be stored in '{self.sharing.dead_topic}'"
        self._note_failure(type(error)(f"{where}: {error.text}"))
        burial.lease.returned += [(offset, self.sharing.lease_ms) for offset in burial.offsets]
        self._count_in(burial.lease, len(burial.given))

    def _send_settled(self) -> bool:
        unburied, self._unburied = self._unburied, []
        for burial in unburied:
            self._send_burial(burial)
        return super()._send_settled() or bool(unburied)

    def _flush_settled(self) -> Flow[None]:
        yield from super()._flush_settled()
        while self._burials:
            pending = self._burials[0].pending
            assert pending is not None
            yield pending
            if isinstance(pending.error, PASSING):
                pending.result()
            self._send_settled()


def _parts(given: list[Given]) -> Iterator[list[Given]]:
    part: list[Given] = []
    size = 0
    for each in given:
        if part and (size + len(each.message.value) > _BYTES_MAX or len(part) >= RANGES_MAX):
            yield part
            part, size = [], 0
        part.append(each)
        size += len(each.message.value)
    if part:
        yield part
