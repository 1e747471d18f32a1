"""Processes with bad connections, which stay bad when everything else has healed: a slow one, and one on which a broker
answers hellos and nothing else. Their calls must end."""

from __future__ import annotations

from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import errors
from oncemq.protocol.commands import CreateTopic, Numbered
from oncemq.protocol.frames import Frame, decode_request
from tests.simulation.environment.world import World
from tests.simulation.processes.process import Context, Process
from tests.simulation.processes.producer import Producer

#: A put is under way for several timeouts.
BYTES_PER_MS = 6


def has_bad_links(world: World) -> bool:
    return world.seed % 22 == 11


class DistantProducer(Producer):
    """Puts large messages over a slow link. When everything has healed, the last one must arrive."""

    bytes_per_ms = BYTES_PER_MS

    def __init__(self, context: Context, name: str, topics: list[str]) -> None:
        super().__init__(context, name, topics, anonymous=False, rival=False)
        self._last: Pending | None = None
        self._is_answered = False

    def values(self, count: int) -> list[bytes]:
        self._count += 1
        return [f"{self.name}.{self._count}".encode() + b"." * (1_000 + int(self.random.random() * 800))]

    def _act(self) -> None:
        if self.core is not None and self.core.finished is None and not self._is_answered:
            if self._in_flight == 0:
                self._put()
            self._pause()

    def _put_done(self, pending: Pending, *attempt: object) -> None:
        super()._put_done(pending, *attempt)  # type: ignore[arg-type]
        self._is_answered = self.world.healed and pending.error is None

    @property
    def is_settled(self) -> bool:
        return self._is_answered


class UnheardClient(Process):
    """Its hellos are answered. No numbered command reaches the broker, so each must fail."""

    def __init__(self, context: Context, name: str) -> None:
        super().__init__(context, name)
        self._has_failed = False

    def rules(self) -> list[str]:
        return ["create orders"]

    def begin(self) -> None:
        self.later(20, self._submit)

    def _submit(self) -> None:
        self.submit(CreateTopic("orders"), None, self._submitted)

    def _submitted(self, pending: Pending) -> None:
        if self.is_over(pending):
            return
        self._has_failed = self.world.healed and isinstance(pending.error, errors.BrokerAway)
        if not self._has_failed:
            self.begin()

    def _send(self, frames: list[Frame]) -> None:
        request, _ = decode_request(frames)
        if any(isinstance(command, Numbered) for command in request.commands):
            self.world.tally["network: numbered command swallowed"] += 1
        else:
            super()._send(frames)

    @property
    def is_settled(self) -> bool:
        return self._has_failed
