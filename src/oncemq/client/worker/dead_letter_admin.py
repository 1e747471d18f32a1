"""Looking at dead letters, and sending them back. How they lie in their topic, dead_letters.py knows."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from oncemq.client.consumer.reader import Reader
from oncemq.client.context import ClientContext
from oncemq.client.runtime.flow import Flow, Outside
from oncemq.client.runtime.rpc import check_reply, wait_for_reply
from oncemq.client.worker.dead_letters import DEAD_SUBSCRIBER, DeadLetter, make_retry_puts
from oncemq.client.worker.leases import decode_take
from oncemq.client.worker.membership import ranges_of
from oncemq.protocol import errors
from oncemq.protocol.commands import Leave, Open, Settle, Subscriptions, Take, Transact
from oncemq.protocol.message import Message
from oncemq.protocol.replies import Done, OpenReply, SubscriptionInfo, SubscriptionsReply, TakeReply, TransactReply

_TAKE_COUNT = 1000
_TAKE_BYTES = 1024 * 1024


class DeadLetterAdmin:
    """The part of a client that lists dead letters and sends them back."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._driver = context.driver

    def dead_letters(self, dead_topic: str) -> Flow[list[DeadLetter]]:
        """The letters in a dead-letter topic that nobody has taken out of it, the oldest first. None where there is
        no such topic: the first letter makes it.

        >>> [(letter.message.offset, letter.reason) for letter in client.dead_letters("orders.dead")]
        [(0, 'no such customer')]
        """
        try:
            info = yield from self._dead_info(dead_topic)
        except errors.TopicUnknown:
            return []
        if info is None:
            return []
        # What was taken out from between is found by taking the rest, for a moment.
        there = None
        if info.done:
            there = {message.offset for message in (yield from self._visit(dead_topic, _Visit(info.end_offset)))}
        found: list[DeadLetter] = []
        reader = Reader(self._driver, dead_topic, info.acked, info.end_offset, False, 0)
        while messages := (yield from reader.next_part()):
            letters = (DeadLetter.of(each) for each in messages if there is None or each.offset in there)
            found += [letter for letter in letters if letter is not None]
        return found

    def retry_dead_letters(self, dead_topic: str, offsets: Iterable[int] | None = None) -> Flow[int]:
        """Put letters back to the topics that they come from, and take them out of the dead-letter topic: those at
        these offsets of it, or all. Returns how many. Each goes back once, whatever happens, as a new message: every
        subscription of its topic gets it, also those that had done it before.

        >>> client.retry_dead_letters("orders.dead", [0])
        1
        """
        info = yield from self._dead_info(dead_topic)
        if info is None:
            return 0
        wanted = None if offsets is None else {int(offset) for offset in offsets}
        visit = _Visit(info.end_offset, wanted, retries=True)
        yield from self._visit(dead_topic, visit)
        return visit.retried

    def _dead_info(self, dead_topic: str) -> Flow[SubscriptionInfo | None]:
        page = yield from self._context.ask(Subscriptions(dead_topic, DEAD_SUBSCRIBER[:-1]), SubscriptionsReply)
        named = [info for info in page.subscriptions if info.subscriber == DEAD_SUBSCRIBER and info.sharing is not None]
        return named[0] if named else None

    def _visit(self, dead_topic: str, visit: _Visit) -> Flow[list[Message]]:
        """Take what there is, do with it what is to be done, and leave. Returns what is left."""
        opened = yield from self._context.call(Open(dead_topic, DEAD_SUBSCRIBER), OpenReply)
        whose = (opened.topic_id, DEAD_SUBSCRIBER, opened.epoch)
        leave = Leave(*whose, visit.member)
        left: list[Message] = []
        try:
            while not visit.is_over:
                token, messages = yield from self._take_letters(dead_topic, whose, visit)
                if not token:
                    break
                left += yield from self._retry_some(whose, token, messages, visit)
        except BaseException:
            self._driver.core.ask(leave)
            raise
        yield from self._context.ask(leave, Done)
        return left

    def _take_letters(
        self, dead_topic: str, whose: tuple[int, str, int], visit: _Visit
    ) -> Flow[tuple[int, list[Message]]]:
        visit.number += 1
        command = Take(*whose, visit.member, visit.number, _TAKE_COUNT, _TAKE_BYTES)
        pending = self._driver.core.ask(command)
        reply = check_reply((yield from wait_for_reply(self._driver, pending)), TakeReply, command)
        payloads = pending.payloads
        parts = yield Outside(lambda: decode_take(dead_topic, reply, payloads))
        messages = [message for part in parts for message in part.messages]
        visit.is_over = any(message.offset >= visit.end_offset - 1 for message in messages)
        return reply.token, messages

    def _retry_some(
        self, whose: tuple[int, str, int], token: int, messages: list[Message], visit: _Visit
    ) -> Flow[list[Message]]:
        """Settle and put, all or nothing. Returns what was not wanted."""
        letters = [letter for letter in map(visit.letter_of, messages) if letter is not None]
        if letters:
            puts, payloads = make_retry_puts(letters)
            done = ranges_of([letter.message.offset for letter in letters])
            settle = Settle(*whose, tuple((token, first, count) for first, count in done))
            yield from self._context.call(Transact(settles=(settle,), puts=puts), TransactReply, payloads)
            visit.retried += len(letters)
        taken = {letter.message.offset for letter in letters}
        return [message for message in messages if message.offset not in taken]


class _Visit:
    """One time that dead letters are taken: which ones are to be retried, and how far it got."""

    def __init__(self, end_offset: int, wanted: set[int] | None = None, *, retries: bool = False) -> None:
        self.member = secrets.token_hex(8)
        self.number = 0
        #: What comes later is not looked at: it may be the same letters again.
        self.end_offset = end_offset
        self.wanted = wanted
        self.retries = retries
        self.retried = 0
        self.is_over = False

    def letter_of(self, message: Message) -> DeadLetter | None:
        """A letter that is to be retried."""
        if not self.retries or message.offset >= self.end_offset:
            return None
        if self.wanted is not None and message.offset not in self.wanted:
            return None
        return DeadLetter.of(message)
