"""Transactions: acks and puts over any topics in one command, all of it or nothing.

A transaction collects; nothing leaves the process before its block ends. After an exception inside the block nothing is
sent, and the messages that its thread or task got from subscriptions without `auto_ack`, and has not acked, are
delivered again. This includes messages that were delivered before the block: to ack "everything that was delivered"
must never include a message whose processing failed.

With `wait=False` the block ends when the transaction was sent. Those that nobody waits for are in unanswered.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from oncemq.client.consumer.consumer import Consumer
from oncemq.client.core.validation import check_name
from oncemq.client.producer.encoding import (
    Headers,
    Times,
    Value,
    as_bytes,
    check_columns,
    encode_columns,
    headers_as_bytes,
    make_put,
    times_of,
)
from oncemq.client.producer.receipt import Receipt, receipt_of
from oncemq.client.schemas.claims import all_raw_or_objects, raw_or_object
from oncemq.client.unanswered import SentTransaction
from oncemq.client.worker.task import BaseTask, mark_committed
from oncemq.protocol import errors
from oncemq.protocol.commands import AckUpto, Put, Settle, Transact
from oncemq.protocol.frames import Frame
from oncemq.protocol.message import Message
from oncemq.protocol.replies import Reply, TransactReply, expect

if TYPE_CHECKING:
    from oncemq.client.consumer.aio import Subscription as AsyncSubscription
    from oncemq.client.consumer.sync import Subscription
    from oncemq.client.context import ClientContext
    from oncemq.client.runtime.event_loop import EventLoopDriver
    from oncemq.client.runtime.flow import Flow
    from oncemq.client.runtime.threads import ThreadDriver
    from oncemq.client.schemas.topic_schemas import TopicSchemas


_Keys = list[bytes | None] | None
_Headers = list[Mapping[str, bytes] | None] | None


class _Run(msgspec.Struct):
    """Messages that become one batch: they have the same topic and options."""

    topic: str
    create: bool
    times: Times
    #: Bytes, and objects that the topic's schema encodes.
    values: list[object]
    #: One for each value, or None: no message has any.
    keys: list[bytes | None] | None = None
    headers: list[Mapping[str, bytes] | None] | None = None

    def fits(self, topic: str, create: bool, times: Times) -> bool:
        return (self.topic, self.create, self.times) == (topic, create, times)

    def add(self, values: Sequence[object], keys: _Keys, headers: _Headers) -> None:
        count = len(self.values)
        self.values += values
        if self.keys is not None or keys is not None:
            self.keys = (self.keys or [None] * count) + (keys or [None] * len(values))
        if self.headers is not None or headers is not None:
            self.headers = (self.headers or [None] * count) + (headers or [None] * len(values))

    def make(self, schemas: TopicSchemas) -> tuple[Put, bytes]:
        values, claim = schemas.checked_all(self.topic, self.values)
        return make_put(self.topic, self.create, values, self.keys, self.headers, self.times, claim)


class BaseTransaction:
    """What a transaction collects, and the flows that end it."""

    def __init__(self, context: ClientContext, wait: bool) -> None:
        if not wait and context.core.has_outbox:
            raise ValueError("with an outbox, a transaction waits until the broker has decided it: leave wait=True")
        self._context = context
        self._waits = wait
        #: Subscriptions that go back from now on deliver again what may have gone into this transaction.
        self._rewinds = context.rewinds
        #: By subscription, topic id → what transactions had acked that were on their way when this one acked.
        self._since: dict[Consumer, dict[int, int]] = {}
        self._runs: list[_Run] = []
        #: By subscription, topic id → all offsets below are acked.
        self._acks: dict[Consumer, dict[int, int]] = {}
        #: The epoch in which they were delivered: if the subscription was moved since, the broker refuses the acks.
        self._epochs: dict[Consumer, int] = {}
        #: The thread or task that entered the block; 0: none did.
        self._owner = 0
        self._tasks: list[BaseTask] = []
        self._has_ended = False
        #: As they were sent.
        self._puts: tuple[Put, ...] = ()
        #: One for each run of puts to a topic, once it is known that the transaction is committed.
        self.receipts: list[Receipt] = []

    def put(
        self,
        topic: str,
        value: object,
        *,
        key: Value | None = None,
        headers: Headers | None = None,
        create: bool = False,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> None:
        """Store a message with the rest of the transaction.

        >>> transaction.put("invoices", "one pizza: 9.50")
        """
        self._add(
            topic,
            create,
            times_of(ttl_s, delay_s),
            [raw_or_object(value)],
            None if key is None else [as_bytes(key)],
            None if headers is None else [headers_as_bytes(headers)],
        )

    def put_many(
        self,
        topic: str,
        values: Iterable[object],
        *,
        keys: Iterable[Value | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
        create: bool = False,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> None:
        """Store messages with the rest of the transaction, in order.

        >>> transaction.put_many("invoices", ["one pizza: 9.50", "two salads: 11.00"])
        """
        check_columns(values, None, None)
        found = all_raw_or_objects(values)
        # Now the length is known, also where the values came from an iterator.
        check_columns(found, keys, headers)
        self._add(topic, create, times_of(ttl_s, delay_s), *encode_columns(found, keys, headers))

    def _add(
        self,
        topic: str,
        create: bool,
        times: Times,
        values: Sequence[object],
        keys: _Keys,
        headers: _Headers,
    ) -> None:
        self._check_open()
        check_name(topic, "a topic's name")
        if not values:
            return
        # Batches of other topics may come between: order holds within a topic.
        run = next((run for run in reversed(self._runs) if run.topic == topic), None)
        if run is None or not run.fits(topic, bool(create), times):
            run = _Run(topic, bool(create), times, [])
            self._runs.append(run)
        run.add(values, keys, headers)

    def ack(self, what: Subscription | AsyncSubscription | BaseTask, message: Message | int | None = None) -> None:
        """Ack with the rest of the transaction: the messages of a subscription up to and including this one (None:
        all that were delivered), or a task of a shared subscription.

        >>> transaction.ack(orders, message)
        """
        self._check_open()
        if isinstance(what, BaseTask):
            self._tasks.append(what)
            return
        consumer = what.consumer
        if consumer.context is not self._context:
            raise ValueError("the subscription belongs to another client; a transaction has one")
        if consumer.auto_ack:
            raise ValueError("a transaction decides what is acked: open the subscription with auto_ack=False")
        epoch = consumer.epoch
        if epoch is None:
            raise ValueError("this subscription has not delivered a message yet")
        self._epochs.setdefault(consumer, epoch)
        acks = self._acks.setdefault(consumer, {})
        since = self._since.setdefault(consumer, {})
        for topic_id, upto in consumer.acks_for_transaction(message).items():
            acks[topic_id] = max(upto, acks.get(topic_id, 0))
            since[topic_id] = max(consumer.transactions.position(topic_id), since.get(topic_id, 0))
        if self._owner:
            consumer.transactions.claim(self, acks)

    def _check_open(self) -> None:
        if self._has_ended:
            raise RuntimeError("this transaction has ended; begin another one")

    def _commit(self) -> Flow[None]:
        self._check_open()
        self._has_ended = True
        try:
            # If an earlier one has failed, this one must not ack beyond its messages.
            for consumer in list(self._acks):
                yield from consumer.transactions.check()
            self._check_rewinds()
        except BaseException:
            self._go_back()
            raise
        if not (self._runs or self._acks or self._tasks):
            return
        if not self._waits and self._can_go_on():
            yield from self._send()
            return
        try:
            topics = {run.topic for run in self._runs}
            reply = yield from self._context.schemas.retrying(topics, self._transact)
        except BaseException as error:
            self._fail(error)
            if isinstance(error, errors.EarlierFailed):
                # The reason is what has become of the earlier one.
                for consumer in list(self._acks):
                    yield from consumer.transactions.check()
            raise
        self._committed(reply)

    def _can_go_on(self) -> bool:
        """Whether the outcome need not be known now. If this transaction fails, only what it acks is held back: so it
        must ack, at least in part, all subscriptions whose messages may have gone into it. Tasks have leases."""
        caller = self._context.driver.caller.identify()
        others = [each for each in self._explicit() if each not in self._acks]
        return not self._tasks and not any(each.is_ahead(caller) for each in others)

    def _check_rewinds(self) -> None:
        """Raise EarlierFailed if messages that may have gone into this transaction are delivered again."""
        for consumer in {*self._acks, *self._read_by(self._owner)}:
            if consumer.transactions.rewound_at > self._rewinds:
                text = "a transaction that was sent before has failed since this one began"
                raise errors.EarlierFailed(f"{text}: the messages of '{consumer.cursor.topic}' are delivered again")

    def _send(self) -> Flow[None]:
        """Send it, and do not wait for the reply."""
        context = self._context
        topics = {run.topic for run in self._runs}
        try:
            yield from context.transactions.wait_for_space()
            for topic in topics:
                yield from context.schemas.ready(topic)
            yield from context.schemas.retrying(topics, self._submit)
        except BaseException as error:
            # After an interrupt it may have been sent: then the broker knows the position.
            self._fail(error)
            raise
        self._runs.clear()

    def _submit(self) -> Flow[None]:
        context = self._context
        yield from context.wait_to_send()
        self._check_rewinds()
        operation, payloads = self._make_operation()
        pending = context.send(operation, payloads, tuple(put.topic for put in self._puts))
        sent = SentTransaction(pending, self._acks, self._epochs, self._note_receipts)
        context.transactions.add(sent)
        for consumer in self._acks:
            # From now on this says what it claims.
            consumer.transactions.add(sent)
            consumer.transactions.end_claim(self)
        context.driver.pump()

    def _transact(self) -> Flow[Reply]:
        operation, payloads = self._make_operation()
        return (yield from self._context.call_any(operation, payloads or None))

    def _make_operation(self) -> tuple[Transact, tuple[Frame, ...]]:
        self._puts, payloads = self._make_puts()
        return Transact(self._make_acks(), self._make_settles(), self._puts), payloads

    def _make_puts(self) -> tuple[tuple[Put, ...], tuple[Frame, ...]]:
        made = [run.make(self._context.schemas) for run in self._runs]
        return tuple(put for put, _ in made), tuple(payload for _, payload in made)

    def _make_acks(self) -> tuple[AckUpto, ...]:
        return tuple(
            AckUpto(
                topic_id,
                consumer.cursor.key,
                self._epochs[consumer],
                upto,
                max(self._since[consumer][topic_id], consumer.transactions.position(topic_id)),
            )
            for consumer, acks in self._acks.items()
            for topic_id, upto in acks.items()
        )

    def _make_settles(self) -> tuple[Settle, ...]:
        by_subscription: dict[tuple[int, str, int], list[tuple[int, int, int]]] = {}
        for task in self._tasks:
            ranges = by_subscription.setdefault((task.topic_id, task.subscriber, task.epoch), [])
            ranges.append((task.token, task.offset, 1))
        return tuple(Settle(*whose, done=_merged(ranges)) for whose, ranges in by_subscription.items())

    # The outcome.

    def _committed(self, reply: Reply) -> None:
        for consumer in self._acks:
            consumer.transactions.end_claim(self)
        for consumer, acks in self._acks.items():
            consumer.transaction_committed(self._epochs[consumer], acks)
        for task in self._tasks:
            mark_committed(task)
        self._note_receipts(reply)

    def _fail(self, error: BaseException) -> None:
        for consumer in self._acks:
            consumer.transaction_failed(error)
        self._go_back()

    def _note_receipts(self, reply: Reply) -> None:
        stored = expect(reply, TransactReply).puts
        self.receipts = [receipt_of(put.topic, found) for put, found in zip(self._puts, stored, strict=True)]

    def _go_back(self) -> None:
        """Deliver again what was not acked, also what was delivered before the block."""
        for consumer in self._acks:
            consumer.transactions.end_claim(self)
        for consumer in {*self._acks, *self._read_by(self._owner)}:
            consumer.go_back()

    def _read_by(self, caller: int) -> list[Consumer]:
        """Return those that a thread or task uses."""
        return [each for each in self._explicit() if each.reader == caller]

    def _explicit(self) -> list[Consumer]:
        """Return the subscriptions that are acked explicitly."""
        subscriptions = [each for each in self._context.open_subscriptions if isinstance(each, Consumer)]
        return [each for each in subscriptions if not each.auto_ack]

    def _end(self, error: BaseException | None) -> Flow[None]:
        if error is not None:
            self._has_ended = True
            self._go_back()
        elif not self._has_ended:
            yield from self._commit()


def _merged(ranges: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Join adjacent ranges under one token."""
    merged: list[tuple[int, int, int]] = []
    for token, first, count in sorted(set(ranges)):
        if merged and merged[-1][0] == token and merged[-1][1] + merged[-1][2] == first:
            merged[-1] = (token, merged[-1][1], merged[-1][2] + count)
        else:
            merged.append((token, first, count))
    return tuple(merged)


