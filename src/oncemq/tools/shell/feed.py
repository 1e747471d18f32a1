"""A subscription whose messages are shown as they come, by a thread of its own; each acked after it was shown."""

from __future__ import annotations

import threading
from contextlib import suppress

from oncemq.client.consumer.session import PASSING
from oncemq.client.consumer.sync import PatternSubscription, Subscription
from oncemq.protocol import errors
from oncemq.tools.shell.screen import Screen

_TOGETHER_MAX = 64
#: Between two tries where the broker says "not now".
_AGAIN_S = 0.2


class Feed:
    def __init__(self, subscription: Subscription | PatternSubscription, screen: Screen) -> None:
        self._subscription = subscription
        self._screen = screen
        #: By topic: everything below this offset was shown.
        self.shown: dict[str, int] = {}
        self._is_troubled = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"feed of {subscription.topic}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """What was shown is acked."""
        self._closing.set()
        with suppress(errors.OnceMQError):
            self._subscription.close()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._show_next()
            except PASSING as error:
                self._wait_for_broker(error)
            except errors.ClientClosed:
                return
            except errors.OnceMQError as error:
                self._screen.trouble(f"{self._subscription.topic} is no longer shown: {error.text}")
                return
            except OSError:
                # Nobody reads any more: what was not shown is not acked.
                return

    def _show_next(self) -> None:
        messages = self._subscription.get_many(_TOGETHER_MAX, timeout_s=None)
        if self._is_troubled:
            self._is_troubled = False
            self._screen.say(f"The broker is back: {self._subscription.topic} goes on.")
        for message in messages:
            self._screen.message(message)
            self._subscription.ack(message)
            self.shown[message.topic] = message.offset + 1

    def _wait_for_broker(self, error: errors.OnceMQError) -> None:
        """Said once; it goes on by itself."""
        if not self._is_troubled:
            self._is_troubled = True
            self._screen.trouble(f"{error.text}. {self._subscription.topic} goes on when the broker is back.")
        self._closing.wait(_AGAIN_S)
