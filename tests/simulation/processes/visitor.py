"""A consumer whose subscription is deleted when it is idle. It sleeps from time to time, and leaves without a word."""

from __future__ import annotations

from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import commands, errors, replies
from tests.simulation.environment.world import Violation
from tests.simulation.processes.consumer import Consumer
from tests.simulation.processes.process import Context
from tests.simulation.processes.timed import NOTICED_MS

_GONE = (errors.TopicGone, errors.NotSubscribed, errors.TopicUnknown)
#: Probability that it sleeps after a get.
_SLEEPS = 0.12


class Visitor(Consumer):
    """While it is heard, it keeps its subscription. When it is not heard any more, the subscription is deleted."""

    def __init__(self, context: Context, name: str, topic: str) -> None:
        super().__init__(context, name, topic, name, commands.START_NEW)
        self._idle_ms = 150 + int(self.random.random() * 400)
        #: When the last subscribe or get was sent that was answered: the broker has heard it then or later.
        self._heard_ms = 0
        self._sent_ms = 0
        self._left_ms: int | None = None
        context.subscriptions.deletable.add((topic, name))

    @property
    def is_settled(self) -> bool:
        if self._left_ms is None:
            return False
        since_ms = max(self._left_ms, self.world.available_since_ms)
        return self.world.is_available and self.world.now_ms > since_ms + self._idle_ms + NOTICED_MS

    def _subscribe(self) -> None:
        self._opened = None
        self._end_offset = -1
        self.context.subscriptions.requested.setdefault(self.topic, set()).add(self.subscriber)
        self._sent_ms = self.world.now_ms
        operation = commands.Subscribe(self.topic, self.subscriber, self.start_at, None, self._idle_ms)
        self.submit(operation, None, self._subscribed)

    def _subscribed(self, pending: Pending) -> None:
        if isinstance(pending.reply, replies.SubscribeReply) and pending.reply.created:
            self._heard_ms = self._sent_ms
        super()._subscribed(pending)

    def _handle_error(self, pending: Pending) -> bool:
        if isinstance(pending.error, _GONE) and not self.is_over(pending):
            self.world.tally["client: subscription idle"] += 1
            if self.world.now_ms < self._heard_ms + self._idle_ms:
                raise Violation(f"lost: the subscription of {self.name}, which was heard within {self._idle_ms} ms")
        return super()._handle_error(pending)

    def _got(self, pending: Pending, command: commands.Get, epoch_when_sent: int, sent_ms: int) -> None:
        if pending.reply is not None and pending.error is None:
            self._heard_ms = sent_ms
        super()._got(pending, command, epoch_when_sent, sent_ms)

    def _pause(self) -> None:
        if self.world.healed:
            self._left_ms = self.world.now_ms
        elif self.random.random() < _SLEEPS:
            self.later(2 * self._idle_ms, self._get_if_open)
        else:
            super()._pause()
