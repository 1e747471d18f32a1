"""Processes that read topics without a subscription."""

from __future__ import annotations

from oncemq.client.consumer.fetch_buffer import FetchBuffer
from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import commands, errors
from oncemq.protocol.replies import GetReply
from tests.simulation.environment.world import Violation
from tests.simulation.processes.process import Context, Process


class Reader(Process):
    anonymous = True

    def __init__(self, context: Context, name: str, topics: list[str]) -> None:
        super().__init__(context, name)
        self._topics = topics
        self._buffer = FetchBuffer(topics[0], commands.START_EARLIEST)
        self._idle = True

    def rules(self) -> list[str]:
        return [f"read {topic}" for topic in self._topics]

    def begin(self) -> None:
        self._turn()

    @property
    def is_settled(self) -> bool:
        return self.core is not None and self._idle

    def _turn(self) -> None:
        topic = self._topics[int(self.random.random() * len(self._topics))]
        self._buffer = FetchBuffer(topic, commands.START_EARLIEST if self.random.random() < 0.7 else commands.START_NEW)
        self._pause()

    def _pause(self) -> None:
        self._idle = True
        if not self.world.healed:
            self.later(int(self.random.random() * 6 * self.world.faults.think_ms), self._read)

    def _read(self) -> None:
        self._idle = False
        wait_ms = int(self.random.random() * 200) if self.random.random() < 0.5 else 0
        buffer = self._buffer
        command = commands.Read(buffer.topic, buffer.position, 600, wait_ms, buffer.topic_id)
        self.ask(command, lambda pending: self._was_read(pending, command))

    def _was_read(self, pending: Pending, command: commands.Read) -> None:
        if self.is_over(pending):
            return
        buffer = self._buffer
        if pending.error is not None:
            if not isinstance(pending.error, errors.BrokerAway | errors.NotNow):
                self._check_error(pending.error, command)
                self._turn()
            else:
                self._pause()
            return
        reply = pending.reply
        assert isinstance(reply, GetReply)
        expected = command.position
        try:
            buffer.take(reply, pending.payloads)
        except errors.DamagedInTransit:
            buffer._damages = 0
        if buffer.topic_id == 0:
            buffer.topic_id = reply.topic_id
        while buffer:
            for message in buffer.decode():
                if expected >= 0 and message.offset != expected:
                    raise Violation(f"out of order: {self.name} asked for {expected} and got {message.offset}")
                expected = message.offset + 1
                self.context.history.observe_message(message, self.name)
        self.world.note(f"{self.name} read '{buffer.topic}' {command.position}..{expected - 1}")
        if self.random.random() < 0.3:
            self._turn()
        else:
            self._pause()

    def _check_error(self, error: errors.OnceMQError, command: commands.Read) -> None:
        if isinstance(error, errors.TopicGone | errors.TopicUnknown | errors.RangeGone):
            return
        raise Violation(f"{self.name}: {command} got {error.code}: {error}")
