"""Random commands of every kind, which often fit the state."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from oncemq.engine.decide.decision import Decision
from oncemq.engine.decide.ticks import TICK_BYTES_MAX
from oncemq.engine.event_bytes import need_bytes, owned_bytes
from oncemq.engine.events import Event
from oncemq.engine.record_locator import RecordLocator
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.journal.contract import RecordHead, record_bytes
from oncemq.protocol import commands, replies
from oncemq.protocol.limits import Limits
from tests.engine.invariants import event_bytes, without_verdicts
from tests.engine.schemas import SCHEMAS
from tests.engine.world import EXTENT_BYTES, USERS, World

TOPICS = ["a", "a.b", "a.c", "b"]
PATTERNS = ["a.*", "#", "a.#"]
SUBSCRIBERS = ["x", "y", "z"]
IDLE_MS = [0, 0, 0, 0, 300]
LIMITS = Limits(stage_ms=500, key_ms=700, delayed_max=6, subscriptions_max=20, leased_max=6)


class RandomWorld(World):
    """Each step is one random command. What must hold after any command is checked immediately."""

    def __init__(self, seed: int) -> None:
        super().__init__(LIMITS)
        self.rng = random.Random(seed)
        self.checks = True
        self._takes = 0
        self._keys = 0

    def step(self) -> None:
        kinds: list[tuple[int, Callable[[], None]]] = [
            (30, self._operate),
            (6, self._get),
            (4, self._ack),
            (5, self._get_any),
            (8, self._take),
            (1, self._extend_or_leave),
            (2, self._read_or_find),
            (2, self._move),
        ]
        self.caller = self.rng.choice(USERS)
        [kind] = self.rng.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
        kind()
        if self.rng.random() < 0.15:
            self.tick(self.rng.choice([0, 1, 30, 100, 400]))

    # Checks.

    def send(self, command: commands.Command) -> Decision:
        if not self.checks:
            return super().send(command)
        before = without_verdicts(self)
        decision = super().send(command)
        if decision.event is not None:
            payload_bytes = sum(record_bytes(each.size) for each in commands.payloads_of(command))
            assert event_bytes(decision.event) + payload_bytes <= need_bytes(command), "a group could overflow"
        if decision.owned is not None:
            assert event_bytes(decision.owned) <= owned_bytes(command), "a group could overflow"
        refused = isinstance(decision.reply, replies.Refusal | replies.NotNow)
        if decision.event is None or (refused and isinstance(command, commands.Numbered | commands.Keyed)):
            assert without_verdicts(self) == before, "a refusal changed something"
        if isinstance(decision.reply, replies.NotNow):
            assert decision.event is None
        return decision

    def tick(self, forward_ms: int = 0) -> list[Event]:
        events = super().tick(forward_ms)
        assert sum(map(event_bytes, events)) <= TICK_BYTES_MAX
        return events

    # Random arguments.

    def _topic(self) -> Topic | None:
        topics = list(self.engine.state.topics.values())
        return self.rng.choice(topics) if topics else None

    def _subscription(self, *, shared: bool) -> tuple[Topic, str, Subscription] | None:
        found = [
            (topic, key, each)
            for topic in self.engine.state.topics.values()
            for key, each in topic.subscriptions.items()
            if (each.shared is not None) == shared
        ]
        return self.rng.choice(found) if found else None

    def _epoch(self, subscription: Subscription) -> int:
        owner = subscription.pattern or subscription
        return owner.epoch - (self.rng.random() < 0.05)

    def _offset(self, topic: Topic, beyond: float = 0.05) -> int:
        return self.rng.randint(0, topic.next_offset) + (self.rng.random() < beyond)

    # Operations.

    def _operate(self) -> None:
        makers: list[tuple[int, Callable[[], commands.Operation]]] = [
            (12, self._put),
            (6, self._subscribe),
            (2, self._unsubscribe),
            (3, self._open),
            (1, lambda: commands.DeleteTopic(self.rng.choice(TOPICS))),
            (3, self._create),
            (4, self._seek),
            (6, self._settle),
            (6, self._transact),
            (3, self._stage),
            (2, self._commit),
            (1, lambda: commands.Abort((f"s{self.rng.randint(0, 3)}",))),
            (1, self._put_schema),
            (1, self._close),
            (1, commands.Void),
        ]
        [make] = self.rng.choices([make for _, make in makers], [weight for weight, _ in makers])
        operation = make()
        if self.rng.random() < 0.1:
            self._keys += 1
            self.send(commands.Keyed("web", f"key{self._keys}", operation))
            return
        session = self.rng.choice(SUBSCRIBERS)
        reply = self.do(operation, session)
        if isinstance(reply, replies.NotNow):
            self.again(commands.Void(), session)

    def _envelope(self) -> commands.Envelope:
        rng = self.rng
        count = rng.randint(1, 3)
        ttl_ms = rng.choice([0, 0, 0, 50, 300])
        due_ms = self.now_ms + rng.choice([-1, 40, 40, 200]) if rng.random() < 0.3 else 0
        hashes = b"".join(rng.randint(0, 2).to_bytes(8, "little") for _ in range(count))
        hashes = hashes if rng.random() < 0.6 else b""
        version = rng.choice([0, 1, 1, 2])
        return commands.Envelope(count, rng.randint(1, 120), 0, ttl_ms, due_ms, hashes, version)

    def _put(self) -> commands.Put:
        """Put to a topic, mostly as its schema wants it."""
        topic, envelope = self.rng.choice(TOPICS), self._envelope()
        known = self.engine.state.topics.get(topic)
        if self.rng.random() < 0.9:
            version = 1 if known is not None and known.schema is not None else 0
            envelope = msgspec.structs.replace(envelope, schema_version=version)
        return commands.Put(topic, envelope, self.rng.random() < 0.4)

    def _put_schema(self) -> commands.PutSchema:
        rng = self.rng
        schema = rng.choice([None, *SCHEMAS])
        rule, check = rng.choice(["", "none", "full"]), rng.choice(["", "", "none", "broker"])
        return commands.PutSchema(rng.choice(TOPICS), schema, rule, check)

    def _subscribe(self) -> commands.Subscribe:
        rng = self.rng
        start = rng.choice([commands.START_NEW, commands.START_EARLIEST, commands.START_EARLIEST, 0, 3])
        if rng.random() < 0.3:
            start = min(start, commands.START_NEW)
            return commands.Subscribe(rng.choice(PATTERNS), rng.choice(SUBSCRIBERS), start, None, rng.choice(IDLE_MS))
        sharing = commands.Sharing(lease_ms=100, key_order=rng.random() < 0.4) if rng.random() < 0.4 else None
        idle_ms = rng.choice(IDLE_MS)
        return commands.Subscribe(rng.choice(TOPICS), rng.choice(SUBSCRIBERS), start, sharing, idle_ms)

    def _unsubscribe(self) -> commands.Unsubscribe:
        return commands.Unsubscribe(self.rng.choice(TOPICS + PATTERNS), self.rng.choice(SUBSCRIBERS))

    def _open(self) -> commands.Open:
        hold_ms = self.rng.choice([0, 0, 50])
        return commands.Open(self.rng.choice(TOPICS + PATTERNS), self.rng.choice(SUBSCRIBERS), hold_ms)

    def _close(self) -> commands.Operation:
        found = self._subscription(shared=False)
        return commands.Close(found[0].id, found[1], self._epoch(found[2])) if found is not None else commands.Void()

    def _create(self) -> commands.CreateTopic:
        rng = self.rng
        quota_bytes, overflow = rng.choice([0, 0, 300]), rng.choice([commands.REFUSE, commands.DROP, commands.EXPIRE])
        retain_ms, retain_bytes = rng.choice([0, 0, 150]), rng.choice([0, 0, 200])
        if quota_bytes and overflow != commands.DROP and rng.random() < 0.9:
            retain_ms = retain_bytes = 0
        return commands.CreateTopic(
            rng.choice(TOPICS), retain_ms, retain_bytes, quota_bytes, overflow, rng.random() < 0.6
        )

    def _seek(self) -> commands.Seek:
        rng = self.rng
        time_ms = rng.choice([0, 0, max(1, self.now_ms - rng.randint(-50, 300))])
        to = rng.choice([commands.START_NEW, commands.START_EARLIEST, rng.randint(0, 10)])
        return commands.Seek(rng.choice(TOPICS + PATTERNS), rng.choice(SUBSCRIBERS), to, time_ms)

    def _settle(self) -> commands.Operation:
        found = self._subscription(shared=True)
        if found is None:
            return commands.Void()
        topic, key, subscription = found
        shared = subscription.shared
        assert shared is not None
        done, returned = [], []
        for token, lease in shared.leases.items():
            for first, end, _ in lease.spans:
                upto = self.rng.randint(first + 1, end)
                if self.rng.random() < 0.5:
                    done.append((token, first, upto - first))
                elif self.rng.random() < 0.5:
                    returned.append((token, first, upto - first, self.rng.choice([0, 0, 60])))
        if self.rng.random() < 0.1:
            done.append((1, 0, 1))
        return commands.Settle(topic.id, key, self._epoch(subscription), tuple(done), tuple(returned))

    def _transact(self) -> commands.Transact:
        rng = self.rng
        acks, settles = [], []
        if (found := self._subscription(shared=False)) is not None and rng.random() < 0.7:
            topic, key, subscription = found
            acks.append(commands.AckUpto(topic.id, key, self._epoch(subscription), self._offset(topic)))
        if rng.random() < 0.5 and isinstance(settle := self._settle(), commands.Settle):
            settles.append(settle)
        puts = tuple(self._put() for _ in range(rng.randint(0, 3)))
        return commands.Transact(tuple(acks), tuple(settles), puts)

    def _stage(self) -> commands.Stage:
        rng = self.rng
        envelope = commands.Envelope(1, rng.randint(1, 50), 0, rng.choice([0, 100]))
        return commands.Stage(f"s{rng.randint(0, 3)}", rng.choice(TOPICS), "w", rng.randint(0, 9), envelope)

    def _commit(self) -> commands.Commit:
        stages = list(self.engine.state.stages.values())
        topic = self._topic()
        if not stages or topic is None:
            return commands.Commit("w", 0, "a", ())
        if self.rng.random() < 0.4:
            return self._commit_all()
        stage = self.rng.choice(stages)
        owner = self.engine.state.topics_by_id.get(stage.topic_id, topic)
        batch = self._last_batch() + self.rng.randint(0, 1)
        content = self.rng.choice([b"", b"a", b"b"])
        return commands.Commit("w", batch, owner.name, ((stage.name, stage.count),), content=content)

    def _last_batch(self) -> int:
        entry = self.engine.state.writers.get("w")
        return entry.batch if entry is not None else 0

    def _commit_all(self) -> commands.Commit:
        """Commit what is staged on all topics, sometimes as a one-off commit."""
        state = self.engine.state
        found: dict[str, list[tuple[str, int]]] = {}
        for stage in state.stages.values():
            if (owner := state.topics_by_id.get(stage.topic_id)) is not None:
                found.setdefault(owner.name, []).append((stage.name, stage.count))
        parts = tuple((name, tuple(stages)) for name, stages in found.items())
        writer, batch = self.rng.choice([("", 0), ("w", self._last_batch() + 1)])
        return commands.Commit(writer, batch, "", (), parts, b"c" if writer else b"")

    # Other commands.

    def _get(self) -> None:
        if (found := self._subscription(shared=self.rng.random() < 0.05)) is not None:
            topic, key, subscription = found
            ack = self._offset(topic, 0.02) if self.rng.random() < 0.4 else -1
            bytes_max = self.rng.choice([0, 150, 10_000])
            position = self._offset(topic)
            self.send(commands.Get(topic.id, key, self._epoch(subscription), position, bytes_max, 0, ack))

    def _ack(self) -> None:
        if (found := self._subscription(shared=False)) is not None:
            topic, key, subscription = found
            self.send(commands.Ack(topic.id, key, self._epoch(subscription), self._offset(topic)))

    def _get_any(self) -> None:
        patterns = list(self.engine.state.patterns.values())
        if patterns:
            pattern = self.rng.choice(patterns)
            topics = [self.engine.state.topics_by_id[key] for key in pattern.topics]
            positions = tuple((each.id, self._offset(each)) for each in topics if self.rng.random() < 0.3)
            acks = tuple((each.id, self._offset(each, 0.02)) for each in topics if self.rng.random() < 0.3)
            command = commands.GetAny(pattern.pattern, pattern.subscriber, pattern.epoch, positions, 300, 0, acks)
            self.send(command)

    def _take(self) -> None:
        if (found := self._subscription(shared=True)) is not None:
            topic, key, subscription = found
            self._takes += self.rng.random() < 0.8
            member = self.rng.choice(["m1", "m2"])
            self.send(commands.Take(topic.id, key, self._epoch(subscription), member, self._takes + 1, 3, 500))

    def _extend_or_leave(self) -> None:
        if (found := self._subscription(shared=True)) is not None:
            topic, key, subscription = found
            assert subscription.shared is not None
            tokens = (*subscription.shared.leases, 1)
            self.send(commands.Extend(topic.id, key, subscription.epoch, tokens))
            if self.rng.random() < 0.3:
                self.send(commands.Leave(topic.id, key, subscription.epoch, self.rng.choice(["m1", "m2"])))

    def _read_or_find(self) -> None:
        topic = self.rng.choice(TOPICS)
        self.send(commands.Read(topic, self.rng.choice([commands.START_EARLIEST, commands.START_NEW, 0, 5]), 300))
        self.send(commands.Find(topic, self.now_ms - 100))
        self.send(commands.Writer(self.rng.choice(["w", "nobody"])))
        self.send(commands.Schemas(topic, self.rng.randrange(3), 2))
        self.send(commands.Measure(topic, self.rng.randrange(5), self.rng.randrange(20), self.rng.choice([0, 100])))

    def _move(self) -> None:
        """Move a needed record, as copy-forward does."""
        state = self.engine.state
        heads = [
            RecordHead(position, topic.id, first, 1, 0, size)
            for topic in state.topics.values()
            for (position, first), (_, size) in zip(topic.index.first_offsets(), topic.index.entries(), strict=True)
        ]
        heads += [
            RecordHead(each.position, topic.id, -1, each.count, 0, each.size)
            for topic in state.topics.values()
            for each in topic.delayed.values()
        ]
        heads += [
            RecordHead(each.position, stage.topic_id, -1, each.count, 0, each.size)
            for stage in state.stages.values()
            for each in stage.batches
        ]
        if heads:
            head = self.rng.choice(heads)
            if self.rng.random() < 0.3:
                head = RecordHead(head.position, head.topic_id, -1, head.count, 0, head.size)
            offset = RecordLocator(state).offset_of(head)
            assert offset is not None
            self.position += EXTENT_BYTES // 4
            moved = self.engine.move(self.now_ms, head, offset, self.position)
            self.position += record_bytes(head.size)
            self.log.append((self.now_ms, moved))
