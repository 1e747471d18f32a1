"""The blocking client: what `oncemq.connect` returns. Any number of threads may use one.

Each method runs a flow of one of the client's parts (runtime/flow.py). The asyncio client runs the same flows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

from oncemq.client.admin import Admin, Assignable, Overflow
from oncemq.client.connection import Connection
from oncemq.client.consumer.options import ConsumerOptions
from oncemq.client.consumer.reader import Reader, Start
from oncemq.client.consumer.subscriptions import Subscriptions
from oncemq.client.consumer.sync import PatternSubscription, Subscription
from oncemq.client.context import ClientContext
from oncemq.client.frames.frames import Frames
from oncemq.client.inbox.database import TABLE, database_of
from oncemq.client.inbox.inbox import Inbox
from oncemq.client.producer.batch_buffer import PendingMessage
from oncemq.client.producer.encoding import Headers, Value, one_message
from oncemq.client.producer.producer import Producer
from oncemq.client.producer.receipt import Receipt
from oncemq.client.producer.single_put import SinglePut
from oncemq.client.push.subscriptions import PushSubscriptions
from oncemq.client.push.sync import PushSubscription
from oncemq.client.runtime.background import BackgroundThread
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.client.schemas.admin import Check, Definition, SchemaAdmin, TopicSchema, schema_of
from oncemq.client.staging import StageCounts, Stager, Stages
from oncemq.client.transaction import Transaction
from oncemq.client.worker.dead_letter_admin import DeadLetterAdmin
from oncemq.client.worker.options import WorkerOptions
from oncemq.client.worker.subscriptions import SharedSubscriptions, sharing_of
from oncemq.client.worker.sync import SharedSubscription
from oncemq.protocol.message import Message

if TYPE_CHECKING:
    import pyarrow

    from oncemq.client.consumer.filter import Wanted
    from oncemq.client.inbox.inbox import Connection as Database
    from oncemq.client.options import ConnectSettings
    from oncemq.client.worker.dead_letters import DeadLetter
    from oncemq.protocol import replies
    from oncemq.protocol.schema import DefinitionKind, Encoding, Rule


T = TypeVar("T")


class Handle(PendingMessage, gc=False):
    """What `put_nowait` returns: the receipt of one message, once the broker has answered.

    >>> handle = client.put_nowait("orders", b"one pizza")
    >>> handle.result().offset
    0
    """

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the receipt. Raises the error that the message was refused with, or TimeoutError."""
        if self._is_stored():
            return self._receipt()
        producer = self.batch.producer
        return producer.driver.run_now(producer.result_of(self, timeout_s))


