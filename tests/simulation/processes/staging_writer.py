"""Processes that write as Spark does: tasks stage, the driver commits under (writer, batch), and both are retried.

At most one try of a batch takes effect, and it does so atomically on all of its topics. A task that is retried, or
replaced by a speculative attempt, leaves the same values under another stage. They must never become visible.
"""

from __future__ import annotations

import msgspec

from oncemq.client.core.commands.pending import Pending
from oncemq.client.producer.encoding import make_put
from oncemq.protocol import commands, errors
from oncemq.protocol.limits import KEPT_COMMITS_MAX
from oncemq.protocol.replies import CommitReply, StageReply
from tests.simulation.checks.history import Attempt
from tests.simulation.environment.world import Violation
from tests.simulation.processes.process import Context, Process

#: Errors that fail a batch, which is then tried again.
_EXPECTED = (errors.BrokerAway, errors.NotNow, errors.TopicUnknown, errors.TopicGone, errors.LimitReached)


class Plan(msgspec.Struct):
    """One try of a batch."""

    label: str
    #: "" = a one-off commit.
    writer: str
    batch: int
    begun_ms: int
    is_topic_certain: bool
    #: By topic: the stages that the driver will commit, and their values.
    stages: dict[str, list[tuple[str, int]]] = msgspec.field(default_factory=dict)
    values: dict[str, list[bytes]] = msgspec.field(default_factory=dict)
    #: (stage, topic, values) that the tasks have not sent yet.
    left: list[tuple[str, str, list[bytes]]] = msgspec.field(default_factory=list)
    #: Stages of attempts that will not be committed.
    losers: list[tuple[str, str]] = msgspec.field(default_factory=list)
    attempts: tuple[Attempt, ...] = ()
    in_flight: int = 0
    #: The try failed: later replies do not matter.
    is_over: bool = False

    def names(self) -> tuple[str, ...]:
        return tuple(stage for stages in self.stages.values() for stage, _ in stages)

    def commit(self, *, as_parts: bool) -> commands.Commit:
        if len(self.stages) == 1 and not as_parts:
            [(topic, stages)] = self.stages.items()
            return commands.Commit(self.writer, self.batch, topic, tuple(stages), content=self._content())
        parts = tuple((topic, tuple(stages)) for topic, stages in self.stages.items())
        return commands.Commit(self.writer, self.batch, "", (), parts, self._content())

    def _content(self) -> bytes:
        """The same for every try of the batch, as the offsets of a micro-batch are."""
        return b"batch %d" % self.batch if self.writer else b""


