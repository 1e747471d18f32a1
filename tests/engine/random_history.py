"""A random history of an engine with every kind of event. It depends only on the seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from oncemq.engine.record_locator import RecordLocator
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.journal.contract import RecordHead
from oncemq.protocol import replies
from oncemq.protocol.batch import key_hashes
from oncemq.protocol.commands import (
    DROP,
    EXPIRE,
    REFUSE,
    START_EARLIEST,
    START_NEW,
    Abort,
    Ack,
    AckUpto,
    Bye,
    Close,
    Commit,
    CreateTopic,
    DeleteTopic,
    Envelope,
    Extend,
    GetAny,
    Keyed,
    Leave,
    Open,
    Operation,
    Put,
    PutSchema,
    RegistrySet,
    RemoveKeys,
    RemoveSession,
    Seek,
    Settle,
    Sharing,
    Stage,
    Subscribe,
    Take,
    Transact,
    Unsubscribe,
    Void,
)
from oncemq.protocol.limits import Limits
from tests.engine.schemas import SCHEMAS, checked
from tests.engine.world import EXTENT_BYTES, USERS, World

LIMITS = Limits(stage_ms=500, key_ms=700, session_idle_ms=900)
TOPICS = ["a", "b", "c.d"]
PATTERNS = ["#", "c.*"]
PEOPLE = ["alice", "bob", "carol"]
MEMBERS = ["m1", "m2"]
KEYS: list[bytes | None] = [b"k1", b"k2", None]
SHARINGS = [None, Sharing(lease_ms=200), Sharing(300, 2, "dead", True)]
SETTINGS = [(0, 0, 0, REFUSE), (0, 300, 0, REFUSE), (200, 0, 600, DROP), (0, 0, 500, EXPIRE)]


class History:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(LIMITS)
        self.moved = 0

    def run(self, commands: int) -> World:
        for _ in range(commands):
            self.step()
        return self.world

    def step(self) -> None:
        rng = self.rng
        choice = rng.random()
        self.world.caller = rng.choice(USERS)
        if choice < 0.6:
            self.operate(self.operation())
        elif choice < 0.8:
            self.consume()
        elif choice < 0.95:
            self.world.tick(rng.choice([0, 10, 60, 250]))
        else:
            rng.choice([self.move, self.recover, self.come_and_go])()

    # Operations.

    def operate(self, operation: Operation) -> None:
        rng = self.rng
        if rng.random() < 0.2:
            self.world.send(Keyed("web", f"key{rng.randint(0, 9)}", operation))
            return
        session = rng.choice(PEOPLE)
        if session not in self.world.engine.state.sessions:
            self.world.numbers.pop(session, None)
            self.world.hello(session, nonce=rng.randint(1, 1 << 60))
        self.world.do(operation, session)

    def operation(self) -> Operation:
        rng = self.rng
        topic, subscriber = rng.choice(TOPICS), rng.choice(PEOPLE)
        operations: list[Operation] = [
            self.put(),
            self.put(),
            self.put(),
            Void(),
            self.create(topic),
            Subscribe(topic, subscriber, rng.choice([START_NEW, START_EARLIEST]), rng.choice(SHARINGS)),
            Subscribe(rng.choice(PATTERNS), subscriber, rng.choice([START_NEW, START_EARLIEST])),
            Subscribe(rng.choice([topic, *PATTERNS]), rng.choice(PEOPLE), START_NEW, None, 300),
            Open(rng.choice([*TOPICS, *PATTERNS]), subscriber, rng.choice([0, 0, 50])),
            Seek(rng.choice([*TOPICS, *PATTERNS]), subscriber, rng.choice([-1, -2, 3]), rng.choice([0, 0, 2_000])),
            self.stage(topic),
            self.commit(topic),
            RegistrySet(topic, subscriber, rng.choice([None, b"x"])),
            self.transaction(),
        ]
        endings: list[Operation] = [
            DeleteTopic(topic),
            Unsubscribe(rng.choice([topic, *PATTERNS]), subscriber),
            Abort((f"s{rng.randint(0, 2)}",)),
            RemoveSession(rng.choice(["visitor", subscriber])),
        ]
        operation = rng.choice(endings if rng.random() < 0.12 else operations)
        # A topic whose messages are never put by other operations of this history.
        return self.put_schema() if isinstance(operation, Void) and rng.random() < 0.3 else operation

    def put_schema(self) -> PutSchema:
        return PutSchema("dead", self.rng.choice([None, *SCHEMAS]), "none", self.rng.choice(["", "none"]))

    def put(self) -> Put:
        return Put(self.rng.choice([*TOPICS, "dead"]), self.envelope(), self.rng.random() < 0.4)

    def envelope(self) -> Envelope:
        rng = self.rng
        count = rng.randint(1, 3)
        hashes = key_hashes([rng.choice(KEYS) for _ in range(count)]) if rng.random() < 0.7 else b""
        due_ms = self.world.now_ms + rng.choice([30, 200]) if rng.random() < 0.2 else 0
        return Envelope(count, rng.randint(1, 200), 0, rng.choice([0, 0, 100]), due_ms, hashes)

    def create(self, topic: str) -> CreateTopic:
        retain_ms, retain_bytes, quota_bytes, overflow = self.rng.choice(SETTINGS)
        return CreateTopic(topic, retain_ms, retain_bytes, quota_bytes, overflow, self.rng.random() < 0.5)

    def stage(self, topic: str) -> Stage:
        envelope = Envelope(1, 10, 0, self.rng.choice([0, 50]), 0, key_hashes([self.rng.choice(KEYS)]))
        return Stage(f"s{self.rng.randint(0, 2)}", topic, "w", self.rng.randint(0, 30), envelope)

    def commit(self, topic: str) -> Commit:
        rng = self.rng
        if rng.random() < 0.5:
            batch = rng.randint(0, 30)
            content = b"odd" if batch % 2 else b""
            return Commit("w", batch, topic, ((f"s{rng.randint(0, 2)}", 1),), content=content)
        found: dict[str, list[tuple[str, int]]] = {}
        for stage in self.world.engine.state.stages.values():
            owner = self.world.engine.state.topics_by_id.get(stage.topic_id)
            if owner is not None:
                found.setdefault(owner.name, []).append((stage.name, stage.count))
        writer, batch = rng.choice([("", 0), ("w", rng.randint(0, 30))])
        return Commit(writer, batch, "", (), tuple((name, tuple(stages)) for name, stages in found.items()))

    def transaction(self) -> Transact:
        found = self.subscription()
        puts = tuple(self.put() for _ in range(self.rng.randint(0, 2)))
        if found is None:
            return Transact(puts=puts)
        topic, subscription = found
        if subscription.shared is not None:
            return Transact(settles=(self.settle(topic, subscription),), puts=puts)
        owner = subscription.pattern or subscription
        upto = self.rng.randint(0, topic.next_offset)
        return Transact((AckUpto(topic.id, subscription.subscriber, owner.epoch, upto),), (), puts)

    # Consumers.

    def subscription(self) -> tuple[Topic, Subscription] | None:
        topics = list(self.world.engine.state.topics.values())
        found = [(topic, each) for topic in topics for each in topic.subscriptions.values()]
        return self.rng.choice(found) if found else None

    def consume(self) -> None:
        found = self.subscription()
        if found is None:
            return
        topic, subscription = found
        rng, world = self.rng, self.world
        if subscription.shared is not None:
            self.work(topic, subscription)
        elif subscription.pattern is not None and rng.random() < 0.7:
            pattern = subscription.pattern
            acks = ((topic.id, rng.randint(0, topic.next_offset)),)
            world.send(GetAny(pattern.pattern, pattern.subscriber, pattern.epoch, (), 1_000, 0, acks))
        else:
            owner = subscription.pattern or subscription
            upto = rng.randint(0, topic.next_offset)
            world.send(Ack(topic.id, subscription.subscriber, owner.epoch, upto))
            if rng.random() < 0.2:
                self.operate(Close(topic.id, subscription.subscriber, owner.epoch))

    def work(self, topic: Topic, subscription: Subscription) -> None:
        rng, shared = self.rng, subscription.shared
        assert shared is not None
        member, place = rng.choice(MEMBERS), (topic.id, subscription.subscriber, subscription.epoch)
        number = shared.members[member].last_number + 1 if member in shared.members else 1
        actions: list[Callable[[], object]] = [
            lambda: self.world.send(Take(*place, member, number, rng.randint(1, 4), 1_000)),
            lambda: self.world.send(Take(*place, member, number, rng.randint(1, 4), 1_000)),
            lambda: self.operate(self.settle(topic, subscription)),
            lambda: self.operate(self.settle(topic, subscription)),
            lambda: self.world.send(Extend(*place, tuple(shared.leases)[:2])),
            lambda: self.world.send(Leave(*place, member)) if rng.random() < 0.3 else None,
        ]
        rng.choice(actions)()

    def settle(self, topic: Topic, subscription: Subscription) -> Settle:
        """Settle ranges that a lease mostly contains."""
        rng, shared = self.rng, subscription.shared
        assert shared is not None
        ranges = [(token, first, end - first) for token, each in shared.leases.items() for first, end, _ in each.spans]
        if not ranges or rng.random() < 0.1:
            ranges = [(rng.randint(1, 50), rng.randint(0, topic.next_offset), 1)]
        token, first, count = rng.choice(ranges)
        place = (topic.id, subscription.subscriber, subscription.epoch)
        if rng.random() < 0.6:
            return Settle(*place, ((token, first, rng.randint(1, count)),))
        return Settle(*place, (), ((token, first, count, rng.choice([0, 40])),))

    # Actions of the broker.

    def move(self) -> None:
        """Move a record, as copy-forward does."""
        state = self.world.engine.state
        heads = [
            RecordHead(entry.position, topic.id, entry.first_offset, entry.count, 0, entry.size)
            for topic in state.topics.values()
            for entry in topic.index.slices(topic.index.first, 1 << 30, 5)
        ]
        heads += [
            RecordHead(batch.position, stage.topic_id, -1, batch.count, 0, batch.size)
            for stage in state.stages.values()
            for batch in stage.batches
        ]
        heads += [
            RecordHead(batch.position, topic.id, -1, batch.count, 0, batch.size)
            for topic in state.topics.values()
            for batch in topic.delayed.values()
        ]
        if heads:
            head = self.rng.choice(heads)
            offset = RecordLocator(state).offset_of(head)
            assert offset is not None
            self.moved += 1
            moved = self.world.engine.move(self.world.now_ms, head, offset, (100 + self.moved) * EXTENT_BYTES)
            self.world.log.append((self.world.now_ms, moved))

    def recover(self) -> None:
        self.world.engine.state.is_recovered = True
        self.world.tick()

    def come_and_go(self) -> None:
        reply = self.world.hello("visitor", nonce=self.rng.randint(1, 1 << 60), anonymous=True)
        if isinstance(reply, replies.HelloReply) and self.rng.random() < 0.5:
            self.world.send(Bye("visitor", reply.epoch))


def random_history(seed: int, commands: int) -> World:
    return History(seed).run(commands)


def fixed_history(world: World) -> None:
    """Leave every kind of state behind."""
    world.do(CreateTopic("still", 0, 0, 300, EXPIRE), "painter")
    world.do(Subscribe("still", "slow"), "painter")
    world.do(Subscribe("*", "walker"), "painter")
    world.do(Subscribe("still", "guest", START_NEW, None, 10**6), "painter")
    world.do(Subscribe("*", "guest", START_NEW, None, 10**6), "painter")
    world.do(Put("still", Envelope(1, 10, 0)), "painter")
    world.do(Subscribe("still", "eve"), "painter")
    world.do(Subscribe("still", "cooks", START_NEW, SHARINGS[2]), "painter")
    opened = world.open("still", "eve")
    hashes = key_hashes([b"k1", b"k1", b"k2", None])
    world.do(Put("still", Envelope(4, 100, 0, 0, 0, hashes)), "painter")
    world.do(Put("still", Envelope(4, 120, 0, 5_000, 0, hashes)), "painter")
    world.send(Ack(opened.topic_id, "eve", opened.epoch, 9))
    shared = world.open("still", "cooks")
    place = (shared.topic_id, "cooks", shared.epoch)
    taken = world.send(Take(*place, "m1", 1, 3, 1_000)).reply
    assert isinstance(taken, replies.TakeReply)
    world.send(Extend(*place, (taken.token,)))
    world.do(Settle(*place, ((taken.token, 4, 1),), ((taken.token, 3, 1, 40),)), "painter")
    world.send(Take(*place, "m2", 1, 1, 1_000))
    world.send(Leave(*place, "m2"))
    world.do(Put("still", Envelope(1, 100, 0)), "painter")
    while "slow" in world.engine.state.topics["still"].subscriptions:
        world.tick()
    world.do(Seek("still", "eve", START_EARLIEST), "painter")
    world.do(Put("still", Envelope(1, 10, 0, 0, world.now_ms + 9_000)), "painter")
    world.do(Open("*", "walker"), "painter")
    world.do(Stage("first", "still", "painter", 1, Envelope(1, 10, 0)), "painter")
    world.do(Commit("painter", 1, "still", (("first", 1),), content=b"a vase"), "painter")
    world.do(CreateTopic("quiet", 10**9), "painter")
    world.do(Stage("both", "still", "", 0, Envelope(1, 10, 0)), "painter")
    world.do(Stage("and", "quiet", "", 0, Envelope(2, 10, 0)), "painter")
    world.do(Commit("", 0, "", (), (("still", (("both", 1),)), ("quiet", (("and", 2),)))), "poet")
    world.do(Stage("second", "still", "painter", 2, Envelope(1, 10, 0)), "painter")
    world.do(Stage("third", "still", "painter", 2, Envelope(1, 10, 0)), "painter")
    world.do(Abort(("third",)), "painter")
    world.do(CreateTopic("typed"), "painter")
    world.do(PutSchema("typed", SCHEMAS[0], "full", "broker"), "painter")
    world.do(PutSchema("typed", SCHEMAS[1]), "painter")
    world.do(Put("typed", checked(2)), "painter")
    world.do(RegistrySet("still", "life", b"x"), "painter")
    world.send(Keyed("web", "freed", Void()))
    world.do(RemoveKeys("web", ("freed",)), "painter")
    world.send(Keyed("web", "still", Void()))
