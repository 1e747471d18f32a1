"""Runs one seed: a phase with faults, a phase without faults in which all work finishes, and the final check."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest.mock import patch

import msgspec

from oncemq import client
from oncemq.protocol import commands, errors
from tests.simulation.checks.audit import Auditor
from tests.simulation.environment.faults import has_standby
from tests.simulation.environment.host import Host
from tests.simulation.environment.network import SimNetwork
from tests.simulation.environment.small_limits import SMALL
from tests.simulation.environment.standby_pair import StandbyPair
from tests.simulation.environment.users import GATEWAY, SimUsers
from tests.simulation.environment.world import START_MS, Violation, World
from tests.simulation.processes.bad_links import DistantProducer, UnheardClient, has_bad_links
from tests.simulation.processes.blocking_consumer import BlockingConsumer
from tests.simulation.processes.consumer import Consumer
from tests.simulation.processes.copier import Copier
from tests.simulation.processes.extras import OptionalProcesses
from tests.simulation.processes.intruder import QUOTAS, Intruder
from tests.simulation.processes.operators import KeyedCaller, Operator
from tests.simulation.processes.pattern_consumer import PatternConsumer
from tests.simulation.processes.process import Context, Process
from tests.simulation.processes.producer import Producer
from tests.simulation.processes.reader import Reader
from tests.simulation.processes.restricted import (
    GatewayProducer,
    Restricted,
    RestrictedConsumer,
    RestrictedProducer,
)
from tests.simulation.processes.schemas import SchemaOperator, has_schemas
from tests.simulation.processes.staging_writer import StagingWriter
from tests.simulation.processes.visitor import Visitor
from tests.simulation.processes.worker import Worker

HEALING_MS_MAX = 30_000
#: Average time between two changes of the rights of users.
CHANGES_EVERY_MS = 150
#: After this time every delayed packet has arrived.
LATEST_MS = 410


def _shells() -> list[ModuleType]:
    """Return the imported modules of the client that read the clock."""
    prefix = client.__name__ + "."
    return [
        module for name, module in list(sys.modules.items()) if name.startswith(prefix) and hasattr(module, "now_ms")
    ]


class Outcome(msgspec.Struct):
    seed: int
    violation: str
    transcript: list[str]
    digest: int
    tally: dict[str, int]


class Run:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.users = SimUsers(self.world)
        self.host: Host | StandbyPair
        if has_standby(seed):
            self.network = SimNetwork(self.world, 2)
            self.host = StandbyPair(self.world, self.network.listeners, self.users)
        else:
            self.network = SimNetwork(self.world)
            self.host = Host(self.world, self.network.listeners[0], self.users)
        self.context = Context(self.world, self.network, self.users)
        self.host.recovered = self.context.leases.recovered
        self._random = self.world.random("cast")
        self.producers: list[Producer] = []
        self.processes: list[Process] = []
        self.callers: list[KeyedCaller | Intruder] = []
        self._create_processes()
        for process in (*self.processes, *self.callers):
            self.users.add(process.user, process.rules())
        self.restricted = [one for one in self.processes if isinstance(one, Restricted)]
        for one in self.restricted:
            self.users.set_rules(one.name, one.rights())
        movers = Copier | Worker
        takers = Consumer | BlockingConsumer | PatternConsumer
        self.movers = [one for one in self.processes if isinstance(one, movers)]
        self.consumers = [one for one in self.processes if isinstance(one, takers) and not isinstance(one, movers)]
        others = [one for one in self.processes if not isinstance(one, movers | takers)]
        self.others: list[Process | KeyedCaller | Intruder] = [*others, *self.callers]

    # Processes.

    def _create_processes(self) -> None:
        context = self.context
        random = self._random.random
        extras = OptionalProcesses(context)
        churned = extras.churned
        retain_ms, retain_bytes = (0, 3_000) if random() < 0.5 else (300, 0)
        kept = [
            commands.CreateTopic("orders"),
            commands.CreateTopic("kept", retain_ms, retain_bytes),
            commands.CreateTopic(churned),
        ]
        self.operator = Operator(context, "operator", kept + extras.topics, churned, "victim")
        self.processes.append(self.operator)
        self._add_consumers(churned)
        self._add_producers(churned)
        if random() < 0.3:
            self.processes.append(BlockingConsumer(context, "waiter", "orders", "kept"))
        self._add_writers(churned, extras)
        self.processes.append(Reader(context, "reader", ["kept", "orders", churned, *extras.readable]))
        self.callers.append(KeyedCaller(context, "caller", "orders" if random() < 0.7 else churned))
        self.producers += extras.producers
        self.processes += extras.producers + extras.others
        if has_bad_links(self.world):
            distant = DistantProducer(context, "distant", ["orders"])
            self.producers.append(distant)
            self.processes += [distant, UnheardClient(context, "unheard")]
        if has_schemas(self.world):
            self.processes.append(SchemaOperator(context, "registrar"))
        if self.users.exist:
            self._add_users()

    def _add_users(self) -> None:
        kind = GatewayProducer if self._random.random() < 0.5 else RestrictedProducer
        producer = kind(self.context, "author")
        self.producers.append(producer)
        self.processes += [producer, RestrictedConsumer(self.context, "reviser", producer)]
        self.callers.append(Intruder(self.context, "intruder", frozenset({"victim"})))
        self.users.add("intruder", (), QUOTAS)
        self.users.add(GATEWAY, ["role gateway"])

    def _add_writers(self, churned: str, extras: OptionalProcesses) -> None:
        random = self._random.random
        first = "orders" if random() < 0.7 else churned
        second = "bounded" if "bounded" in extras.readable else "kept"
        topics = [first, second] if random() < 0.7 else [first]
        self.processes.append(StagingWriter(self.context, "writer", topics))
        if random() < 0.3:
            # A second writer, or a second driver of the same writer.
            is_rival = random() < 0.6
            self.processes.append(StagingWriter(self.context, "writer'" if is_rival else "writer 2", topics))

    def _add_consumers(self, churned: str) -> None:
        context = self.context
        random = self._random.random
        has_rival = random() < 0.4
        apart = random() < 0.5
        start = commands.START_NEW if random() < 0.3 else commands.START_EARLIEST
        self.processes.append(
            Consumer(
                context, "kitchen", "orders", "kitchen", start, rival=has_rival, holds=not has_rival and random() < 0.4
            )
        )
        if has_rival:
            rival = Consumer(context, "kitchen'", "orders", "kitchen", start, rival=True, own_session=apart)
            self.processes.append(rival)
        resubscribes = random() < 0.4
        self.processes.append(Consumer(context, "bar", "orders", "bar", commands.START_NEW, resubscribes=resubscribes))
        if not resubscribes:
            context.seekable.append(("orders", "bar"))
        if random() < 0.7:
            self.processes.append(Consumer(context, "till", churned, "till", commands.START_NEW))
        if random() < 0.3:
            self.processes.append(Consumer(context, "slow", "kept", "slow", commands.START_EARLIEST))
            context.seekable.append(("kept", "slow"))
        context.subscriptions.deletable_topics.add("passing")
        if random() < 0.4:
            self.processes.append(self._guest())

    def _guest(self) -> Consumer:
        if self.world.random("visitor").random() < 0.3:
            return Visitor(self.context, "guest", "passing")
        return Consumer(self.context, "guest", "passing", "guest", commands.START_NEW, resubscribes=True)

    def _add_producers(self, churned: str) -> None:
        context = self.context
        random = self._random.random
        add = self.producers.append
        has_rival = random() < 0.3
        add(Producer(context, "cook", ["orders", "kept"], anonymous=False, rival=has_rival))
        if has_rival:
            add(Producer(context, "cook'", ["orders"], anonymous=False, rival=True))
        add(Producer(context, "victim", ["orders", churned], anonymous=False, rival=False))
        add(Producer(context, "passer", [churned, "kept", "passing"], anonymous=True, rival=False))
        self.processes += self.producers

    # Phases.

    def _begin(self) -> None:
        world = self.world
        self.host.start()
        for process in self.processes:
            world.after(1 + int(self._random.random() * 200), process.start)
        for caller in self.callers:
            world.after(50, caller.start)
        self._every(world.faults.crash_every_ms, self.host.inject_crash)
        self._every(world.faults.client_crash_every_ms, self._crash_somebody)
        self._every(world.faults.partition_every_ms, self._cut_somebody_off)
        if world.stream_faults.share:
            self._every(world.stream_faults.reset_every_ms, self.network.internet.reset_somebody)
        if self.restricted:
            self._every(CHANGES_EVERY_MS, self._change_a_right)
        self._every(world.faults.full_every_ms, lambda: self.host.fill_disk(100 + int(self._random.random() * 700)))

    def _every(self, mean_ms: int, action: Callable[[], None]) -> None:
        def act() -> None:
            if self.world.healed:
                return
            action()
            self.world.after(1 + int(self._random.expovariate(1 / mean_ms)), act)

        self.world.after(1 + int(self._random.expovariate(1 / mean_ms)), act)

    def _somebody(self) -> Process:
        return self.processes[int(self._random.random() * len(self.processes))]

    def _crash_somebody(self) -> None:
        self._somebody().crash()

    def _cut_somebody_off(self) -> None:
        self._somebody().cut_off(40 + int(self._random.random() * 400))

    def _change_a_right(self) -> None:
        self.restricted[int(self._random.random() * len(self.restricted))].change_right()
        self.host.reload_users()

    def _is_settled(self) -> bool:
        if self.host.broker is None:
            return False
        if self.world.calm_ms is None:
            if all(one.is_settled for one in self.others):
                self.world.calm_ms = self.world.now_ms
            return False
        if self.world.quiet_ms is None:
            if all(one.is_settled for one in self.movers):
                self.world.quiet_ms = self.world.now_ms
            return False
        return all(consumer.is_settled for consumer in self.consumers)

    def go(self) -> None:
        world = self.world
        self._begin()
        world.run(START_MS + world.faults.duration_ms)
        world.note("--- everything heals ---")
        world.healed = True
        self.host.heal()
        for process in self.restricted:
            if not process.has_right:
                process.change_right()
        self.host.reload_users()
        world.run(world.now_ms + LATEST_MS)
        world.run(world.now_ms + HEALING_MS_MAX, self._is_settled)
        if not self._is_settled():
            everybody: list[Process | KeyedCaller | Intruder] = [*self.processes, *self.callers]
            stuck = [one.problem() for one in everybody if not one.is_settled]
            raise Violation("stuck: " + "; ".join(stuck or ["the broker is not there"]))
        self._check()

    # The final check.

    def _check(self) -> None:
        auditor = Auditor(self.context, "auditor", self.operator, self.processes)
        self.users.add(auditor.user, auditor.rules())
        self.host.reload_users()
        auditor.start()
        self.world.run(self.world.now_ms + HEALING_MS_MAX, lambda: auditor.is_settled)
        if not auditor.is_settled:
            raise Violation("stuck: " + auditor.problem())
        auditor.check()
        for listener in self.network.listeners:
            listener.check_answered()
        self.context.history.check_outcomes()
        for producer in self.producers:
            if not producer.rival:
                self.context.history.check_order(producer.name, producer.made)

    def close(self) -> None:
        for process in self.processes:
            process.stop()

    def count(self) -> None:
        self.host.count()
        self.host.count_faults()


@contextmanager
def _in(world: World) -> Iterator[None]:
    """Patch the clock of the client, and make all limits small."""
    with ExitStack() as stack:
        for owner, name, value in SMALL:
            stack.enter_context(patch.object(owner, name, value))
        for module in _shells():
            stack.enter_context(patch.object(module, "now_ms", lambda: float(world.now_ms)))
        yield


def run_seed(seed: int) -> Outcome:
    run = Run(seed)
    violation = ""
    with _in(run.world):
        try:
            run.go()
        except Violation as error:
            violation = str(error)
        except AssertionError:
            # An assertion failed, here or in the code under test.
            violation = "assertion failed:\n" + traceback.format_exc(limit=-4)
        except errors.OnceMQError:
            # For example, a broker does not start with what is on its disk.
            violation = "an error ended the run:\n" + traceback.format_exc(limit=-4)
        finally:
            run.close()
    run.count()
    world = run.world
    return Outcome(seed, violation, list(world.transcript), world.digest, dict(world.tally))
