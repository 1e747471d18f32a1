"""Consumers of a topic with a quota, one class per overflow policy."""

from __future__ import annotations

from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import commands, errors
from oncemq.protocol.replies import GetReply, OpenReply
from tests.simulation.environment.world import Violation
from tests.simulation.processes.consumer import Consumer
from tests.simulation.processes.process import Context


class SlowConsumer(Consumer):
    """Policy `refuse`: it misses nothing, and the producers wait."""

    def __init__(self, context: Context, name: str, topic: str) -> None:
        super().__init__(context, name, topic, name, commands.START_NEW)

    def _pause(self) -> None:
        lazy = 1 if self.world.healed or self.random.random() < 0.5 else 6
        self.later(int(lazy * self.random.random() * self.world.faults.think_ms), self._get_if_open)


class DroppedConsumer(SlowConsumer):
    """Policy `drop`: it misses exactly the messages that are reported as dropped."""

    def _open_done(self, pending: Pending, acked_before: int, marks: int) -> None:
        reply = pending.reply
        if isinstance(reply, OpenReply) and self.model is not None:
            self.model.ack_sent = max(self.model.ack_sent, reply.acked)
        super()._open_done(pending, acked_before, marks)
        if self._opened is not None and self.model is not None:
            self.model.skip(self._opened.acked)

    def _got(self, pending: Pending, command: commands.Get, epoch_when_sent: int, sent_ms: int) -> None:
        reply = pending.reply
        if isinstance(reply, GetReply) and self.model is not None:
            # The broker moved the position.
            self.model.ack_sent = max(self.model.ack_sent, reply.acked)
        super()._got(pending, command, epoch_when_sent, sent_ms)

    def _skip_to(self, offset: int, reply: GetReply) -> None:
        assert self.model is not None
        self.model.skip(offset)
        self.world.tally["client: dropped"] += offset - self._position
        self._position = offset
        if len(self.model.skipped) > reply.dropped:
            raise Violation(
                f"lost: {self.name} did not get {sorted(self.model.skipped)}, "
                f"and {reply.dropped} messages were reported as dropped"
            )


class EndedConsumer(SlowConsumer):
    """Policy `expire`: its subscription may be deleted. It is told so, and subscribes again."""

    def __init__(self, context: Context, name: str, topic: str) -> None:
        super().__init__(context, name, topic)
        context.subscriptions.deletable.add((topic, name))

    def _handle_error(self, pending: Pending) -> bool:
        error = pending.error
        if isinstance(error, errors.NotSubscribed):
            raise Violation(f"{self.name}: it was not told that its subscription was deleted: {error}")
        if isinstance(error, errors.SubscriptionExpired):
            self.world.note(f"the subscription of {self.name} was deleted")
            self.world.tally["client: subscription expired"] += 1
            self._opened = None
            self.later(20, self._subscribe)
            return True
        return super()._handle_error(pending)
