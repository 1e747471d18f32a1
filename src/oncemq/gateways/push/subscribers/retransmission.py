"""Sends a reliable subscriber the messages that it has not acked, in order, until it has acked them; with growing
pauses while it does not answer.

No subscriber delays others for long: a call ends after a short time, then the subscriber's other cursors and other
subscribers have their turn. Subscribers that did not answer the last time wait only for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from oncemq.client.gateway_api import CurveKeys
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.messages import ID_HEADER, ORIGIN_HEADER, Data
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.callback import CallbackSocket
from oncemq.gateways.push.subscribers.subscriber import Subscriber
from oncemq.gateways.push.subscribers.subscriber_cursor import SubscriberCursor
from oncemq.gateways.tasks import cancel, report_failure, start
from oncemq.protocol import errors
from oncemq.protocol.commands import CURVE
from oncemq.protocol.message import Message

log = logging.getLogger("oncemq.push")

#: Subscribers that are called at a time.
_CALLS_MAX = 64
#: How long a call sends messages; the message in progress at that time is completed.
_CALL_S = 0.2


class Retransmission:
    def __init__(self, settings: PushSettings, counters: Counters) -> None:
        self._retransmit_s = settings.retransmit_ms / 1000
        self._answer_s = settings.answer_ms / 1000
        self._pause_s_max = settings.pause_ms_max / 1000
        self._counters = counters
        self._keys = settings.curve
        self._calls = asyncio.Semaphore(_CALLS_MAX)
        self._calls_to_silent = asyncio.Semaphore(_CALLS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    # Scheduling.

    def call_if_due(self, subscriber: Subscriber, now_s: float) -> None:
        """Start a call to the subscriber, if messages are due and no call is running."""
        if subscriber.calling is not None or now_s < subscriber.not_before_s:
            return
        if self._due_cursor(subscriber, now_s) is None:
            return
        task = subscriber.calling = start(self._call(subscriber), "a retransmission")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: subscriber.end_call())

    def _due_cursor(self, subscriber: Subscriber, now_s: float) -> SubscriberCursor | None:
        """Return the due cursor that has waited longest."""
        due = [cursor for cursor in subscriber.cursors.values() if cursor.is_due(now_s, self._retransmit_s)]
        return min(due, key=lambda cursor: cursor.served_s, default=None)

    async def _call(self, subscriber: Subscriber) -> None:
        try:
            while (cursor := self._due_cursor(subscriber, time.monotonic())) is not None:
                async with self._calls_to_silent if subscriber.pause_s else self._calls:
                    cursor.served_s = time.monotonic()
                    if not await self._serve_cursor(subscriber, cursor):
                        self._pause(subscriber)
                        return
        except Exception as error:
            if not isinstance(error, errors.OnceMQError):
                report_failure("a retransmission", error)
            self._counters.report("retransmit_waits", f"'{subscriber.name}' has to wait: {error}")
            self._pause(subscriber)

    def _pause(self, subscriber: Subscriber) -> None:
        subscriber.pause_s = min(max(2 * subscriber.pause_s, self._retransmit_s), self._pause_s_max)
        subscriber.not_before_s = time.monotonic() + subscriber.pause_s

    def cancel_call(self, subscriber: Subscriber) -> None:
        """Cancel the call in progress: the subscriber is back, perhaps at another address."""
        if subscriber.calling is not None:
            subscriber.calling.cancel()

    async def stop(self) -> None:
        await cancel(*self._tasks)

    # Sending.

    async def _serve_cursor(self, subscriber: Subscriber, cursor: SubscriberCursor) -> bool:
        """Send messages of one cursor. False: the subscriber did not answer. Raises SettingInvalid if it is impossible
        to connect to its address."""
        keys = self._keys_for(subscriber)
        with contextlib.closing(CallbackSocket(subscriber.address, self._answer_s, keys)) as callback:
            try:
                return await self._send_messages(subscriber, cursor, callback)
            except errors.OnceMQError as error:
                # The broker refused this cursor. Other cursors may work.
                cursor.not_before_s = time.monotonic() + self._retransmit_s
                text = f"'{cursor.topic}' has to wait for '{subscriber.name}': {error.text}"
                self._counters.report("retransmit_waits", text)
                return True

    def _keys_for(self, subscriber: Subscriber) -> CurveKeys | None:
        """If the gateway has logged the subscriber in by its key, it sends only to the owner of this key, whoever
        listens at the address."""
        _, _, key = subscriber.caller.partition(f"/{CURVE}=")
        if self._keys is None or not key:
            return None
        return CurveKeys(server=key, public=self._keys.public, secret=self._keys.secret)

    async def _send_messages(self, subscriber: Subscriber, cursor: SubscriberCursor, callback: CallbackSocket) -> bool:
        messages = await cursor.read()
        epoch, until_s = cursor.epoch, time.monotonic() + _CALL_S
        for message in messages:
            # All messages before it were acked, or are not stored any more.
            cursor.skip_to(message.offset)
            if message.offset >= cursor.missed_below:
                break
            if cursor.has_ack(message.offset):
                continue
            if not await self._send_one(subscriber, cursor, callback, message):
                # It may have acked the message through the ack socket.
                return cursor.has_ack(message.offset)
            if cursor.epoch != epoch or not cursor.is_open:
                return True
            if time.monotonic() >= until_s:
                break
        await cursor.confirm()
        return True

    async def _send_one(
        self, subscriber: Subscriber, cursor: SubscriberCursor, callback: CallbackSocket, message: Message
    ) -> bool:
        self._counters.add("retransmitted")
        epoch = cursor.epoch
        answer = await callback.call(_data_of(subscriber, message), message.value)
        if answer is None:
            return False
        if answer.subscriber != subscriber.name or answer.topic != cursor.topic or answer.offset != message.offset:
            text = f"'{subscriber.name}' answered a retransmission with an unexpected message"
            self._counters.report("answers_malformed", text)
            return False
        subscriber.note_answer()
        if cursor.epoch == epoch:
            cursor.note_acks([message.offset])
        return True


def _data_of(subscriber: Subscriber, message: Message) -> Data:
    extra = {}
    for field, header in (("origin", ORIGIN_HEADER), ("id", ID_HEADER)):
        if header in message.headers:
            extra[field] = message.headers[header].decode(errors="replace")
    return Data(
        subscriber=subscriber.name,
        topic=message.topic,
        offset=message.offset,
        time_ms=message.timestamp_ms,
        topic_id=message.topic_id,
        **extra,
    )