class Transaction(BaseTransaction):
    """Acks and puts, all or nothing; made by `client.transaction()`.

    >>> with client.transaction() as transaction:
    ...     for message in orders.get_many(100):
    ...         transaction.put("invoices", invoice(message))
    ...     transaction.ack(orders)
    """

    def __init__(self, driver: ThreadDriver, context: ClientContext, wait: bool) -> None:
        super().__init__(context, wait)
        self._driver = driver

    def commit(self) -> None:
        """Commit now, before the end of the block."""
        self._driver.run(self._commit())

    def __enter__(self) -> Transaction:
        self._owner = self._driver.caller.identify()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._driver.run(self._end(error))


class AsyncTransaction(BaseTransaction):
    """`Transaction` for asyncio: `commit` is awaited; `put`, `put_many` and `ack` are not.

    >>> async with client.transaction() as transaction:
    ...     transaction.put("invoices", "one pizza: 9.50")
    """

    def __init__(self, driver: EventLoopDriver, context: ClientContext, wait: bool) -> None:
        super().__init__(context, wait)
        self._driver = driver

    async def commit(self) -> None:
        """Commit now, before the end of the block."""
        await self._driver.run(self._commit())

    async def __aenter__(self) -> AsyncTransaction:
        self._owner = self._driver.caller.identify()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._driver.run(self._end(error))
