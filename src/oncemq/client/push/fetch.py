"""Messages from a push gateway's live feed: the gateway sends each batch once to all subscribers, which need not get it
from the broker.

The feed may lose messages, repeat them, damage them, or fall silent. The cursor knows its position: a batch that
continues it is taken; what is missing is fetched from the broker. So each message is delivered once and in order,
whatever the feed does. Acks go to the broker, as those of any subscription do. Every two seconds the broker is asked
whether there is more, and whether the subscription still has the same owner.
"""

from __future__ import annotations

from collections.abc import Callable

from oncemq.client.consumer.session import ACK_AFTER_MS, WAIT_MS, ConsumerSession
from oncemq.client.consumer.topic import TopicCursor
from oncemq.client.push.feed import PushFeed
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow, Wait
from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, layout_of
from oncemq.protocol.replies import BatchHead, GetReply, OpenReply

#: If the feed has been silent for this long, messages are fetched from the broker with gets that wait.
_SILENT_MS = 3_000.0
_CHECK_MS = 2_000.0


class FeedFetcher:
    """Fills a cursor from a feed, and from the broker where the feed has lost something."""

    def __init__(
        self, feed: PushFeed, wait: Callable[[float], Wait], on_close: Callable[[], object] | None = None
    ) -> None:
        #: Messages that came by the feed.
        self.pushed = 0
        self._feed = feed
        #: Makes a wait for the feed that ends at this time at the latest.
        self._wait = wait
        self._on_close = on_close
        #: Where the topic ends, according to the feed.
        self._feed_end = 0
        #: A batch that came too early: messages before it are missing.
        self._early: tuple[BatchHead, bytes] | None = None
        self._checked_ms = 0.0
        #: The opening that this state belongs to.
        self._opened: OpenReply | None = None

    def close(self) -> None:
        """Stop listening."""
        if not self._feed.is_closed:
            if self._on_close is not None:
                self._on_close()
            self._feed.close()

    # Where messages come from.

    def fetch(self, session: ConsumerSession, until_ms: float | None) -> Flow[bool]:
        """Wait until there is something to decode. False: there is nothing at this time."""
        cursor = session.cursor
        assert isinstance(cursor, TopicCursor)
        while True:
            session.context.driver.check_usable()
            opened = yield from session.open()
            if opened is not self._opened:
                self._opened, self._feed_end, self._early, self._checked_ms = opened, 0, None, 0.0
            is_over = until_ms is not None and now_ms() >= until_ms
            # An empty reply to a get that was sent earlier does not tell what the broker has now.
            is_last = is_over and session.get_pending is None
            if session.get_pending is None and (is_over or self._is_get_due(cursor)):
                session.send_get(self._get_wait_ms(cursor, until_ms))
            if session.get_pending is not None:
                yield session.get_pending
                session.take_get_reply()
                self._note_checked(cursor)
            else:
                yield from self._listen(session, until_ms)
            if session.opened is not None and not cursor.is_buffered and session.get_pending is None:
                self._take_feed(session, cursor)
            if cursor.is_buffered:
                return True
            if is_last and session.opened is not None:
                return False

    def _is_get_due(self, cursor: TopicCursor) -> bool:
        """The broker has what the feed has not brought, or has to be asked whether it does."""
        at_ms = now_ms()
        return (
            not cursor.buffer.is_caught_up
            or self._feed_end > cursor.buffer.position
            or at_ms - self._checked_ms >= _CHECK_MS
            or at_ms - self._feed.heard_ms >= _SILENT_MS
        )

    def _note_checked(self, cursor: TopicCursor) -> None:
        """The broker has replied. What it does not have does not exist."""
        self._checked_ms = now_ms()
        if not cursor.is_buffered and cursor.buffer.is_caught_up:
            self._feed_end, self._early = 0, None

    def _get_wait_ms(self, cursor: TopicCursor, until_ms: float | None) -> int:
        """A get waits for new messages only while the feed is silent."""
        at_ms = now_ms()
        if at_ms - self._feed.heard_ms < _SILENT_MS or self._feed_end > cursor.buffer.position:
            return 0
        left_ms = WAIT_MS if until_ms is None else max(0.0, until_ms - at_ms)
        return int(min(left_ms, WAIT_MS))

    def _listen(self, session: ConsumerSession, until_ms: float | None) -> Flow[None]:
        at_ms = now_ms()
        due_ms = min(self._checked_ms + _CHECK_MS, self._feed.heard_ms + _SILENT_MS)
        if session.cursor.is_unconfirmed:
            due_ms = min(due_ms, at_ms + ACK_AFTER_MS)
        yield self._wait(due_ms if until_ms is None else min(due_ms, until_ms))
        session.context.driver.pump()
        session.note_acks()
        if session.opened is not None:
            session.send_due_ack()

    # What the feed brings.

    def _take_feed(self, session: ConsumerSession, cursor: TopicCursor) -> None:
        """Take as much as the buffer has space for, up to the first gap."""
        assert session.opened is not None
        topic_id = session.opened.topic_id
        while cursor.buffer.buffered_bytes < session.prefetch_bytes:
            if self._early is not None:
                early, self._early = self._early, None
                if not self._take_batch(cursor, topic_id, *early):
                    return
                continue
            found = self._feed.receive()
            if found is None:
                return
            header, payload = found
            if header.topic_id != topic_id:
                # A topic that had the name before, or has it now.
                continue
            if header.batch is None:
                self._feed_end = max(self._feed_end, header.offset)
            elif not self._take_batch(cursor, topic_id, header.batch, payload):
                return

    def _take_batch(self, cursor: TopicCursor, topic_id: int, head: BatchHead, payload: bytes) -> bool:
        """Buffer a batch. False: something before it is missing."""
        position, end = cursor.buffer.position, head.first_offset + head.count
        self._feed_end = max(self._feed_end, end)
        if end <= position:
            return True
        if not _is_sound(head, payload):
            return False
        if head.first_offset > position:
            self._early = (head, payload)
            return False
        below = position - head.first_offset
        rest = BatchHead(position, head.count - below, head.skip + below, head.time_ms, head.checksum)
        cursor.buffer.take(GetReply(topic_id, end, end, cursor.acked, (rest,)), [payload])
        self.pushed += rest.count
        return True


def _is_sound(head: BatchHead, payload: bytes) -> bool:
    """The payload matches its header. The checksum covers the payload alone."""
    if checksum(payload) != head.checksum:
        return False
    try:
        return 0 < head.count <= layout_of(payload).count - head.skip
    except errors.Malformed:
        return False
