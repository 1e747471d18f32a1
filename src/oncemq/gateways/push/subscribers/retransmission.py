"""Sends a reliable subscriber what it has not acknowledged, in order, until it has; with longer and longer pauses
while it does not answer.

Nobody stands in the way of others for long: a call ends after a part, then other places of the same subscriber and
other subscribers have their turn. Those who did not answer the last time wait for each other only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.messages import ID_HEADER, ORIGIN_HEADER, Data
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.callback import Caller
from oncemq.gateways.push.subscribers.subscriber import Subscriber
from oncemq.gateways.push.subscribers.subscriber_cursor import Place
from oncemq.protocol import errors
from oncemq.protocol.message import Message

log = logging.getLogger("oncemq.push")

#: Subscribers that are called at a time.
_CALLS_MAX = 64
#: A part takes so long, and the message that is under way by then.
_PART_S = 0.2


class Retransmitting:
    def __init__(self, settings: PushSettings, counters: Counters) -> None:
        self._retransmit_s = settings.retransmit_ms / 1000
        self._answer_s = settings.answer_ms / 1000
        self._pause_s_max = settings.pause_ms_max / 1000
        self._counters = counters
        self._calls = asyncio.Semaphore(_CALLS_MAX)
        self._calls_of_silent = asyncio.Semaphore(_CALLS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    # Whom, and when.

    def look_after(self, subscriber: Subscriber, now_s: float) -> None:
        """Call it, if something is due and nobody does."""
        if subscriber.calling is not None or now_s < subscriber.not_before_s:
            return
        if self._due_place(subscriber, now_s) is None:
            return
        task = subscriber.calling = asyncio.ensure_future(self._call(subscriber))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: _has_ended(subscriber))

    def _due_place(self, subscriber: Subscriber, now_s: float) -> Place | None:
        """The one that has waited longest."""
        due = [place for place in subscriber.places.values() if place.is_due(now_s, self._retransmit_s)]
        return min(due, key=lambda place: place.served_s, default=None)

    async def _call(self, subscriber: Subscriber) -> None:
        try:
            while (place := self._due_place(subscriber, time.monotonic())) is not None:
                async with self._calls_of_silent if subscriber.pause_s else self._calls:
                    place.served_s = time.monotonic()
                    if not await self._call_for(subscriber, place):
                        self._pause(subscriber)
                        return
        except Exception as error:
            if not isinstance(error, errors.OnceMQError):
                log.exception("'%s' could not be called", subscriber.name)
            self._counters.trouble("retransmit_waits", f"'{subscriber.name}' has to wait: {error}")
            self._pause(subscriber)

    def _pause(self, subscriber: Subscriber) -> None:
        subscriber.pause_s = min(max(2 * subscriber.pause_s, self._retransmit_s), self._pause_s_max)
        subscriber.not_before_s = time.monotonic() + subscriber.pause_s

    def hang_up(self, subscriber: Subscriber) -> None:
        """It is back, perhaps elsewhere: nobody waits for an answer to an older call."""
        if subscriber.calling is not None:
            subscriber.calling.cancel()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What.

    async def _call_for(self, subscriber: Subscriber, place: Place) -> bool:
        """False: it did not answer. Raises SettingInvalid: it can't be called there."""
        with contextlib.closing(Caller(subscriber.address, self._answer_s)) as caller:
            try:
                return await self._send_part(subscriber, place, caller)
            except errors.OnceMQError as error:
                # The broker's answer about this place. Others may fare better.
                place.not_before_s = time.monotonic() + self._retransmit_s
                text = f"'{place.topic}' has to wait for '{subscriber.name}': {error.text}"
                self._counters.trouble("retransmit_waits", text)
                return True

    async def _send_part(self, subscriber: Subscriber, place: Place, caller: Caller) -> bool:
        messages = await place.read()
        epoch, until_s = place.epoch, time.monotonic() + _PART_S
        for message in messages:
            # Everything before it was acknowledged, or is not there any more.
            place.pass_over(message.offset)
            if message.offset >= place.missed_below:
                break
            if place.has(message.offset):
                continue
            if not await self._send_one(subscriber, place, caller, message):
                # It may have acknowledged it in another way.
                return place.has(message.offset)
            if place.epoch != epoch or not place.is_open:
                return True
            if time.monotonic() >= until_s:
                break
        await place.confirm()
        return True

    async def _send_one(self, subscriber: Subscriber, place: Place, caller: Caller, message: Message) -> bool:
        self._counters.add("retransmitted")
        epoch = place.epoch
        answer = await caller.call(_data_of(subscriber, message), message.value)
        if answer is None:
            return False
        if answer.subscriber != subscriber.name or answer.topic != place.topic or answer.offset != message.offset:
            text = f"'{subscriber.name}' answered a retransmission with something else"
            self._counters.trouble("answers_malformed", text)
            return False
        subscriber.has_answered()
        if place.epoch == epoch:
            place.note([message.offset])
        return True


def _has_ended(subscriber: Subscriber) -> None:
    subscriber.calling = None


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
