"""A process that uses the real blocking client on a simulated network: subscribe, get and put."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from oncemq.client.consumer.sync import Subscription
from oncemq.client.core.core import Core
from oncemq.client.options import ConnectSettings
from oncemq.client.producer.encoding import make_put
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.client.sync import Client, make_client
from oncemq.protocol import commands, errors, replies
from oncemq.protocol.message import Message
from tests.simulation.checks.subscriptions import SubscriptionModel
from tests.simulation.environment.fiber import Fiber
from tests.simulation.environment.world import Violation
from tests.simulation.processes.process import OPTIONS, Context, Process

_PASSING = (errors.BrokerAway, errors.NotNow)


class BlockingConsumer(Process):
    """A message is done when the next one is requested. No ack may be ahead of that."""

    def __init__(self, context: Context, name: str, topic: str, put_topic: str) -> None:
        super().__init__(context, name)
        self.topic = topic
        self._put_topic = put_topic
        self._fiber: Fiber | None = None
        self._naps = 0
        self._is_awake = False
        self.model: SubscriptionModel | None = None
        self._position = 0
        self._puts = 0
        self._acked_before: dict[int, int] = {}
        #: Since the last start.
        self._sent_numbers: set[int] = set()
        self._seen_numbers: set[int] = set()
        #: When the last empty get was called.
        self._empty_ms = 0

    @property
    def is_settled(self) -> bool:
        quiet_ms = self.world.quiet_ms
        if quiet_ms is None or self._empty_ms <= quiet_ms or self.model is None:
            return False
        return self.model.ack_confirmed == self._position

    def problem(self) -> str:
        acked = self.model.ack_confirmed if self.model is not None else -1
        return f"{self.name} is not settled: at {self._position}, {acked} acked"

    def rules(self) -> list[str]:
        return [f"consume {self.topic}", f"create {self.topic}"] + [
            f"{verb} {self._put_topic}" for verb in ("write", "create")
        ]

    # The fiber.

    def begin(self) -> None:
        assert self.core is not None
        self._sent_numbers, self._seen_numbers = set(), set()
        self._acked_before = {}
        self._fiber = Fiber(self._live)
        self._resume()

    def pump(self) -> None:
        """The driver of the client does this."""

    def stop(self, *, is_silent: bool = False) -> None:
        super().stop(is_silent=is_silent)
        fiber, self._fiber = self._fiber, None
        if fiber is not None:
            self._naps += 1
            fiber.end()

    def _resume(self) -> None:
        fiber = self._fiber
        if fiber is not None:
            self._is_awake = True
            fiber.resume()
            self._is_awake = False

    def sleep(self, duration_ms: float) -> None:
        """Called by the fiber: sleep. What arrives ends the sleep."""
        assert self._fiber is not None
        self._naps += 1
        nap = self._naps
        self.world.after(max(1, int(duration_ms)), lambda: self._end_nap(nap))
        self._fiber.pause()

    def wake(self) -> None:
        self._end_nap(self._naps)

    def _end_nap(self, nap: int) -> None:
        if nap == self._naps and self.core is not None and not self._is_awake:
            self._naps += 1
            self._resume()

    # Observation of packets.

    def _on_sent(self, command: commands.Numbered) -> None:
        self._sent_numbers.add(command.number)
        if isinstance(command.operation, commands.Open) and self.model is not None:
            self._acked_before.setdefault(command.number, self.model.ack_confirmed)

    def _on_reply(self, command: commands.Command, reply: replies.Reply) -> None:
        if (
            isinstance(reply, replies.GetReply | replies.AckReply)
            and self.model is not None
            and not isinstance(command, commands.Read)
        ):
            self.model.check_position(reply.acked, 0)
            self.model.ack_confirmed = max(self.model.ack_confirmed, reply.acked)
        if isinstance(command, commands.Numbered):
            self._on_verdict(command.number, reply)
        elif isinstance(command, commands.Hello) and command.epoch and isinstance(reply, replies.HelloReply):
            for number, verdict in reply.verdicts:
                self._on_verdict(number, verdict)

    def _on_verdict(self, number: int, reply: replies.Reply) -> None:
        if number in self._seen_numbers or number not in self._sent_numbers:
            return
        if isinstance(reply, replies.SubscribeReply):
            self._seen_numbers.add(number)
            self.model = self.context.subscriptions.subscribed(self.topic, self.name, reply)
        elif isinstance(reply, replies.OpenReply):
            self._seen_numbers.add(number)
            assert self.model is not None
            self.model.opened(reply, f"{self.name}~{self.incarnation}", self._acked_before.get(number, 0), 0)
            self._position = reply.acked

    # The workload.

    def _live(self) -> None:
        core = Core(self.name, False, self.random.getrandbits(62) + 1, OPTIONS)
        self.core = core
        settings = ConnectSettings(urls=["simulated"], batch_messages=10, batch_bytes=1000, buffer_bytes=10_000)
        client = make_client(ThreadDriver(core, self._observed()), settings)
        self.context.subscriptions.requested.setdefault(self.topic, set()).add(self.name)
        found = self._retry(lambda: client.subscribe(self.topic, self.name, "earliest", prefetch_bytes=800))
        while True:
            self._get(found)
            if not self.world.healed and self.random.random() < 0.15:
                self._put(client)
            self._nap(self.random.random() * self.world.faults.think_ms)

    def _nap(self, duration_ms: float) -> None:
        until_ms = self.world.now_ms + duration_ms
        while self.world.now_ms < until_ms:
            self.sleep(until_ms - self.world.now_ms)

    def _retry(self, call: Callable[[], Subscription]) -> Subscription:
        while True:
            try:
                return call()
            except _PASSING:
                self._nap(30)
            except errors.OnceMQError as error:
                self._end_of_life(error)

    def _end_of_life(self, error: errors.OnceMQError) -> NoReturn:
        """End this incarnation and restart: a late hello of an earlier incarnation can take over the session."""
        if self.incarnation == 1 or self.core is None or self.core.finished is None:
            raise Violation(f"{self.name} got {error.code}: {error}") from error
        self.world.note(f"{self.name} is finished: {error.code}")
        self.world.tally["client: " + error.code] += 1
        started = self.incarnation
        self.world.after(50, lambda: self._begin_again(started))
        while True:
            self._nap(10_000)

    def _begin_again(self, started: int) -> None:
        if self.core is not None and self.incarnation == started:
            self.stop()
            self.start()

    def _get(self, found: Subscription) -> None:
        if self.model is not None:
            # The next message is requested: everything before it is done.
            self.model.ack_sent = max(self.model.ack_sent, self._position)
        called_ms = self.world.now_ms
        try:
            if self.random.random() < 0.5:
                messages = found.get_many(1 + int(self.random.random() * 5), timeout_s=0.03)
            else:
                message = found.get(timeout_s=0.03)
                messages = [message] if message is not None else []
        except _PASSING:
            return
        except errors.OnceMQError as error:
            self._end_of_life(error)
        if messages:
            self._take(messages)
        else:
            self._empty_ms = called_ms

    def _take(self, messages: list[Message]) -> None:
        assert self.model is not None
        first = messages[0].offset
        for message in messages:
            if message.offset != self._position:
                raise Violation(f"out of order: {self.name} got {message.offset} after {self._position - 1}")
            self.context.history.observe(
                message.topic_id, message.offset, message.value, message.timestamp_ms, self.name
            )
            self._position += 1
        self.model.delivered(first, self._position)
        self.world.tally["messages delivered"] += len(messages)
        self.world.note(f"{self.name} got {first}..{self._position - 1}")

    def _put(self, client: Client) -> None:
        self._puts += 1
        value = f"{self.name}.{self._puts}".encode()
        attempt = self.context.history.attempt(f"put {value!r} by {self.name}", self._put_topic, [value])
        operation, _ = make_put(self._put_topic, True, [value])
        self.context.attempts[operation.envelope.checksum] = attempt
        try:
            receipt = client.put(self._put_topic, value, create=True)
        except errors.OnceMQError as error:
            self.world.note(f"{attempt.label} → {error.code}")
            return
        self.world.note(f"{attempt.label} → {receipt.topic_id:x}:{receipt.offset}")
        if attempt.place != (receipt.topic_id, receipt.offset):
            raise Violation(f"inconsistent: {attempt.label} is at {attempt.place}, its receipt says {receipt}")
