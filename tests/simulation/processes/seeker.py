"""A process that seeks subscriptions: back, forward, to a time, to an offset."""

from __future__ import annotations

from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import commands, errors
from oncemq.protocol.patterns import is_pattern
from tests.simulation.environment.world import Violation
from tests.simulation.processes.process import Context, Process

_EXPECTED = (
    errors.BrokerAway,
    errors.NotNow,
    errors.RangeGone,
    errors.OffsetOutOfRange,
    errors.NotSubscribed,
    errors.TopicUnknown,
)


class Seeker(Process):
    def __init__(self, context: Context, name: str, targets: list[tuple[str, str]]) -> None:
        super().__init__(context, name)
        #: (topic or pattern, subscriber)
        self.targets = targets
        self._idle = True

    def rules(self) -> list[str]:
        # It moves the subscriptions of others.
        return ["role admin"]

    def begin(self) -> None:
        self._pause()

    @property
    def is_settled(self) -> bool:
        return self.core is not None and self._idle

    def _pause(self) -> None:
        self._idle = True
        self.later(30 + int(self.random.random() * 6 * self.world.faults.think_ms), self._act)

    def _act(self) -> None:
        if self.world.healed:
            return
        topic, subscriber = self.targets[int(self.random.random() * len(self.targets))]
        seek = self._seek(topic, subscriber)
        self._idle = False
        self.submit(seek, None, lambda pending: self._did(pending, seek))

    def _seek(self, topic: str, subscriber: str) -> commands.Seek:
        random = self.random.random
        chance = random()
        if chance < 0.4:
            return commands.Seek(topic, subscriber, commands.START_EARLIEST)
        if chance < 0.55:
            return commands.Seek(topic, subscriber, commands.START_NEW)
        if chance < 0.75 or is_pattern(topic):
            return commands.Seek(topic, subscriber, commands.START_EARLIEST, self.world.now_ms - int(random() * 600))
        return commands.Seek(topic, subscriber, int(random() * 40))

    def _did(self, pending: Pending, seek: commands.Seek) -> None:
        if self.is_over(pending):
            return
        error = pending.error
        self.world.note(f"{self.name}: {seek} → {error.code if error is not None else pending.reply}")
        if error is not None and not isinstance(error, _EXPECTED):
            raise Violation(f"{self.name}: {seek} got {error.code}: {error}")
        self._pause()
