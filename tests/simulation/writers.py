"""Processes that write as Spark does: tasks stage, the driver commits under (writer, batch), and both are retried.

At most one of the tries at a batch takes effect, and it does so as a whole.
"""

from __future__ import annotations

from oncemq import errors
from oncemq.client.batching import make_put
from oncemq.client.pending import Pending
from oncemq.engine import commands as co
from oncemq.engine.replies import CommitReply, StageReply
from tests.simulation.ledger import Attempt
from tests.simulation.process import Process, Surroundings
from tests.simulation.world import Violation


class Writer(Process):
    def __init__(self, around: Surroundings, name: str, topic: str) -> None:
        super().__init__(around, name)
        self.topic = topic
        #: The driver's own memory of its progress, which survives (a checkpoint).
        self._batch = 0
        self._tries = 0
        self._attempt: Attempt | None = None
        self._stages: list[tuple[str, int]] = []
        self._left: list[tuple[str, list[bytes]]] = []
        self._aborted: set[str] = set()
        self._staged_ms: dict[str, int] = {}
        self._values = 0
        self._idle = True
        self._is_topic_certain = False
        self._begun_ms = 0
        #: Commits to repeat later, from whatever session.
        self._commits: list[co.Commit] = []

    def begin(self) -> None:
        self._think()

    @property
    def is_settled(self) -> bool:
        return self.core is not None and self._idle

    def _think(self) -> None:
        self._idle = True
        self.later(int(self.random.random() * 4 * self.world.weather.think_ms), self._act)

    def _act(self) -> None:
        if self.world.healed:
            return
        self._idle = False
        self._is_topic_certain = self.around.subscriptions.is_topic_certain(self.topic)
        if self._commits and self.random.random() < 0.15:
            self._repeat_commit()
        else:
            self._plan()

    # A batch: its stages, then the commit.

    def _plan(self) -> None:
        self._tries += 1
        self._begun_ms = self.world.now_ms
        self._stages, self._left = [], []
        values: list[bytes] = []
        for task in range(1 + int(self.random.random() * 3)):
            stage = f"{self.name}/{self._batch}/{task}/{self._tries}"
            parts = [self._some_values() for _ in range(1 + int(self.random.random() * 2))]
            self._left += [(stage, part) for part in parts]
            self._stages.append((stage, sum(map(len, parts))))
            values += [value for part in parts for value in part]
        label = f"try {self._tries} at batch {self._batch} of {self.name}"
        self._attempt = self.around.ledger.attempt(label, self.topic, values, (self.name, self._batch))
        self._stage_next()

    def _some_values(self) -> list[bytes]:
        values = []
        for _ in range(1 + int(self.random.random() * 3)):
            self._values += 1
            values.append(f"{self.name}.{self._values}".encode() + b"." * int(self.random.random() ** 3 * 300))
        return values

    def _stage_next(self) -> None:
        if not self._left:
            self._finish_batch()
            return
        stage, values = self._left.pop(0)
        put, payload = make_put(self.topic, False, values)
        operation = co.Stage(stage, self.topic, self.name, self._batch, put.envelope)
        self._staged_ms[stage] = self.world.now_ms
        self.submit(operation, payload, self._staged)

    def _staged(self, pending: Pending) -> None:
        if self._failed(pending):
            return
        assert isinstance(pending.reply, StageReply)
        self._stage_next()

    def _failed(self, pending: Pending) -> bool:
        """Whatever it was, the driver will try the batch anew."""
        if self.is_over(pending):
            return True
        error = pending.error
        if error is None:
            return False
        self.world.note(f"{self.name} batch {self._batch}: {error.code}")
        if isinstance(error, errors.StageCommitted):
            self._batch += 1
        elif isinstance(error, errors.StageUnknown):
            self._check_expired(error)
        elif not isinstance(
            error, errors.BrokerAway | errors.NotNow | errors.TopicUnknown | errors.TopicGone | errors.LimitReached
        ):
            is_old = self.world.now_ms - self._begun_ms >= self.world.weather.limits.stage_ms
            if not isinstance(error, errors.StageMismatch) or (self._is_topic_certain and not is_old):
                raise Violation(f"{self.name} got {error.code}: {error}")
        if isinstance(error, errors.TopicUnknown | errors.TopicGone) and self._is_topic_certain:
            raise Violation(f"lost: {self.name} got {error.code}, and nobody deleted '{self.topic}'")
        self._think()
        return True

    def _check_expired(self, error: errors.StageUnknown) -> None:
        stage = error.text.split("'")[1]
        age_ms = self.world.now_ms - self._staged_ms.get(stage, 0)
        if stage not in self._aborted and age_ms < self.world.weather.limits.stage_ms:
            raise Violation(f"lost: stage {stage} is {age_ms} ms old and gone")

    def _finish_batch(self) -> None:
        chance = self.random.random()
        if chance < 0.08:
            self._abort()
        elif chance < 0.14:
            self.later(self.world.weather.limits.stage_ms + 300, self._commit)
        elif chance < 0.2:
            self._think()
        else:
            self._commit()

    def _abort(self) -> None:
        names = tuple(stage for stage, _ in self._stages)
        self._aborted.update(names)
        self.submit(co.Abort(names), None, self._aborted_now)

    def _aborted_now(self, pending: Pending) -> None:
        if not self._failed(pending):
            self.world.note(f"{self.name} aborted try {self._tries} at {self._batch}")
            self._think()

    def _commit(self) -> None:
        operation = co.Commit(self.name, self._batch, self.topic, tuple(self._stages))
        assert self._attempt is not None
        self.around.attempts[operation.writer, operation.batch, operation.stages] = self._attempt
        if len(self._commits) < 4:
            self._commits.append(operation)
        self.submit(operation, None, lambda pending: self._committed(pending, operation))

    def _committed(self, pending: Pending, operation: co.Commit) -> None:
        if self._failed(pending):
            return
        assert isinstance(pending.reply, CommitReply)
        self.world.note(f"{self.name} committed batch {operation.batch}: {pending.reply}")
        self._batch = max(self._batch, operation.batch + 1)
        if self.random.random() < 0.1:
            self._abort()
        else:
            self._think()

    def _repeat_commit(self) -> None:
        operation = self._commits.pop(0)
        committed = operation.batch < self._batch
        self.submit(operation, None, lambda pending: self._repeated(pending, operation, committed))

    def _repeated(self, pending: Pending, operation: co.Commit, committed: bool) -> None:
        reply = pending.reply
        if isinstance(reply, CommitReply) and committed and not reply.before:
            raise Violation(f"duplicated: batch {operation.batch} of {self.name} was committed twice")
        if isinstance(pending.error, errors.StageUnknown | errors.StageMismatch) and committed:
            raise Violation(f"lost: {self.name} committed batch {operation.batch} before: {pending.error}")
        if isinstance(pending.error, errors.StageMismatch):
            # Not all of its stages got their values: it was never whole.
            self._think()
        elif not self._failed(pending):
            self._batch = max(self._batch, operation.batch + 1)
            self._think()
