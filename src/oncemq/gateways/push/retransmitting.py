"""Sends a reliable subscriber what it has not acknowledged, in order, until it has; with longer and longer pauses
while it does not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from oncemq import errors
from oncemq.gateways.push.calling import Caller
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.messages import ID_HEADER, ORIGIN_HEADER, Data
from oncemq.gateways.push.place import Place
from oncemq.gateways.push.registry import Registered
from oncemq.gateways.push.settings import PushSettings
from oncemq.message import Message

#: Subscribers that are called at a time.
_CALLS_MAX = 64


class Subscriber:
    def __init__(self, name: str) -> None:
        self.name = name
        self.address = ""
        #: By topic.
        self.places: dict[str, Place] = {}
        #: As the broker's registry has it; None: that is in doubt.
        self.registered: Registered | None = None
        #: Hello and goodbye, one at a time.
        self.lock = asyncio.Lock()
        self.calling: asyncio.Task[None] | None = None
        self.not_before_s = 0.0
        self.pause_s = 0.0

    def is_back(self, address: str) -> None:
        self.address = address
        self.has_answered()
        self.not_before_s = 0.0

    def has_answered(self) -> None:
        self.pause_s = 0.0


class Retransmitting:
    def __init__(
        self, settings: PushSettings, counters: Counters, mend: Callable[[Place, errors.Refused], Awaitable[None]]
    ) -> None:
        self._retransmit_s = settings.retransmit_ms / 1000
        self._answer_s = settings.answer_ms / 1000
        self._pause_s_max = settings.pause_ms_max / 1000
        self._counters = counters
        self._mend = mend
        self._calls = asyncio.Semaphore(_CALLS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    def look_after(self, subscriber: Subscriber, now_s: float) -> None:
        """Call it, if something is due and nobody does."""
        if subscriber.calling is not None or now_s < subscriber.not_before_s or self._due_place(subscriber) is None:
            return
        subscriber.calling = asyncio.ensure_future(self._call(subscriber))
        self._tasks.add(subscriber.calling)
        subscriber.calling.add_done_callback(self._tasks.discard)

    def _due_place(self, subscriber: Subscriber) -> Place | None:
        return next((place for place in subscriber.places.values() if place.is_due(self._retransmit_s)), None)

    async def _call(self, subscriber: Subscriber) -> None:
        try:
            async with self._calls:
                if not await self._catch_up(subscriber):
                    self._pause(subscriber)
        except errors.OnceMQError as error:
            self._counters.trouble("retransmit_waits", f"'{subscriber.name}' has to wait: {error.text}")
            self._pause(subscriber)
        finally:
            subscriber.calling = None

    def _pause(self, subscriber: Subscriber) -> None:
        subscriber.pause_s = min(max(2 * subscriber.pause_s, self._retransmit_s), self._pause_s_max)
        subscriber.not_before_s = time.monotonic() + subscriber.pause_s

    async def _catch_up(self, subscriber: Subscriber) -> bool:
        """Until nothing is due. False: it did not answer."""
        address = subscriber.address
        caller = Caller(address, self._answer_s)
        try:
            while (place := self._due_place(subscriber)) is not None and subscriber.address == address:
                try:
                    if not await self._send_part(subscriber, place, caller):
                        return False
                except errors.Refused as error:
                    await self._mend(place, error)
                    return False
        finally:
            caller.close()
        return True

    async def _send_part(self, subscriber: Subscriber, place: Place, caller: Caller) -> bool:
        messages = await place.read()
        epoch = place.epoch
        for message in messages:
            if message.offset >= place.missed_below:
                break
            # Everything before it was acknowledged, or is not there any more.
            place.pass_over(message.offset)
            if place.has(message.offset):
                continue
            if not await self._send_one(subscriber, place, caller, message):
                return False
            if place.epoch != epoch or not place.is_open:
                return True
        await place.confirm()
        return True

    async def _send_one(self, subscriber: Subscriber, place: Place, caller: Caller, message: Message) -> bool:
        self._counters.add("retransmitted")
        epoch = place.epoch
        answer = await caller.call(_data_of(subscriber, message), message.value)
        if answer is None:
            return place.has(message.offset)
        if answer.subscriber != subscriber.name or answer.topic != place.topic or answer.offset != message.offset:
            text = f"'{subscriber.name}' answered a retransmission with something else"
            self._counters.trouble("answers_malformed", text)
            return False
        subscriber.has_answered()
        if place.epoch == epoch:
            place.note([message.offset])
        return True

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _data_of(subscriber: Subscriber, message: Message) -> Data:
    extra = {}
    for field, header in (("origin", ORIGIN_HEADER), ("id", ID_HEADER)):
        if header in message.headers:
            extra[field] = message.headers[header].decode(errors="replace")
    return Data(
        subscriber=subscriber.name, topic=message.topic, offset=message.offset, time_ms=message.timestamp_ms,
        topic_id=message.topic_id, **extra,
    )  # fmt: skip
