"""Keeps cursors open: opens closed ones, and asks the broker about quiet ones regularly, since a seek or a deleted
topic shows only then."""

from __future__ import annotations

import asyncio
import logging
import time

from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.settings import PushSettings
from oncemq.gateways.push.subscribers.subscriber_cursor import SubscriberCursor
from oncemq.gateways.tasks import cancel, start
from oncemq.protocol import errors

#: How many cursors are checked at a time.
_CHECKS_MAX = 100
#: A quiet cursor is checked after this multiple of the retransmission time, and after at least this many seconds.
_QUIET_TIMES = 3
_QUIET_S_MIN = 1.0
#: When a cursor is checked whose user does not have the right any more.
_NOT_ALLOWED_S = 60.0


class Keepalive:
    def __init__(self, settings: PushSettings, counters: Counters) -> None:
        self._retry_s = settings.retransmit_ms / 1000
        self._quiet_s = max(_QUIET_TIMES * self._retry_s, _QUIET_S_MIN)
        self._counters = counters
        self._checks: dict[SubscriberCursor, asyncio.Task[None]] = {}

    def check_if_due(self, cursor: SubscriberCursor, now_s: float) -> None:
        """Start a check of the cursor, if it is due and none is running."""
        if not cursor.is_registered or cursor.is_fenced or cursor.is_unsubscribed:
            return
        if now_s < cursor.check_due_s and not cursor.is_in_doubt:
            return
        if cursor not in self._checks and len(self._checks) < _CHECKS_MAX:
            self._checks[cursor] = task = start(self._check(cursor), "checking a push subscription")
            task.add_done_callback(lambda _: self._checks.pop(cursor))

    async def _check(self, cursor: SubscriberCursor) -> None:
        pause_s = self._retry_s
        try:
            await cursor.check()
            pause_s = self._quiet_s
        except errors.Refused as error:
            text = f"'{cursor.subscriber}' can't be subscribed to '{cursor.topic}': {error.text}"
            self._counters.report("subscriptions_refused", text, level=logging.ERROR)
            if isinstance(error, errors.Unauthenticated | errors.Forbidden):
                pause_s = _NOT_ALLOWED_S
        except errors.OnceMQError as error:
            text = f"the subscription of '{cursor.subscriber}' to '{cursor.topic}' has to wait: {error.text}"
            self._counters.report("subscriptions_waiting", text)
        finally:
            cursor.check_due_s = time.monotonic() + pause_s

    async def stop(self) -> None:
        await cancel(*self._checks.values())