class StagingWriter(Process):
    """A driver and its tasks. A rival (') commits batches of the same writer from its own session."""

    def __init__(self, context: Context, name: str, topics: list[str]) -> None:
        super().__init__(context, name)
        self.topics = topics
        self.writer = name.rstrip("'")
        #: The progress of the driver, which survives crashes (a checkpoint).
        self._batch = 0
        self._tries = 0
        self._aborted: set[str] = set()
        self._staged_ms: dict[str, int] = {}
        self._values = 0
        self._idle = True
        #: Commits to repeat later, from any session.
        self._commits: list[tuple[commands.Commit, Plan]] = []

    def rules(self) -> list[str]:
        return [f"write {topic}" for topic in self.topics]

    def begin(self) -> None:
        self._pause()

    @property
    def is_settled(self) -> bool:
        return self.core is not None and self._idle

    def _pause(self) -> None:
        self._idle = True
        self.later(int(self.random.random() * 4 * self.world.faults.think_ms), self._act)

    def _act(self) -> None:
        if self.world.healed:
            return
        self._idle = False
        if self._commits and self.random.random() < 0.15:
            self._repeat_commit()
        elif self._batch and self.random.random() < 0.1:
            self._commit_other_content()
        else:
            self._stage_next(self._plan())

    # A batch: its tasks, each with its own stage.

    def _plan(self) -> Plan:
        self._tries += 1
        one_off = self.random.random() < 0.12
        batch = 0 if one_off else self._batch
        what = "a one-off" if one_off else f"batch {batch} of {self.writer}"
        label = f"try {self._tries} of {self.name} at {what}"
        is_certain = all(map(self.context.subscriptions.is_topic_certain, self.topics))
        plan = Plan(label, "" if one_off else self.writer, batch, self.world.now_ms, is_certain)
        for task in range(1 + int(self.random.random() * 3)):
            self._plan_task(plan, f"{self.name}/{batch}/{task}/{self._tries}")
        group = None if one_off else (self.writer, batch)
        attempts = [self.context.history.attempt(label, topic, values, group) for topic, values in plan.values.items()]
        plan.attempts = self.context.history.together(attempts)
        return plan

    def _plan_task(self, plan: Plan, stage: str) -> None:
        topic = self.topics[int(self.random.random() * len(self.topics))]
        parts = [self._some_values() for _ in range(1 + int(self.random.random() * 2))]
        loser = stage + "/lost"
        chance = self.random.random()
        if chance < 0.1:
            # A retried task: the stage of the first attempt is left behind.
            plan.left.append((loser, topic, parts[0]))
            plan.losers.append((loser, topic))
        for part in parts:
            plan.left.append((stage, topic, part))
            if chance > 0.9:
                # Speculative execution: both attempts write, one is committed.
                plan.left.append((loser, topic, part))
        if chance > 0.9:
            stage, loser = (stage, loser) if self.random.random() < 0.5 else (loser, stage)
            plan.losers.append((loser, topic))
        plan.stages.setdefault(topic, []).append((stage, sum(map(len, parts))))
        plan.values.setdefault(topic, []).extend(value for part in parts for value in part)

    def _some_values(self) -> list[bytes]:
        values = []
        for _ in range(1 + int(self.random.random() * 3)):
            self._values += 1
            values.append(f"{self.name}.{self._values}".encode() + b"." * int(self.random.random() ** 3 * 300))
        return values

    def _stage_next(self, plan: Plan) -> None:
        if not plan.left:
            self._finish_batch(plan)
        elif plan.left[0][0] in self._staged_ms and self.random.random() < 0.1:
            # The task takes so long that its stage expires: the stage must not be considered complete.
            self.later(self.world.faults.limits.stage_ms + 100, lambda: self._stage_some(plan))
        else:
            self._stage_some(plan)

    def _stage_some(self, plan: Plan) -> None:
        """Stage one part, or several in flight."""
        for _ in range(1 if self.random.random() < 0.6 else 3):
            if plan.left:
                self._stage(plan, *plan.left.pop(0))

    def _stage(self, plan: Plan, stage: str, topic: str, values: list[bytes]) -> None:
        put, payload = make_put(topic, False, values)
        self._staged_ms[stage] = self.world.now_ms
        plan.in_flight += 1
        operation = commands.Stage(stage, topic, plan.writer, plan.batch, put.envelope)
        self.submit(operation, payload, lambda pending: self._staged(pending, plan))

    def _staged(self, pending: Pending, plan: Plan) -> None:
        plan.in_flight -= 1
        if plan.is_over or self._failed(pending, plan):
            return
        assert isinstance(pending.reply, StageReply)
        if not plan.in_flight:
            self._stage_next(plan)

    def _failed(self, pending: Pending, plan: Plan) -> bool:
        """Handle an error: the driver will try the batch again. Return False if there was no error."""
        if self.is_over(pending):
            return True
        error = pending.error
        if error is None:
            return False
        plan.is_over = True
        self.world.note(f"{plan.label}: {error.code}")
        if isinstance(error, errors.StageCommitted) and plan.writer:
            self._batch = max(self._batch, plan.batch + 1)
        elif isinstance(error, errors.StageUnknown):
            self._check_expired(error)
        elif not self._is_expected(error, plan):
            raise Violation(f"{plan.label} got {error.code}: {error}")
        if isinstance(error, errors.TopicUnknown | errors.TopicGone) and plan.is_topic_certain:
            raise Violation(f"lost: {plan.label} got {error.code}, but none of {self.topics} was deleted")
        self._pause()
        return True

    def _is_expected(self, error: errors.OnceMQError, plan: Plan) -> bool:
        if isinstance(error, errors.StageMismatch):
            is_old = self.world.now_ms - plan.begun_ms >= self.world.faults.limits.stage_ms
            return is_old or not plan.is_topic_certain
        if isinstance(error, errors.TooLarge):
            return "bounded" in self.topics
        return isinstance(error, _EXPECTED)

    def _check_expired(self, error: errors.StageUnknown) -> None:
        stage = error.text.split("'")[1]
        age_ms = self.world.now_ms - self._staged_ms.get(stage, 0)
        if stage not in self._aborted and age_ms < self.world.faults.limits.stage_ms:
            raise Violation(f"lost: stage {stage} is {age_ms} ms old and gone")

    # The driver.

    def _finish_batch(self, plan: Plan) -> None:
        chance = self.random.random()
        if chance < 0.08:
            self._abort(plan)
        elif chance < 0.14:
            self.later(self.world.faults.limits.stage_ms + 300, lambda: self._commit(plan))
        elif chance < 0.2:
            # A task has failed, and it is not known what was staged.
            self._pause()
        else:
            self._commit(plan)

    def _abort(self, plan: Plan) -> None:
        self._idle = False
        names = plan.names()
        self._aborted.update(names)
        self.submit(commands.Abort(names), None, lambda pending: self._aborted_now(pending, plan))

    def _aborted_now(self, pending: Pending, plan: Plan) -> None:
        if not self._failed(pending, plan):
            self.world.note(f"{plan.label} is aborted")
            self._pause()

    def _commit(self, plan: Plan) -> None:
        operation = plan.commit(as_parts=self.random.random() < 0.4)
        self.context.commits[operation] = plan.attempts
        if plan.writer and len(self._commits) < 4:
            self._commits.append((operation, plan))
        self.submit(operation, None, lambda pending: self._committed(pending, plan))

    def _committed(self, pending: Pending, plan: Plan) -> None:
        if pending.error is not None and not self._is_fatal(pending.error) and self.random.random() < 0.4:
            # The commit may have succeeded: then there is nothing to abort.
            self.world.note(f"{plan.label}: {pending.error.code}")
            self._abort(plan)
            return
        if self._failed(pending, plan):
            return
        assert isinstance(pending.reply, CommitReply)
        self.world.note(f"{plan.label} is committed: {pending.reply}")
        if plan.writer:
            self._batch = max(self._batch, plan.batch + 1)
        if plan.losers and plan.writer and self.random.random() < 0.5:
            self._stage_late(plan)
        elif self.random.random() < 0.1:
            self._abort(plan)
        else:
            self._pause()

    @staticmethod
    def _is_fatal(error: errors.OnceMQError) -> bool:
        """Return whether an error means that the commit failed, so that the outcome is known."""
        return not isinstance(error, errors.BrokerAway | errors.NotNow)

    def _stage_late(self, plan: Plan) -> None:
        """An obsolete attempt continues after the commit."""
        stage, topic = plan.losers[0]
        put, payload = make_put(topic, False, plan.values[topic][:1])
        operation = commands.Stage(stage, topic, plan.writer, plan.batch, put.envelope)
        self.submit(operation, payload, lambda pending: self._staged_late(pending, plan))

    def _staged_late(self, pending: Pending, plan: Plan) -> None:
        if pending.reply is not None:
            raise Violation(f"unexpected: {plan.label} is committed, and something more was staged for it")
        if isinstance(pending.error, errors.StageCommitted):
            self.world.tally["client: staged too late"] += 1
        self._failed(pending, plan)

    def _repeat_commit(self) -> None:
        operation, plan = self._commits.pop(0)
        committed = operation.batch < self._batch
        self.submit(operation, None, lambda pending: self._repeated(pending, plan, committed))

    def _repeated(self, pending: Pending, plan: Plan, committed: bool) -> None:
        reply = pending.reply
        if isinstance(reply, CommitReply) and committed and not reply.before:
            raise Violation(f"duplicated: batch {plan.batch} of {self.writer} was committed twice")
        if isinstance(pending.error, errors.BatchChanged) and plan.batch < self._batch - KEPT_COMMITS_MAX:
            self._pause()
            return
        if isinstance(pending.error, errors.StageUnknown | errors.StageMismatch) and committed:
            raise Violation(f"lost: batch {plan.batch} of {self.writer} was committed before: {pending.error}")
        if isinstance(pending.error, errors.StageMismatch):
            # Not all of its stages were complete.
            self._pause()
        elif not self._failed(pending, plan):
            self._batch = max(self._batch, plan.batch + 1)
            self._pause()

    def _commit_other_content(self) -> None:
        """A driver whose checkpoint has lost its last entries commits other messages under a known number."""
        batch = max(0, self._batch - 1 - int(self.random.random() * 3))
        operation = commands.Commit(self.writer, batch, "", (), (), b"other than batch %d" % batch)
        self.submit(operation, None, lambda pending: self._refused_other_content(pending, batch))

    def _refused_other_content(self, pending: Pending, batch: int) -> None:
        if pending.reply is not None:
            raise Violation(f"lost: other messages as batch {batch} of {self.writer} are reported as committed")
        if isinstance(pending.error, errors.BatchChanged):
            self.world.tally["client: other content refused"] += 1
        if not self.is_over(pending):
            self._pause()
