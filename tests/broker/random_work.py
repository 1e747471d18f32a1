"""Random commands to a broker: puts with and without a delay, stages, acks, seeks, patterns, new and deleted topics."""

from __future__ import annotations

from random import Random

from oncemq.protocol import commands
from oncemq.protocol.batch import checksum, encode_batch
from tests.broker.rig import Rig

TOPICS = ("orders.eu", "orders.us", "küche", "log")
SUBSCRIBERS = ("kitchen", "till", "audit")
PRODUCERS = ("P1", "P2", "P3")
_PATTERN = "orders.*"


class RandomWork:
    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.random = Random(seed)
        self._stages = 0
        self._values = 0

    def run(self, steps: int) -> None:
        kinds = [self.put] * 6 + [self.ack] * 4 + [self.put_later, self.stage, self.commit, self.transact, self.wait]
        kinds += [self.subscribe, self.unsubscribe, self.seek, self.topic, self.pattern, self.producer, self.share]
        for _ in range(steps):
            # Refusals are welcome: they must change nothing.
            self.random.choice(kinds)()
        self.rig.answers()

    def _topic(self) -> str:
        return self.random.choice(TOPICS)

    def _subscriber(self) -> str:
        return self.random.choice(SUBSCRIBERS)

    def _payload(self) -> tuple[int, bytes]:
        count = self.random.choice((1, 1, 3, 9))
        values, keys = [], []
        for _ in range(count):
            self._values += 1
            filler = bytes(self.random.choice((0, 10, 3_000)))
            values.append(b"number %d " % self._values + filler.replace(b"\0", b"x"))
            keys.append(self.random.choice((None, b"a key")))
        if self.random.random() < 0.1:
            values[0] = b"\xff\0 no text"
        times = [10_000_000_000_000 + number for number in range(count)] if self.random.random() < 0.2 else None
        return count, encode_batch(values, keys if self.random.random() < 0.5 else None, None, times)

    def _envelope(self, due_ms: int = 0) -> tuple[commands.Envelope, bytes]:
        count, payload = self._payload()
        ttl_ms = self.random.choice((0, 0, 0, 5_000))
        return commands.Envelope(count, len(payload), checksum(payload), ttl_ms, due_ms), payload

    def put(self) -> None:
        envelope, payload = self._envelope()
        self.rig.do(commands.Put(self._topic(), envelope, True), payload=payload)

    def put_later(self) -> None:
        envelope, payload = self._envelope(self.rig.clock.time_ms + 300)
        self.rig.do(commands.Put(self._topic(), envelope, True), payload=payload)

    def stage(self) -> None:
        self._stages += 1
        for _ in range(2):
            envelope, payload = self._envelope()
            self.rig.do(commands.Stage(f"stage {self._stages}", self._topic(), "", 0, envelope), payload=payload)

    def commit(self) -> None:
        parts = [(stage.topic_id, stage.name, stage.count) for stage in self.rig.broker.engine.state.stages.values()]
        names = {topic.id: topic.name for topic in self.rig.broker.engine.state.topics.values()}
        by_topic: dict[str, list[tuple[str, int]]] = {}
        for topic_id, name, count in parts:
            by_topic.setdefault(names.get(topic_id, "gone"), []).append((name, count))
        if self.random.random() < 0.2:
            self.rig.do(commands.Abort(tuple(name for _, name, _ in parts)))
        else:
            self.rig.do(
                commands.Commit("", 0, "", (), tuple((topic, tuple(stages)) for topic, stages in by_topic.items()))
            )

    def transact(self) -> None:
        envelope, payload = self._envelope()
        self.rig.do(commands.Transact(puts=(commands.Put(self._topic(), envelope, True),)), payload=payload)

    def subscribe(self) -> None:
        self.rig.do(commands.Subscribe(self._topic(), self._subscriber(), commands.START_EARLIEST))

    def share(self) -> None:
        self.rig.do(commands.Subscribe(self._topic(), "workers", commands.START_EARLIEST, commands.Sharing(1_000)))

    def unsubscribe(self) -> None:
        self.rig.do(commands.Unsubscribe(self._topic(), self._subscriber()))

    def ack(self) -> None:
        state = self.rig.broker.engine.state
        topic = state.topics.get(self._topic())
        subscription = topic.subscriptions.get(self._subscriber()) if topic is not None else None
        if topic is not None and subscription is not None:
            upto = self.random.randint(subscription.acked, topic.next_offset)
            self.rig.ask(commands.Ack(topic.id, subscription.subscriber, subscription.epoch, upto))

    def seek(self) -> None:
        self.rig.do(
            commands.Seek(
                self._topic(), self._subscriber(), self.random.choice((commands.START_EARLIEST, commands.START_NEW))
            )
        )

    def topic(self) -> None:
        if self.random.random() < 0.3:
            self.rig.do(commands.DeleteTopic(self._topic()))
        else:
            retain_ms = self.random.choice((0, 1_000))
            drop = self.random.choice(((0, commands.REFUSE), (20_000, commands.DROP), (20_000, commands.EXPIRE)))
            self.rig.do(commands.CreateTopic(self._topic(), retain_ms, 0, *drop, alter=True))

    def pattern(self) -> None:
        if self.random.random() < 0.6:
            self.rig.do(commands.Subscribe(_PATTERN, "watcher", commands.START_EARLIEST))
        else:
            self.rig.do(commands.Unsubscribe(_PATTERN, "watcher"))

    def producer(self) -> None:
        value = b'{"topic": "%s"}' % self._topic().encode() if self.random.random() < 0.7 else None
        self.rig.do(commands.RegistrySet("queue", f"producer/{self.random.choice(PRODUCERS)}", value))

    def wait(self) -> None:
        for _ in range(8):
            self.rig.rounds(forward_ms=self.random.choice((1, 100)))
