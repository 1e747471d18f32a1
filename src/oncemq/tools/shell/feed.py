"""A thread that shows the messages of a subscription as they arrive, and acks each after it was shown."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from oncemq.client.consumer.sync import PatternSubscription, Subscription
from oncemq.protocol import errors
from oncemq.tools.shell.display import Display

log = logging.getLogger("oncemq.shell")

_BATCH_MAX = 64
#: Between two attempts while the broker does not answer.
_RETRY_S = 0.2


class Feed:
    """Shows a subscription until it is closed."""

    def __init__(self, subscription: Subscription | PatternSubscription, display: Display) -> None:
        self._subscription = subscription
        self._display = display
        #: By topic: all messages below this offset were shown.
        self.shown: dict[str, int] = {}
        self._is_broker_away = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"feed of {subscription.topic}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop. Messages that were shown are acked."""
        self._closing.set()
        with suppress(errors.OnceMQError):
            self._subscription.close()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._show_next()
            except errors.TRANSIENT as error:
                self._wait_for_broker(error)
            except errors.ClientClosed:
                return
            except errors.OnceMQError as error:
                self._display.error(f"{self._subscription.topic} is no longer shown: {error.text}")
                return
            except OSError:
                # The reader of the output has exited. Messages that were not shown are not acked.
                return
            except Exception as error:
                log.exception("the feed of '%s' failed", self._subscription.topic)
                self._display.error(f"{self._subscription.topic} is no longer shown: {error!r}")
                return

    def _show_next(self) -> None:
        messages = self._subscription.get_many(_BATCH_MAX, timeout_s=None)
        if self._is_broker_away:
            self._is_broker_away = False
            self._display.say(f"The broker is back: {self._subscription.topic} continues.")
        for message in messages:
            self._display.message(message)
            self._subscription.ack(message)
            self.shown[message.topic] = message.offset + 1

    def _wait_for_broker(self, error: errors.OnceMQError) -> None:
        """Report the error once, and wait before the next attempt."""
        if not self._is_broker_away:
            self._is_broker_away = True
            self._display.error(f"{error.text}. {self._subscription.topic} continues when the broker is back.")
        self._closing.wait(_RETRY_S)
