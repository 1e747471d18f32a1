"""The final check, when all processes have finished: reads everything, and compares it with what was observed."""

from __future__ import annotations

from collections.abc import Callable

from oncemq.client.consumer.fetch_buffer import FetchBuffer
from oncemq.client.core.commands.pending import Pending
from oncemq.protocol import commands, errors, replies
from tests.simulation.checks.subscriptions import SubscriptionModel
from tests.simulation.environment.world import Violation
from tests.simulation.processes.copier import Copier
from tests.simulation.processes.operators import Operator
from tests.simulation.processes.outbox_producer import OutboxProducer
from tests.simulation.processes.pattern_consumer import PatternConsumer
from tests.simulation.processes.process import Context, Process
from tests.simulation.processes.timed import TimedConsumer
from tests.simulation.processes.visitor import Visitor
from tests.simulation.processes.worker import Worker


class Auditor(Process):
    anonymous = True

    def __init__(self, context: Context, name: str, operator: Operator, processes: list[Process]) -> None:
        super().__init__(context, name)
        self._operator = operator
        self._processes = processes
        self._waiting = 0
        self.topics: dict[str, replies.TopicInfo] = {}
        self.subscriptions: list[replies.SubscriptionInfo] = []
        self.entries: tuple[replies.RegistryEntry, ...] = ()

    def rules(self) -> list[str]:
        return ["role admin"]

    def begin(self) -> None:
        self._look(commands.Topics(), self._see_topics)
        self._look(commands.RegistryList("sim"), self._see_registry)

    @property
    def is_settled(self) -> bool:
        return self._waiting == 0

    def _look(self, command: commands.Command, see: Callable[[Pending], None]) -> None:
        self._waiting += 1

        def seen(pending: Pending) -> None:
            if isinstance(pending.error, errors.BrokerAway):
                raise Violation(f"everything has healed, and the final check gets no answer: {pending.error}")
            self._waiting -= 1
            see(pending)

        self.ask(command, seen)

    def _see_topics(self, pending: Pending) -> None:
        reply = pending.result()
        assert isinstance(reply, replies.TopicsReply)
        for info in reply.topics:
            self.topics[info.name] = info
            self._look(commands.Subscriptions(info.name), self._see_subscriptions)
            self._read(FetchBuffer(info.name, info.first_offset), info)

    def _see_subscriptions(self, pending: Pending) -> None:
        reply = pending.result()
        assert isinstance(reply, replies.SubscriptionsReply)
        self.subscriptions += reply.subscriptions

    def _see_registry(self, pending: Pending) -> None:
        reply = pending.result()
        assert isinstance(reply, replies.RegistryListReply)
        self.entries = reply.entries

    def _read(self, buffer: FetchBuffer, info: replies.TopicInfo) -> None:
        command = commands.Read(info.name, buffer.position, 4_000, 0, info.topic_id)
        self._look(command, lambda pending: self._see_messages(pending, buffer, info))

    def _see_messages(self, pending: Pending, buffer: FetchBuffer, info: replies.TopicInfo) -> None:
        if isinstance(pending.error, errors.RangeGone) and (info.retain_ms or info.name in self.context.lossy):
            return
        reply = pending.result()
        assert isinstance(reply, replies.GetReply)
        position = buffer.position
        buffer.take(reply, pending.payloads)
        while buffer:
            for message in buffer.decode():
                if message.offset != position:
                    raise Violation(f"lost: '{info.name}' has no {position}, the next is {message.offset}")
                position += 1
                self.context.history.observe_message(message, self.name)
        if position != buffer.position:
            raise Violation(f"lost: '{info.name}' has {position}..{buffer.position - 1} not")
        if not buffer.is_caught_up:
            self._read(buffer, info)

    # Comparison.

    def check(self) -> None:
        self._check_idle()
        self._check_topics()
        self._check_together()
        self._check_delayed()
        self._check_subscriptions()
        self._check_others()
        self._check_registry()

    def _check_topics(self) -> None:
        for attempt in self.context.history.attempts:
            info = self.topics.get(attempt.topic)
            if attempt.acked is None or attempt.acked.first_offset < 0:
                continue
            must_stay = self.context.subscriptions.must_stay(attempt.topic, attempt.acked.topic_id)
            if info is None:
                if must_stay:
                    raise Violation(f"lost: topic '{attempt.topic}', with {attempt.label}")
            elif attempt.acked.topic_id > info.topic_id:
                raise Violation(f"lost: {attempt.label} is in a later topic than '{attempt.topic}' is now")
            elif attempt.acked.topic_id == info.topic_id:
                end = attempt.acked.first_offset + attempt.acked.count
                if end > info.end_offset:
                    raise Violation(f"lost: {attempt.label} ends at {end}, the topic at {info.end_offset}")
            elif must_stay:
                raise Violation(f"lost: '{attempt.topic}' is another topic than {attempt.label} went to")

    def _check_together(self) -> None:
        """Check atomicity on the topics that were never deleted and of which every message was observed."""
        logs = self.context.history.log
        known = {
            name
            for name, info in self.topics.items()
            if self.context.subscriptions.must_stay(name, info.topic_id)
            and len(logs.get(info.topic_id, ())) == info.end_offset
        }
        self.context.history.check_together(known)

    def _check_delayed(self) -> None:
        for info in self.topics.values():
            if info.delayed:
                raise Violation(f"lost: {info.delayed} messages of '{info.name}' are still delayed")
            if info.quota_bytes and info.stored_bytes > info.quota_bytes:
                raise Violation(f"'{info.name}' holds {info.stored_bytes} bytes of {info.quota_bytes}")
        for attempt in self.context.history.attempts:
            acked = attempt.acked
            if acked is None or acked.first_offset >= 0 or attempt.place is not None or attempt.ttl_ms:
                continue
            if acked.subscriptions and self.context.subscriptions.must_stay(attempt.topic, acked.topic_id):
                raise Violation(f"lost: {attempt.label} was due at {attempt.due_ms}, and is not there")

    def _check_idle(self) -> None:
        visitors = {one.subscriber for one in self._processes if isinstance(one, Visitor)}
        for info in self.subscriptions:
            if info.subscriber in visitors:
                raise Violation(f"{info.subscriber} left, and its subscription to '{info.topic}' is kept for nobody")

    def _check_subscriptions(self) -> None:
        there = {(self.topics[info.topic].topic_id, info.subscriber): info for info in self.subscriptions}
        for key, info in there.items():
            if self._check_shared(key, info):
                continue
            model = self.context.subscriptions.models.get(key)
            if model is None:
                raise Violation(f"unexpected: subscription {info}")
            if info.acked != info.end_offset:
                raise Violation(f"lost: {model.label} was acked up to {info.acked} of {info.end_offset}")
            if model.delivered_end != info.end_offset:
                raise Violation(
                    f"lost: {model.label} got only messages below {model.delivered_end} of {info.end_offset}"
                )
            self._check_delivered(key[0], model, info.end_offset)
        certain = self.context.subscriptions.certain
        for topic, subscriber in [(topic, one) for topic, all_of in certain.items() for one in sorted(all_of)]:
            if topic not in self.topics or (self.topics[topic].topic_id, subscriber) not in there:
                raise Violation(f"lost: the subscription of '{subscriber}' to '{topic}'")

    def _check_shared(self, key: tuple[int, str], info: replies.SubscriptionInfo) -> bool:
        """Check a shared or pattern subscription, which has its own model. Return False for any other subscription."""
        if info.pattern:
            for watcher in self._processes:
                if isinstance(watcher, PatternConsumer) and watcher.name == info.subscriber:
                    watcher.check(self.topics[info.topic], info)
        elif info.sharing is not None:
            self.context.leases.models[key].check(info)
            for worker in self._processes:
                if isinstance(worker, Worker) and (worker.topic, worker.subscriber) == (info.topic, info.subscriber):
                    worker.check(info)
        return bool(info.pattern) or info.sharing is not None

    def _check_others(self) -> None:
        for one in self._processes:
            if isinstance(one, Copier | TimedConsumer):
                one.check()
            elif isinstance(one, OutboxProducer):
                one.owner.check()
            elif isinstance(one, PatternConsumer):
                self._check_attached(one)

    def _check_attached(self, watcher: PatternConsumer) -> None:
        there = {info.topic for info in self.subscriptions if info.pattern and info.subscriber == watcher.name}
        for topic in self.topics:
            if topic.startswith("p.") and topic not in there:
                raise Violation(f"lost: {watcher.owner.label} is not attached to '{topic}'")

    def _check_delivered(self, topic_id: int, model: SubscriptionModel, end: int) -> None:
        log = self.context.history.log.get(topic_id, {})
        for offset in range(model.start, end):
            if offset not in log and offset not in model.skipped:
                raise Violation(f"lost: {model.label} never got {offset}")

    def _check_registry(self) -> None:
        newest: dict[str, int] = {}
        for key, version in self._operator.registered:
            newest[key] = max(version, newest.get(key, 0))
        there = {entry.key: entry for entry in self.entries}
        for key, version in newest.items():
            entry = there.get(key)
            if entry is None or entry.version < version:
                raise Violation(f"lost: version {version} of registry entry '{key}'; there is {entry}")
            known = self._operator.registered.get((key, entry.version))
            if known is not None and known != entry.value:
                raise Violation(f"inconsistent: registry entry {entry} was set to {known!r}")
