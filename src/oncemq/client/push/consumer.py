"""A durable subscription whose messages come from a push gateway's live feed: one send for all who listen, in place of
a get for each.

The feed may lose messages, repeat them, damage them, or fall silent. The subscription knows its position: a batch that
continues it is taken; what is missing is fetched from the broker. So each message comes once and in order, whichever
of these the feed does. Acks go to the broker, as those of any subscription do; and every other second the broker is
asked whether there is more, and whether the subscription is still ours.
"""

from __future__ import annotations

from typing import Any

from oncemq.client.consumer.cursor import ACK_AFTER_MS, WAIT_MS
from oncemq.client.consumer.topic import Consuming
from oncemq.client.context import ClientContext
from oncemq.client.push.feed import PushFeed
from oncemq.client.runtime.driver import now_ms
from oncemq.client.runtime.flow import Flow
from oncemq.protocol import errors
from oncemq.protocol.batch import checksum, layout_of
from oncemq.protocol.replies import BatchHead, GetReply, OpenReply

#: Without a word from the feed for so long, messages are got from the broker as usual.
_SILENT_MS = 3_000.0
_CHECK_MS = 2_000.0


class Pushing(Consuming):
    """A subscription that listens to a feed."""

    def __init__(self, context: ClientContext, topic: str, subscriber: str, *, feed: str, **options: Any) -> None:
        """Raises SettingInvalid."""
        super().__init__(context, topic, subscriber, **options)
        #: Messages that came by the feed.
        self.pushed = 0
        self._feed = PushFeed(feed, topic)
        #: By the feed's word: where the topic ends.
        self._feed_end = 0
        #: A batch that came too early: what lies before it is missing.
        self._early: tuple[BatchHead, bytes] | None = None
        self._checked_ms = 0.0
        # Even if it is never used, it ends with the client.
        context.open_subscriptions.add(self)

    def _open(self, give_up_ms: float = 0.0) -> Flow[OpenReply]:
        is_new = self._opened is None
        opened = yield from super()._open(give_up_ms)
        if is_new:
            self._feed_end, self._early, self._checked_ms = 0, None, 0.0
        return opened

    def _close(self, clean: bool) -> Flow[None]:
        try:
            yield from super()._close(clean)
        finally:
            self._end_feed()

    def _end_feed(self) -> None:
        self._feed.close()

    def _wait_for_feed(self, until_ms: float) -> Flow[None]:
        """Until it may have brought something, or the client may have; at most until then."""
        raise NotImplementedError

    # Where messages come from.

    def _fetch(self, until_ms: float | None) -> Flow[bool]:
        while True:
            self._driver.check_usable()
            yield from self._open()
            is_over = until_ms is not None and now_ms() >= until_ms
            # An empty answer to a get that was sent earlier says nothing about now.
            is_last = is_over and self._get is None
            if self._get is None and (is_over or self._is_get_due()):
                self._ask_get(self._get_wait_ms(until_ms))
            if self._get is not None:
                yield self._get
                self._take_reply()
                self._checked()
            else:
                yield from self._listen(until_ms)
            if self._opened is not None and not self._has_more() and self._get is None:
                self._take_feed(self._opened)
            if self._has_more():
                return True
            if is_last and self._opened is not None:
                return False

    def _is_get_due(self) -> bool:
        """The broker has what the feed has not brought, or has to be asked whether it does."""
        position, at_ms = self._delivery.position, now_ms()
        return (
            not self._delivery.is_caught_up
            or self._feed_end > position
            or at_ms - self._checked_ms >= _CHECK_MS
            or at_ms - self._feed.heard_ms >= _SILENT_MS
        )

    def _checked(self) -> None:
        """The broker has answered; what it does not have, nobody has."""
        self._checked_ms = now_ms()
        if not self._has_more() and self._delivery.is_caught_up:
            self._feed_end, self._early = 0, None

    def _get_wait_ms(self, until_ms: float | None) -> int:
        """Only while the feed is silent does a get wait for something new."""
        at_ms = now_ms()
        if at_ms - self._feed.heard_ms < _SILENT_MS or self._feed_end > self._delivery.position:
            return 0
        left_ms = WAIT_MS if until_ms is None else max(0.0, until_ms - at_ms)
        return int(min(left_ms, WAIT_MS))

    def _listen(self, until_ms: float | None) -> Flow[None]:
        at_ms = now_ms()
        due_ms = min(self._checked_ms + _CHECK_MS, self._feed.heard_ms + _SILENT_MS)
        if self._owes_acks():
            due_ms = min(due_ms, at_ms + ACK_AFTER_MS)
        yield from self._wait_for_feed(due_ms if until_ms is None else min(due_ms, until_ms))
        self._driver.pump()
        self._note_acks()
        if self._opened is not None:
            self._send_due_ack()

    # What the feed brings.

    def _take_feed(self, opened: OpenReply) -> None:
        """As much as there is room for, up to the first gap."""
        while self._delivery.buffered_bytes < self._prefetch_bytes:
            if self._early is not None:
                early, self._early = self._early, None
                if not self._take_batch(opened, *early):
                    return
                continue
            found = self._feed.receive()
            if found is None:
                return
            header, payload = found
            if header.topic_id != opened.topic_id:
                # Of a topic that had the name before, or has it since.
                continue
            if header.batch is None:
                self._feed_end = max(self._feed_end, header.offset)
            elif not self._take_batch(opened, header.batch, payload):
                return

    def _take_batch(self, opened: OpenReply, head: BatchHead, payload: bytes) -> bool:
        """False: something is missing before it."""
        position, end = self._delivery.position, head.first_offset + head.count
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
        self._delivery.take(GetReply(opened.topic_id, end, end, self._acked, (rest,)), [payload])
        self.pushed += rest.count
        return True


def _is_sound(head: BatchHead, payload: bytes) -> bool:
    """It holds what its header says. The checksum is the payload's alone."""
    if checksum(payload) != head.checksum:
        return False
    try:
        return 0 < head.count <= layout_of(payload).count - head.skip
    except errors.Malformed:
        return False
