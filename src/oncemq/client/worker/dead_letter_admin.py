"""Lists dead letters, and sends them back to their topics. Their format is in dead_letters.py."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from functools import partial

from oncemq.client.consumer.reader import Reader
from oncemq.client.context import ClientContext
from oncemq.client.runtime.flow import Flow, Outside
from oncemq.client.runtime.rpc import wait_for_reply
from oncemq.client.schemas.claims import claim_payloads
from oncemq.client.worker.dead_letters import DeadLetter, make_retry_puts
from oncemq.client.worker.leases import decode_take
from oncemq.client.worker.membership import ranges_of
from oncemq.protocol import errors
from oncemq.protocol.commands import Leave, Open, Settle, Subscriptions, Take, Transact
from oncemq.protocol.message import Message
from oncemq.protocol.names import DEAD_SUBSCRIBER
from oncemq.protocol.replies import (
    Done,
    OpenReply,
    SubscriptionInfo,
    SubscriptionsReply,
    TakeReply,
    TransactReply,
    expect,
)

_TAKE_COUNT = 1000
_TAKE_BYTES = 1024 * 1024


class DeadLetterAdmin:
    """The part of a client that lists dead letters and sends them back."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    def dead_letters(self, dead_topic: str) -> Flow[list[DeadLetter]]:
        """Return the letters in a dead-letter topic, the oldest first. If there is no such topic, there are none."""
        try:
            info = yield from self._find_subscription(dead_topic)
        except errors.TopicUnknown:
            return []
        if info is None:
            return []
        present = None
        if info.done:
            # Letters were taken out from between the others. Taking the rest for a moment tells which ones are left.
            scan = _Scan(self._context, dead_topic, info.end_offset)
            present = {message.offset for message in (yield from scan.run())}
        found: list[DeadLetter] = []
        reader = Reader(self._context.driver, dead_topic, info.acked, info.end_offset, False, 0)
        while messages := (yield from reader.next_part()):
            letters = (DeadLetter.of(each) for each in messages if present is None or each.offset in present)
            found += [letter for letter in letters if letter is not None]
        return found

    def retry_dead_letters(self, dead_topic: str, offsets: Iterable[int] | None = None) -> Flow[int]:
        """Put the letters at these offsets of a dead-letter topic, or all, back to their topics. Returns how many.

        Each is put back once, whatever happens, as a new message: every subscription of its topic gets it, also those
        that have processed it before."""
        info = yield from self._find_subscription(dead_topic)
        if info is None:
            return 0
        wanted = None if offsets is None else {int(offset) for offset in offsets}
        scan = _Scan(self._context, dead_topic, info.end_offset, wanted, retries=True)
        yield from scan.run()
        return scan.retried

    def _find_subscription(self, dead_topic: str) -> Flow[SubscriptionInfo | None]:
        page = yield from self._context.ask(Subscriptions(dead_topic, DEAD_SUBSCRIBER[:-1]), SubscriptionsReply)
        named = [info for info in page.subscriptions if info.subscriber == DEAD_SUBSCRIBER and info.sharing is not None]
        return named[0] if named else None


class _Scan:
    """Takes all letters of a dead-letter topic, puts those back that are to be retried, and returns the rest."""

    def __init__(
        self,
        context: ClientContext,
        dead_topic: str,
        end_offset: int,
        wanted: set[int] | None = None,
        *,
        retries: bool = False,
    ) -> None:
        self.retried = 0
        self._context = context
        self._topic = dead_topic
        #: Later letters are ignored: they may be the same letters again.
        self._end_offset = end_offset
        self._wanted = wanted
        self._retries = retries
        self._member = secrets.token_hex(8)
        self._number = 0
        self._is_over = False

    def run(self) -> Flow[list[Message]]:
        """Return the letters that stay."""
        opened = yield from self._context.call(Open(self._topic, DEAD_SUBSCRIBER), OpenReply)
        subscription = (opened.topic_id, DEAD_SUBSCRIBER, opened.epoch)
        leave = Leave(*subscription, self._member)
        left: list[Message] = []
        try:
            while not self._is_over:
                token, messages = yield from self._take(subscription)
                if not token:
                    break
                left += yield from self._retry(subscription, token, messages)
        except BaseException:
            self._context.core.ask(leave)
            raise
        yield from self._context.ask(leave, Done)
        return left

    def _take(self, subscription: tuple[int, str, int]) -> Flow[tuple[int, list[Message]]]:
        self._number += 1
        command = Take(*subscription, self._member, self._number, _TAKE_COUNT, _TAKE_BYTES)
        driver = self._context.driver
        pending = driver.core.ask(command)
        reply = expect((yield from wait_for_reply(driver, pending)), TakeReply)
        taken = yield Outside(partial(decode_take, self._topic, reply, pending.payloads))
        messages = [message for part in taken for message in part.messages]
        self._is_over = any(message.offset >= self._end_offset - 1 for message in messages)
        return reply.token, messages

    def _retry(self, subscription: tuple[int, str, int], token: int, messages: list[Message]) -> Flow[list[Message]]:
        """Ack and put in one transaction. Returns what is not retried."""
        letters = [letter for message in messages if (letter := self._letter_to_retry(message)) is not None]
        if letters:
            puts, payloads = make_retry_puts(letters)
            done = ranges_of([letter.message.offset for letter in letters])
            settle = Settle(*subscription, tuple((token, first, count) for first, count in done))
            retry = partial(self._put_again, Transact(settles=(settle,), puts=puts), payloads)
            yield from self._context.schemas.retrying([put.topic for put in puts], retry)
            self.retried += len(letters)
        taken = {letter.message.offset for letter in letters}
        return [message for message in messages if message.offset not in taken]

    def _put_again(self, operation: Transact, payloads: tuple[bytes, ...]) -> Flow[TransactReply]:
        """Put letters to their topics, whose schemas may have changed since."""
        claimed, checked = claim_payloads(operation, payloads, self._context.schemas.find)
        return (yield from self._context.call(claimed, TransactReply, checked))

    def _letter_to_retry(self, message: Message) -> DeadLetter | None:
        if not self._retries or message.offset >= self._end_offset:
            return None
        if self._wanted is not None and message.offset not in self._wanted:
            return None
        return DeadLetter.of(message)
