"""What every worker has: its life, its diary, its numbers, a patient client through the network of this run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import msgspec

from oncemq.tools.chaos.counters import Counters
from oncemq.tools.chaos.event_log import Diary
from oncemq.tools.chaos.plan import Actor

#: Retries come soon, and are never given up within a run.
TIMEOUT_S = 0.25
TRIES = 400
#: What workers count.
ATTEMPTED, ACKNOWLEDGED, DELIVERED = "attempted", "acknowledged", "delivered"
ENDS = "ends.json"


class Scene(msgspec.Struct, frozen=True):
    """What all workers of a run share."""

    folder: Path
    seed: int
    #: Of the proxy.
    url: str
    broker_url: str
    counters: Counters
    #: Where clients record what they do; "" for nowhere.
    record: str


class Worker:
    """One life of an actor."""

    def __init__(self, scene: Scene, actor: Actor, life: int) -> None:
        self.scene = scene
        self.actor = actor
        self.name = actor.name
        self.life = life
        self.random = Random(f"{scene.seed}/{actor.name}/{life}")
        self.diary = Diary(scene.folder / f"{actor.name}.diary")
        self.is_ending = False
        signal.signal(signal.SIGTERM, self._end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self.is_ending = True

    def run(self, body: Callable[[Worker], None]) -> int:
        """The exit code. What goes wrong is written down: it must not."""
        try:
            body(self)
        except Exception as error:
            self.diary.write(("error", f"{type(error).__name__}: {' '.join(str(error).split())}"))
            raise
        return 0

    def count(self, what: str, number: int) -> None:
        self.scene.counters.add(self.name, what, number)

    def connecting(self) -> dict[str, Any]:
        """How to connect."""
        return {"timeout_s": TIMEOUT_S, "tries": TRIES, "linger_ms": 2.0, "record": self.scene.record}

    def ends(self) -> dict[str, int] | None:
        """The offsets at which the topics end, once that is known."""
        if not self.is_ending or not self.is_last_life():
            return None
        return msgspec.json.decode((self.scene.folder / ENDS).read_bytes(), type=dict[str, int])

    def is_last_life(self) -> bool:
        """All that is to be put has been put."""
        return (self.scene.folder / ENDS).exists()
