"""The inbox: a subscription whose position is stored in the user's own database, together with each message's effect.

    broker ──get──▶ message ──▶ [ begin · the user's statements · position = offset + 1 · commit ] ──ack──▶ broker

Effect and position are stored in one transaction: both or neither, wherever the process is killed. The broker's own
position follows: an ack that was lost is sent again at the next opening. So the database may be ahead of the broker. It
is never behind, unless it was restored from an older copy: that raises `InboxRewound`.

Messages of a transaction that was rolled back are delivered again, in the same order, by the same object. After any
failure the row is read again before the next message: it tells whether a commit happened whose reply was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from oncemq.client.consumer.reader import Start
from oncemq.client.consumer.sync import Subscription, open_now
from oncemq.client.inbox.database import ROW_VERSION, TABLE, Key, Row, Step, database_of, fenced, moved, taken_over
from oncemq.protocol import errors
from oncemq.protocol.message import Message
from oncemq.protocol.replies import OpenReply

if TYPE_CHECKING:
    import sqlite3
    from typing import Any

    import psycopg

    Connection = sqlite3.Connection | psycopg.Connection[Any]

log = logging.getLogger("oncemq.inbox")


class Inbox:
    """Messages whose effects are stored exactly once; returned by `client.inbox`. For one thread, as its connection is.

    >>> inbox = client.inbox("orders", "billing", connection)
    >>> for message in inbox.messages(timeout_s=10):
    ...     connection.execute("insert into bills (text) values (?)", (message.text,))

    Within a block or one iteration of a loop the connection is inside the inbox's transaction. It is committed at the
    end. An exception rolls it back, and the same message is delivered again.
    """

    def __init__(self, subscription: Subscription, connection: Connection, *, table: str = TABLE) -> None:
        if subscription.auto_ack:
            raise ValueError("an inbox needs its own subscription, unused and with auto_ack=False")
        self._subscription = subscription
        self._database = database_of(connection, table)
        #: None until the inbox is opened.
        self._key: Key | None = None
        self._epoch = 0
        #: The position in the database, as far as is known.
        self._position = 0
        #: Something failed: the row has to be read again first.
        self._is_unsure = False
        #: Delivered by the subscription, and not committed.
        self._waiting: list[Message] = []
        self._is_inside = False
        self._error: errors.OnceMQError | None = None

    def __repr__(self) -> str:
        return f"Inbox({self._subscription.topic!r}, {self._subscription.subscriber!r})"

    @contextmanager
    def message(self, timeout_s: float | None = 0.0) -> Iterator[Message | None]:
        """Enter a transaction with the next message; None, and no transaction, if there is none within `timeout_s`
        (None: no time limit).

        >>> with inbox.message(timeout_s=5) as message:
        ...     if message:
        ...         connection.execute("insert into bills (text) values (?)", (message.text,))
        """
        with self._block(1, timeout_s) as messages:
            yield messages[0] if messages else None

    @contextmanager
    def batch(self, messages_max: int = 1000, timeout_s: float | None = 0.0) -> Iterator[list[Message]]:
        """Enter a transaction with at most `messages_max` messages, as soon as there are any; an empty list, and no
        transaction, if none come within `timeout_s`.

        >>> with inbox.batch(1000, timeout_s=5) as messages:
        ...     connection.executemany("insert into bills (text) values (?)", [(one.text,) for one in messages])
        """
        with self._block(messages_max, timeout_s) as messages:
            yield messages

    def messages(self, timeout_s: float | None = None) -> Iterator[Message]:
        """Iterate over messages, each in its own transaction, which is committed when the next message is requested.
        Ends when none came for `timeout_s` (None: never). `break` rolls the transaction back, as an exception does.

        >>> for message in inbox.messages(timeout_s=10):
        ...     connection.execute("insert into bills (text) values (?)", (message.text,))
        """
        while True:
            with self.message(timeout_s) as message:
                if message is None:
                    return
                yield message

    def batches(self, messages_max: int = 1000, timeout_s: float | None = None) -> Iterator[list[Message]]:
        """Iterate over lists of at most `messages_max` messages, each in one transaction.

        >>> for messages in inbox.batches(1000, timeout_s=10):
        ...     connection.executemany("insert into bills (text) values (?)", [(one.text,) for one in messages])
        """
        while True:
            with self.batch(messages_max, timeout_s) as messages:
                if not messages:
                    return
                yield messages

    def open(self) -> int:
        """Take over the subscription and the row in the database. Returns the position: all offsets below are
        processed. The first use does this automatically.

        >>> client.inbox("orders", "billing", connection).open()
        0
        """
        return self._ensure_open(0)

    def skip_to(self, position: int) -> None:
        """Skip all messages below `position` that were not processed: messages that can't be read, or that are gone
        (the text of `InboxRewound` says where to). It never moves back.

        >>> client.inbox("orders", "billing", connection).skip_to(57)
        """
        self._refuse_inside()
        if self._key is None:
            self._ensure_open(position)
        elif position > self._ensure_open(0):
            # The broker first: it knows whether the topic has that offset.
            self._subscription.ack(position - 1)
            with self._transaction(position):
                pass

    def seek(self, to: Start | datetime) -> int:
        """Continue elsewhere, in the database and at the broker: at an offset, `"earliest"`, `"new"`, or the first
        message that was stored at a time or later. Returns the position. Messages from there on are processed again, so
        undo their effects first. If this is interrupted, call it again.

        >>> inbox.seek("earliest")
        0
        """
        self._refuse_inside()
        self._refuse_failed()
        if self._key is not None:
            # A consumer that was fenced must not move the subscription of the new owner.
            self._read_row(self._key)
        # The broker first: it knows which messages it has. If this ends here, a move back has not happened: the row is
        # ahead.
        self._subscription.seek(to)
        opened = open_now(self._subscription)
        self._take_row(opened, opened.acked, lambda key, found: moved(key, found, opened.epoch, opened.acked))
        return self._position

    def close(self) -> None:
        """Ack what the database has stored, and stop. The connection stays open: it is yours."""
        self._error = self._error or errors.ClientClosed("this inbox was closed")
        try:
            self._subscription.close()
        except errors.OnceMQError as error:
            # The next opening sends the acks.
            log.info("while closing %r: %s", self, error)

    def __enter__(self) -> Inbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Opening.

    def _refuse_failed(self) -> None:
        if self._error is not None:
            raise type(self._error)(self._error.text)

    def _ensure_open(self, skip_to: int) -> int:
        self._refuse_failed()
        if self._key is None:
            self._open(skip_to)
        elif self._is_unsure:
            self._read_row(self._key)
        return self._position

    def _open(self, skip_to: int) -> None:
        opened = open_now(self._subscription)
        if skip_to > opened.acked:
            self._subscription.ack(skip_to - 1)
        position = max(opened.acked, skip_to)
        self._take_row(opened, position, lambda key, found: taken_over(key, found, opened.epoch, opened.acked, skip_to))

    def _take_row(self, opened: OpenReply, position: int, decide: Callable[[Key, Row], Row]) -> None:
        """Take over the row, with the values of `decide`; a new row starts at `position`."""
        key = Key(opened.topic_id, self._subscription.subscriber, self._subscription.topic)
        with self._final_if_fenced():
            mine = Row(ROW_VERSION, opened.epoch, position)
            row = self._database.open_row(key, mine, lambda found: decide(key, found))
        if row.position > opened.acked:
            self._catch_up(row.position)
        if weakness := self._database.weakness():
            log.warning("a power failure may undo commits that were acked at the broker: %s", weakness)
        self._key, self._epoch, self._position = key, row.epoch, row.position
        self._waiting = []
        self._is_unsure = False

    def _catch_up(self, position: int) -> None:
        """Send acks that the broker has missed: the process ended between a commit and its ack."""
        try:
            self._subscription.ack(position - 1)
        except errors.OffsetOutOfRange as error:
            raise errors.OffsetOutOfRange(
                f"the database has processed everything below {position}, which the broker never had: it was restored"
                f" from an older copy, or lost its disk ({error.text})"
            ) from None

    def _read_row(self, key: Key) -> None:
        with self._final_if_fenced():
            row = self._database.read_row(key)
            if row is None or row.epoch != self._epoch or row.position < self._position:
                raise fenced(key)
        self._position = row.position
        self._drop_done()
        self._is_unsure = False

    @contextmanager
    def _final_if_fenced(self) -> Iterator[None]:
        try:
            yield
        except errors.Fenced as error:
            self._error = error
            self._waiting = []
            raise

    # A transaction.

    def _refuse_inside(self) -> None:
        if self._is_inside:
            raise RuntimeError(f"a block of {self!r} is still open; end it, or the loop that is in it, first")

    @contextmanager
    def _block(self, messages_max: int, timeout_s: float | None) -> Iterator[list[Message]]:
        self._refuse_inside()
        self._ensure_open(0)
        messages = self._take(messages_max, timeout_s)
        if not messages:
            yield []
            return
        with self._transaction(messages[-1].offset + 1):
            yield messages
        self._ack_stored()

    def _take(self, messages_max: int, timeout_s: float | None) -> list[Message]:
        """Return the next messages. Those that were rolled back come first."""
        if messages_max < 1:
            raise ValueError(f"messages_max is at least 1, not {messages_max}")
        while not self._waiting:
            self._waiting = self._subscription.get_many(messages_max, timeout_s)
            if not self._waiting:
                return []
            self._drop_done()
        return self._waiting[:messages_max]

    @contextmanager
    def _transaction(self, position: int) -> Iterator[None]:
        """What is done inside is stored together with the position, or not at all."""
        assert self._key is not None
        step = Step(self._key, self._epoch, self._position, position)
        self._is_inside = self._is_unsure = True
        try:
            with self._final_if_fenced():
                self._database.begin(step)
            yield
            with self._final_if_fenced():
                self._database.commit()
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._is_inside = False
        self._is_unsure = False
        self._position = position
        self._drop_done()

    def _roll_back(self) -> None:
        try:
            self._database.rollback()
        except Exception as error:
            # The caller has to see the first failure. A connection that can't roll back is lost, and its database rolls
            # back automatically.
            log.warning("while rolling back: %s", error)

    def _drop_done(self) -> None:
        self._waiting = [message for message in self._waiting if message.offset >= self._position]

    def _ack_stored(self) -> None:
        """Ack what is stored. If that fails, the message has not failed; if it fails again, the next get raises."""
        try:
            self._subscription.ack(self._position - 1)
        except errors.OnceMQError as error:
            log.info("an ack of %r failed: %s", self, error)