class Client:
    """A connection to a broker; made by `oncemq.connect`. Threads may share it; forked children may not.

    >>> with oncemq.connect() as client:
    ...     client.put("orders", "one pizza")
    """

    def __init__(self, driver: ThreadDriver, connection: Connection[Handle]) -> None:
        context = connection.context
        self._driver = driver
        self._context = context
        self._connection = connection
        self._producer = connection.producer
        self._single_put = SinglePut(driver, connection.producer)
        self._admin = Admin(context)
        self._frames = Frames(context, connection.producer)
        self._stages = Stages(context)
        self._schema_admin = SchemaAdmin(context)
        self._dead_letters = DeadLetterAdmin(context)
        self._subscriptions = Subscriptions(context, Subscription, PatternSubscription)
        self._shared = SharedSubscriptions(context, SharedSubscription)
        self._push = PushSubscriptions(context, PushSubscription)

    def __repr__(self) -> str:
        return self._connection.describe()

    @property
    def name(self) -> str:
        """The session's name."""
        return self._driver.core.session

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that the broker accepts, as it said when this client connected; 0 = it did not say."""
        return self._driver.core.batch_bytes_max

    def close(self) -> None:
        """Send what was put, ack what was delivered, and end. Raises if a part of that fails."""
        self._close(clean=True)

    def _close(self, clean: bool) -> None:
        self._driver.run(self._connection.close(clean))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(clean=kind is None)

    # Putting messages.

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
    ) -> Receipt:
        """Store one message. When this returns, it is on the broker's disk.

        `create`: create the topic if it does not exist. `ttl_s`: the message is not delivered later than that.
        `delay_s`: the message is not delivered earlier than that; it has no offset until then (-1), and survives a
        restart like any other.

        >>> client.put("orders", "one pizza", key="table-7", create=True).offset
        0
        """
        message = one_message(topic, value, key, headers, create, ttl_s, delay_s)
        return self._single_put.put(message) or self._driver.run(self._producer.put(message))

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
    ) -> Receipt:
        """Store any number of messages, in order. When this returns, all are on the broker's disk.

        They are sent in batches; each batch is stored whole or not at all. If one is refused, the others may still be
        stored; the error's notes say how many were.

        >>> client.put_many("orders", ["one pizza", "two salads"]).count
        2
        """
        flow = self._producer.put_many(topic, values, keys, headers, create, ttl_s, delay_s)
        return self._driver.run(flow)

    def put_frame(
        self,
        topic: str,
        frame: Any,
        *,
        key: str | None = None,
        headers: Headers | None = None,
        ttl_s: float | None = None,
        delay_s: float | None = None,
        version: int = 0,
    ) -> Receipt:
        """Store the rows of a frame, in order, in a topic with a schema: an Arrow table or record batch, a frame of
        pandas or Polars, or anything with Arrow's PyCapsule interface. When this returns, all are on the broker's disk.

        The columns must be those of the schema (`version`; 0 is the newest). Nullable ones may be missing. `key` names
        the column whose values are the keys. All rows get the `headers`. Rows are sent in batches; each batch is stored
        whole or not at all. Raises SchemaMismatch, which names the column, before anything is stored.

        >>> client.put_frame("orders", pandas.DataFrame({"id": [1, 2], "price": [9.5, 7.0]}), key="id").count
        2
        """
        return self._driver.run(self._frames.put(topic, frame, key, headers, ttl_s, delay_s, version))

    def put_nowait(
        self,
        topic: str,
        value: object,
        key: Value | None = None,
        headers: Headers | None = None,
        create: bool = False,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> Handle:
        """Store one message, together with others, without waiting for the reply.

        Waits only while `buffer_bytes` are unanswered. `flush` waits for everything and raises the first error.

        >>> for line in file:
        ...     client.put_nowait("lines", line)
        >>> client.flush()
        """
        producer = self._producer
        buffer = producer.buffers.get(topic)
        if (
            buffer is None
            or buffer.known is not None
            or type(value) is not bytes
            or key is not None
            or headers is not None
            or create is not buffer.create
            or ttl_s is not None
            or delay_s is not None
        ):
            return producer.put_nowait(topic, value, key, headers, create, ttl_s, delay_s)
        # A plain value costs no other call.
        handle = Handle(buffer, value)
        handles = buffer.handles
        handles.append(handle)
        buffer.size = size = buffer.size + len(value)
        if size >= producer.batch_bytes or not 1 < len(handles) < producer.batch_messages:
            producer.check_buffer(buffer)
        return handle

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything that was put is answered. Raises the first error since the last flush, unless a
        handle's `result` has raised it before.

        >>> client.flush()
        """
        self._driver.run(self._connection.flush(timeout_s))

    def transaction(self, *, wait: bool = True) -> Transaction:
        """Return a transaction: acks and puts over any topics, all or nothing.

        With `wait=False` its block ends when it was sent, so that the next one can be filled meanwhile. If it is
        refused, those after it that ack the same subscription are refused too, and the subscription's next use raises
        the error; so do `flush` and `close`.

        >>> with client.transaction() as transaction:
        ...     transaction.put("invoices", "one pizza: 9.50")
        ...     transaction.ack(orders, message)
        """
        return Transaction(self._driver, self._context, wait)

    # Subscriptions.

    def subscribe(
        self,
        topic: str,
        subscriber: str,
        start: Start = "new",
        *,
        auto_ack: bool = True,
        filter: Wanted | None = None,
        prefetch_bytes: int = 2 * 1024 * 1024,
        idle_s: float = 0.0,
    ) -> Subscription:
        """Create a durable subscription, and its topic if that does not exist. An existing subscription is returned
        as it is.

        `start`: `"new"` (or `"latest"`), `"earliest"` or an offset. `auto_ack`: a message is acked when the next one
        is requested. `filter`: a function of a message, or headers with the value (or values) that each must have;
        other messages are skipped. `prefetch_bytes`: about how many bytes are fetched ahead.
        `idle_s`: the subscription is deleted when no client has opened it, got or acked for this time (at least 10 s),
        for example because its process was killed; 0 = never.

        >>> client.subscribe("orders", "kitchen", start="earliest").created
        True
        """
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes)
        return self._driver.run(self._subscriptions.subscribe(topic, subscriber, start, options, idle_s))

    def subscription(
        self,
        topic: str,
        subscriber: str,
        *,
        auto_ack: bool = True,
        hold_ms: int = 0,
        busy_s: float = 0.0,
        filter: Wanted | None = None,
        prefetch_bytes: int = 2 * 1024 * 1024,
    ) -> Subscription:
        """Return an existing subscription. Its first use takes it over from another client that uses it.

        With `hold_ms` it is opened now, and other clients that use `hold_ms` get Busy until it was unused for that
        long. If another client holds it, this raises Busy after trying for `busy_s`.

        >>> client.subscription("orders", "kitchen").get(timeout_s=1)
        """
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes, hold_ms=hold_ms)
        return self._driver.run(self._subscriptions.subscription(topic, subscriber, options, busy_s))

    def subscribe_pattern(
        self,
        pattern: str,
        subscriber: str,
        start: str = "new",
        *,
        auto_ack: bool = True,
        filter: Wanted | None = None,
        prefetch_bytes: int = 2 * 1024 * 1024,
        idle_s: float = 0.0,
    ) -> PatternSubscription:
        """Create a durable subscription to every topic that matches a pattern, now or later. An existing one is
        returned as it is. `*` stands for one level of a name, `#` for any number of levels: `orders.*`, `#.eu`.
        `idle_s`: as for `subscribe`.

        >>> client.subscribe_pattern("orders.*", "audit", start="earliest").created
        True
        """
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes)
        return self._driver.run(self._subscriptions.subscribe_pattern(pattern, subscriber, start, options, idle_s))

    def pattern_subscription(
        self,
        pattern: str,
        subscriber: str,
        *,
        auto_ack: bool = True,
        filter: Wanted | None = None,
        prefetch_bytes: int = 2 * 1024 * 1024,
    ) -> PatternSubscription:
        """Return an existing subscription by pattern. Its first use takes it over from another client that uses it.

        >>> client.pattern_subscription("orders.*", "audit").get(timeout_s=1)
        """
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes)
        return self._driver.run(self._subscriptions.pattern_subscription(pattern, subscriber, options))

    def subscribe_shared(
        self,
        topic: str,
        subscriber: str,
        start: Start = "new",
        *,
        lease_s: float = 30.0,
        tries_max: int = 0,
        dead_topic: str | None = None,
        key_order: bool = False,
        prefetch: int | None = None,
        prefetch_bytes: int = 1024 * 1024,
        unsettled_max: int = 1000,
        auto_extend: bool = True,
        extend_max_s: float = 3600.0,
    ) -> SharedSubscription:
        """Create a durable subscription that consumers share, and join it. Each message goes to one of them. An
        existing one is joined as it is.

        `lease_s`: a message that is not settled within this time goes to another consumer. While this process lives,
        leases are renewed automatically (`auto_extend`), each for at most `extend_max_s`. `tries_max`: maximum
        delivery attempts before a message goes to `dead_topic` (default: TOPIC.dead); 0 = unlimited. `key_order`: of
        the messages with the same key, at most one is in flight.

        For this consumer: `prefetch` messages are taken before they are requested (None: about as many as it
        processes in a second), and about `prefetch_bytes`. At most `unsettled_max` tasks are delivered and not settled.

        >>> workers = client.subscribe_shared("orders", "packers", tries_max=5)
        >>> for task in workers.tasks(timeout_s=10):
        ...     pack(task.value)
        ...     task.ack()
        """
        sharing = sharing_of(topic, lease_s, tries_max, dead_topic, key_order)
        options = WorkerOptions(
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            unsettled_max=unsettled_max,
            auto_extend=auto_extend,
            extend_max_s=extend_max_s,
        )
        return self._driver.run(self._shared.subscribe(topic, subscriber, start, sharing, options))

    def shared_subscription(
        self,
        topic: str,
        subscriber: str,
        *,
        prefetch: int | None = None,
        prefetch_bytes: int = 1024 * 1024,
        unsettled_max: int = 1000,
        auto_extend: bool = True,
        extend_max_s: float = 3600.0,
    ) -> SharedSubscription:
        """Join an existing shared subscription. The options are those of `subscribe_shared`.

        >>> task = client.shared_subscription("orders", "packers").take(timeout_s=1)
        """
        options = WorkerOptions(
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            unsettled_max=unsettled_max,
            auto_extend=auto_extend,
            extend_max_s=extend_max_s,
        )
        return self._driver.run(self._shared.subscription(topic, subscriber, options))

    def push(
        self,
        topic: str,
        subscriber: str,
        start: Start = "new",
        *,
        feed: str = "tcp://127.0.0.1:5558",
        auto_ack: bool = True,
        filter: Wanted | None = None,
        prefetch_bytes: int = 2 * 1024 * 1024,
    ) -> PushSubscription:
        """Create a durable subscription whose messages come from a push gateway's live feed. What the feed has lost
        comes from the broker, so that each message is delivered once and in order. Otherwise as `subscribe`.

        >>> subscription = client.push("orders", "kitchen", feed="tcp://127.0.0.1:5558")
        """
        options = ConsumerOptions(auto_ack=auto_ack, filter=filter, prefetch_bytes=prefetch_bytes)
        return self._driver.run(self._push.push(topic, subscriber, start, feed, options))

    def inbox(
        self, topic: str, subscriber: str, connection: Database, *, start: Start = "new", table: str = TABLE
    ) -> Inbox:
        """Return a subscription whose position is stored in your own database, in the transaction of its effects.

        >>> inbox = client.inbox("orders", "billing", sqlite3.connect("billing.db"))
        """
        # First: a subscription is durable, and must not be created if the connection is wrong.
        database_of(connection, table)
        subscription = self.subscribe(topic, subscriber, start, auto_ack=False)
        return Inbox(subscription, connection, table=table)

    def unsubscribe(self, topic: str, subscriber: str) -> None:
        """Delete a durable subscription, also one by pattern. A topic that was created by subscribing is deleted with
        its last subscription.

        >>> client.unsubscribe("orders", "kitchen")
        """
        self._driver.run(self._subscriptions.unsubscribe(topic, subscriber))

    def seek(self, topic: str, subscriber: str, to: Start | datetime) -> int:
        """Move a subscription: to an offset, `"earliest"`, `"new"` (or `"latest"`), or the first message that was
        stored at a time or later. Returns the offset (0 for a pattern). Its consumer continues there automatically,
        except an inbox: use `inbox.seek`.

        >>> client.seek("orders", "kitchen", "earliest")
        0
        """
        return self._driver.run(self._subscriptions.seek(topic, subscriber, to))

    def find(self, topic: str, time: datetime) -> int:
        """Return the offset of the first message that was stored at a time or later; the end, if there is none.

        >>> client.find("orders", datetime(2026, 1, 1))
        0
        """
        return self._driver.run(self._subscriptions.find(topic, time))

    def read(
        self,
        topic: str,
        start: Start | datetime | None = None,
        *,
        stop: int | None = None,
        follow: bool = False,
        topic_id: int = 0,
    ) -> Iterator[Message]:
        """Iterate over stored messages, from `start` up to `stop` (exclusive) or the end. With `follow` it continues
        with new messages. No subscription is needed, and none is moved.

        The default of `start` is `"earliest"`; with `follow`, `"new"`. A time means the first message that was stored
        then or later.

        >>> [message.text for message in client.read("orders")]
        ['one pizza']
        """
        return self._messages_of(Reader(self._driver, topic, start, stop, follow, topic_id))

    def _messages_of(self, reader: Reader) -> Iterator[Message]:
        try:
            while messages := self._driver.run(reader.next_part()):
                yield from messages
        finally:
            reader.close()

    def read_frame(
        self,
        topic: str,
        start: Start | datetime | None = None,
        *,
        stop: int | None = None,
        version: int = 0,
        columns: Sequence[str] = (),
    ) -> pyarrow.Table:
        """Return stored messages of a topic with a schema as one Arrow table: from `start` (by default the first) up to
        `stop` (exclusive) or the end. Arguments as for `read_frames`. Raises SchemaUnknown, SchemaMismatch.

        >>> client.read_frame("orders").to_pandas()
           id  price
        0   1    9.5
        """
        tables = list(self.read_frames(topic, start, stop=stop, version=version, columns=columns))
        return self._driver.run(self._frames.concatenated(topic, tables, version, columns))

    def read_frames(
        self,
        topic: str,
        start: Start | datetime | None = None,
        *,
        stop: int | None = None,
        follow: bool = False,
        version: int = 0,
        columns: Sequence[str] = (),
    ) -> Iterator[pyarrow.Table]:
        """Iterate over stored messages of a topic with a schema as Arrow tables of moderate size. `start`, `stop` and
        `follow` are as for `read`.

        `version` of the schema: its columns; 0 is the newest. Messages of other versions are converted: added columns
        are null or have their default. `columns` of the messages (`offset`, `key`, `headers`, `timestamp`, …) are
        added, as `message_offset` and so on. Raises SchemaMismatch, with the offset, for a message that does not match.

        >>> for table in client.read_frames("orders", columns=["offset"]):
        ...     polars.from_arrow(table)
        """
        reader = self._frames.reader(topic, start, stop, follow, version, columns)
        try:
            while (table := self._driver.run(reader.next_frame())) is not None:
                yield table
        finally:
            reader.close()

    # Dead letters.

    def dead_letters(self, dead_topic: str) -> list[DeadLetter]:
        """Return the letters in a dead-letter topic that were not retried, the oldest first. The list is empty if the
        topic does not exist: the first dead letter creates it.

        >>> [(letter.message.offset, letter.reason) for letter in client.dead_letters("orders.dead")]
        [(0, 'no such customer')]
        """
        return self._driver.run(self._dead_letters.dead_letters(dead_topic))

    def retry_dead_letters(self, dead_topic: str, offsets: Iterable[int] | None = None) -> int:
        """Put dead letters back to the topics that they come from, and take them out of the dead-letter topic: those at
        these offsets, or all. Returns how many. Each is put back exactly once, as a new message: every subscription of
        its topic gets it, also those that have processed it before.

        >>> client.retry_dead_letters("orders.dead", [0])
        1
        """
        return self._driver.run(self._dead_letters.retry_dead_letters(dead_topic, offsets))

    # Stages.

    def stage(self, stage: str, topic: str, writer: str, batch: int, values: Sequence[object]) -> int:
        """Store messages out of sight, for a later `commit` by `writer` as `batch`. Returns the stage's count.

        >>> client.stage("part-0", "results", "nightly", 1, ["a", "b"])
        2
        """
        return self._driver.run(self._stages.stage(stage, topic, writer, batch, values))

    def stager(self, stage: str, topic: str, writer: str, batch: int) -> Stager:
        """Return a stager, which fills a stage with encoded batches without waiting for each. `commit` publishes it.

        >>> stager = client.stager("part-0", "results", "nightly", 1)
        >>> stager.add(2, encode_batch([b"a", b"b"]))
        >>> client.commit("nightly", 1, "results", [("part-0", stager.finish())]).count
        2
        """
        return Stager(self._driver, self._context.schemas, stage, topic, writer, batch)

    def commit(
        self,
        writer: str,
        batch: int,
        topic: str | Mapping[str, StageCounts],
        stages: StageCounts | None = None,
        *,
        content: bytes = b"",
    ) -> replies.CommitReply:
        """Publish stages, all or nothing. A `batch` that was committed before is not published again (`.before`).

        Stages are pairs of a name and the number of messages that it must hold; the messages get their topic's offsets
        in this order. Instead of one topic and its stages, `topic` may be a mapping from topics to their stages; then
        `.parts` has one entry for each topic, in the same order.

        `content`, such as a digest of up to 64 bytes, identifies what the batch consists of. The broker keeps it
        for the last 32 commits of the writer. A batch number that comes back with other content is refused with
        BatchChanged, as is a number below those that are kept. Without it, any committed number is `.before`.

        Without a writer (`""`, batch 0) nothing is remembered: the commit happens once, as any command of this client,
        but the same commit by another client is not recognised.

        >>> client.commit("nightly", 1, "results", [("part-0", 2)]).count
        2
        >>> [part.count for part in client.commit("nightly", 2, {"results": [("a", 2)], "errors": [("b", 1)]}).parts]
        [2, 1]
        """
        return self._driver.run(self._stages.commit(writer, batch, topic, stages, content))

    def abort(self, stages: Iterable[str]) -> None:
        """Delete stages, those that exist. What was committed stays.

        >>> client.abort(["part-0"])
        """
        self._driver.run(self._stages.abort(stages))

    # Schemas.

    def put_schema(
        self,
        topic: str,
        definition: Definition = None,
        *,
        kind: DefinitionKind | None = None,
        encoding: Encoding | None = None,
        message: str = "",
        compatibility: Rule | None = None,
        check: Check | None = None,
    ) -> int:
        """Add a version to the schema of a topic, and return its number. A schema that the topic has already keeps its
        number. From the first version on, messages must match a version.

        `definition`: fields (`"id: int64 not null, price: decimal(10,2)"`), JSON Schema, Avro or Protobuf as text, a
        serialised FileDescriptorSet, or a `pyarrow.Schema`; None changes only the settings. `kind`: its language; by
        default it is found out. `encoding`: how values are encoded; by default avro and protobuf for definitions in
        these languages, otherwise json. `message`: the name of the Protobuf message.
        `compatibility`: what later versions may change: `"backward"` (the default of the first version), `"forward"`,
        `"full"` or `"none"`. `check`: who checks values: `"client"` (the default), `"broker"` (too), or `"none"`.

        Raises SchemaInvalid, SchemaIncompatible, TopicUnknown or MissingExtra.

        >>> client.put_schema("orders", "id: int64 not null, price: decimal(10,2)")
        1
        """
        schema = None if definition is None else schema_of(definition, kind, encoding, message)
        return self._driver.run(self._schema_admin.put(topic, schema, compatibility, check))

    def schema(self, topic: str) -> TopicSchema | None:
        """Return the versions of a topic's schema, and its settings; None: the topic has no schema.

        >>> client.schema("orders").newest.version
        1
        """
        return self._driver.run(self._schema_admin.find(topic))

    def check_schema(
        self,
        topic: str,
        definition: Definition,
        *,
        kind: DefinitionKind | None = None,
        encoding: Encoding | None = None,
        message: str = "",
        compatibility: Rule | None = None,
    ) -> list[str]:
        """Return what would break if a definition became the next version of a topic's schema: one text for each
        problem. `compatibility`: another rule than the topic has. Nothing is changed.

        >>> client.check_schema("orders", "id: string")
        ["id: a reader expects string, and values are int64: new readers can't read old values (version 1)"]
        """
        schema = schema_of(definition, kind, encoding, message)
        return self._driver.run(self._schema_admin.problems(topic, schema, compatibility))

    def decode(self, message: Message, as_type: type[T]) -> T:
        """Return the value of a message as an object: of a dataclass, a msgspec Struct, a pydantic model, a TypedDict
        or `dict`. Like `message.decode`, but the schema that the message was written with is looked up first, which
        values in Avro and Protobuf need. Raises SchemaMismatch.

        >>> client.decode(message, Order).price
        Decimal('9.50')
        """
        return self._driver.run(self._schema_admin.decode(message, as_type))

    # Administration.

    def create_topic(
        self,
        name: str,
        *,
        retain_ms: int = 0,
        retain_bytes: int = 0,
        quota_bytes: int = 0,
        overflow: Overflow = "refuse",
        alter: bool = False,
    ) -> bool:
        """Create a topic that exists until it is deleted. Returns False if it existed.

        `retain_ms`, `retain_bytes`: keep messages that all subscriptions have acked, for this time or up to this size.
        `quota_bytes`: the topic stores no more than this. At the quota, `overflow` decides: `"refuse"` (puts wait, and
        finally raise TopicFull), `"drop"` (the oldest messages are deleted, even if they are needed) or `"expire"` (the
        slowest subscription is deleted, and its consumer gets an error). A retention together with a quota needs
        `"drop"`. `alter`: change the settings of an existing topic to these.

        >>> client.create_topic("orders", retain_ms=24 * 3600 * 1000)
        True
        """
        settings = (retain_ms, retain_bytes, quota_bytes, overflow, alter)
        return self._driver.run(self._admin.create_topic(name, *settings))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its messages and its subscriptions.

        >>> client.delete_topic("orders")
        """
        self._driver.run(self._admin.delete_topic(name))

    def topics(self) -> list[replies.TopicInfo]:
        """Return all topics, by name.

        >>> [topic.name for topic in client.topics()]
        ['orders']
        """
        return self._driver.run(self._admin.topics())

    def subscriptions(self, topic: str | None = None) -> list[replies.SubscriptionInfo]:
        """Return the subscriptions of one topic, or of all topics.

        >>> [entry.lag for entry in client.subscriptions("orders")]
        [1]
        """
        return self._driver.run(self._admin.subscriptions(topic))

    def patterns(self) -> list[replies.PatternInfo]:
        """Return the subscriptions by pattern, also those that no topic matches yet.

        >>> [(entry.pattern, entry.topics, entry.lag) for entry in client.patterns()]
        [('orders.*', 2, 1)]
        """
        return self._driver.run(self._admin.patterns())

    def sessions(self) -> list[replies.SessionInfo]:
        """Return all sessions that the broker remembers.

        >>> [session.name for session in client.sessions()]
        ['billing']
        """
        return self._driver.run(self._admin.sessions())

    def remove_session(self, name: str) -> None:
        """Delete a session. Its client, if there still is one, gets SessionUnknown.

        >>> client.remove_session("billing")
        """
        self._driver.run(self._admin.remove_session(name))

    def assign(self, owner: str, kind: Assignable, name: str, *, of: str = "") -> None:
        """Give a subscription (`of` its topic or pattern), a session, a writer of stages or an entry of the registry
        (`of` its namespace) to another user. An empty owner means nobody: the next user who uses it becomes its owner.
        Only for administrators.

        >>> client.assign("kitchen", "subscription", "chef", of="orders")
        """
        self._driver.run(self._admin.assign(owner, kind, name, of))

    def auth_reload(self) -> None:
        """Let the broker read auth.toml, certificates and keys again. Raises what is wrong with them; then the former
        ones stay in force. Only for administrators.

        >>> client.auth_reload()
        """
        self._driver.run(self._admin.auth_reload())

    def health(self) -> replies.HealthReply:
        """Return the broker's state and counts.

        >>> client.health().topics
        1
        """
        return self._driver.run(self._admin.health())

    def registry_set(self, namespace: str, key: str, value: Value | None, *, version: int = -1) -> int:
        """Set an entry of the registry, a small durable map for gateways, or delete it with None. Returns the entry's
        version. With `version`, only if that is the entry's version now.

        >>> client.registry_set("push", "alice", b"tcp://127.0.0.1:7000")
        1
        """
        return self._driver.run(self._admin.registry_set(namespace, key, value, version))

    def registry_list(self, namespace: str, prefix: str = "") -> list[replies.RegistryEntry]:
        """Return a namespace's entries of the registry whose keys start with `prefix`.

        >>> [entry.key for entry in client.registry_list("push")]
        ['alice']
        """
        return self._driver.run(self._admin.registry_list(namespace, prefix))

    def registry_namespaces(self) -> list[replies.ShareInfo]:
        """Return the namespaces of the registry, with the number of their entries.

        >>> [(share.owner, share.entries) for share in client.registry_namespaces()]
        [('push', 1)]
        """
        return self._driver.run(self._admin.registry_namespaces())

    def key_principals(self) -> list[replies.ShareInfo]:
        """Return the principals that have idempotency keys, with the number of their keys.

        >>> client.key_principals()
        []
        """
        return self._driver.run(self._admin.key_principals())

    def keys(self, principal: str) -> list[replies.KeyInfo]:
        """Return the idempotency keys of a principal.

        >>> client.keys("http")
        []
        """
        return self._driver.run(self._admin.keys(principal))

    def remove_keys(self, principal: str, keys: Sequence[str]) -> None:
        """Delete idempotency keys of a principal before they expire. Keys that do not exist are ignored. A request
        that is repeated under a deleted key is executed again.

        >>> client.remove_keys("http", ["order-17"])
        """
        self._driver.run(self._admin.remove_keys(principal, keys))


def make_client(driver: ThreadDriver, settings: ConnectSettings) -> Client:
    """Return a client that uses this driver. Its session starts with its first command."""
    background = BackgroundThread(driver)
    producer = Producer(driver, background, settings, Handle)
    return Client(driver, Connection(producer, ClientContext(driver, background, producer, settings.credentials)))
