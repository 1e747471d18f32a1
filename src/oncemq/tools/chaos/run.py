"""One run: start all processes, apply the schedule of faults, let all processes finish, and judge.

This process only forks, kills and watches: it has no threads, no sockets and no client.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType

from oncemq.protocol import errors
from oncemq.terminal import signals_handled
from oncemq.testing.broker_process import BrokerProcess, Transport, free_ports, free_url
from oncemq.tools.chaos import auditor, packet_proxy
from oncemq.tools.chaos.counters import Counters
from oncemq.tools.chaos.display import Display
from oncemq.tools.chaos.evidence import gather
from oncemq.tools.chaos.plan import (
    BROKER,
    GATEWAY,
    NETWORK,
    NO_FAULTS,
    PUSH_NETWORK,
    ClientPlan,
    Fault,
    Plan,
)
from oncemq.tools.chaos.publishers import publish_plainly, publish_through_outbox
from oncemq.tools.chaos.push_clients import publish_reliably, subscribe_reliably
from oncemq.tools.chaos.report import Numbers, ProcessRow, Result, Survived
from oncemq.tools.chaos.sabotage import PacketFilter, Sabotage, packet_filter_for
from oncemq.tools.chaos.subscribers import consume_into_inbox, consume_plainly
from oncemq.tools.chaos.worker import ACKNOWLEDGED, ATTEMPTED, DELIVERED, RunContext, Worker
from oncemq.tools.faults.checker import judge
from oncemq.tools.faults.processes import ForkedProcess, children_of

#: Modules that every client process would import otherwise.
_PRELOADED = ("oncemq.client.sync", "oncemq.client.inbox.sqlite", "oncemq.client.recording.recorder")
_POLL_S = 0.05
#: Timeout of each step at the end: more than any restart takes.
_FINISH_S = 30.0
_FLAGS = ("--segment-bytes=4MiB", "--snapshot-bytes=4MiB", "--batch-bytes-max=1MiB", "--log-level=info")
#: The push gateway sends again soon, so that a subscriber that was killed does not wait at the end.
_RETRANSMIT = "--push-retransmit-ms=500ms"
_BODIES: dict[str, Callable[[Worker], None]] = {
    "outbox": publish_through_outbox,
    "plain publisher": publish_plainly,
    "inbox": consume_into_inbox,
    "plain subscriber": consume_plainly,
    "push publisher": publish_reliably,
    "push subscriber": subscribe_reliably,
}
_ROLES = {
    "outbox": "publishes through an outbox",
    "plain publisher": "publishes",
    "inbox": "stores in SQLite, with an inbox",
    "plain subscriber": "subscribes, leaves and comes back",
    "push publisher": "publishes to the push gateway",
    "push subscriber": "gets pushed messages, and acks them",
}


class Run:
    """A run in a folder."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        display: Display,
        *,
        sabotage: Sabotage | None = None,
        record: str = "",
        transport: Transport = "stream",
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._display = display
        self._sabotage = sabotage
        self._transport = transport
        packets = (packet_proxy.PASSED, packet_proxy.LOST, packet_proxy.DUPLICATED, packet_proxy.DELAYED)
        names = [client.name for client in plan.clients]
        counted = [ATTEMPTED, ACKNOWLEDGED, DELIVERED, *packets]
        self._counters = Counters([*names, NETWORK, PUSH_NETWORK], counted)
        # Of the push gateway, if it runs. Its feed and its ack socket have the next ones.
        push_port = free_ports(3)
        push = (f"--push=127.0.0.1:{push_port}", _RETRANSMIT) if plan.has_push else ()
        self._broker = BrokerProcess(folder / BROKER, *_FLAGS, *push, transport=transport)
        self._push_acks = _loopback(push_port + 2)
        self._context = RunContext(
            folder,
            plan.seed,
            free_url(transport),
            self._broker.url,
            self._counters,
            record,
            _loopback(push_port + 1),
            free_url("zeromq"),
        )
        self._processes: dict[str, ForkedProcess] = {}
        self._incarnations: dict[str, int] = {}
        #: Clients that were asked to leave, and clients that start again as soon as they have left.
        self._leaving: set[str] = set()
        self._returning: set[str] = set()
        self._survived = Survived()
        self._problems: list[str] = []
        self._began_s = time.monotonic()
        self._is_interrupted = False
        #: Whether the broker was started, and not killed since.
        self._is_broker_up = False

    def run(self) -> Result:
        """Run, and return the result. No process is left, however it ends."""
        try:
            with self._display, signals_handled(self._interrupt):
                self._begin()
                self._apply_faults()
                self._finish()
        finally:
            for process in self._processes.values():
                process.kill()
            self._broker.kill()
        return self._conclude()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal: the first one ends the faults, and the second one the run."""
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True

    # The start.

    def _begin(self) -> None:
        seconds = f"{self._plan.seconds:g} s of faults"
        self._log("chaos", f"seed {self._plan.seed}: {seconds} for {len(self._plan.clients)} clients and a broker")
        self._start_broker()
        for module in _PRELOADED:
            import_module(module)
        self._processes[NETWORK] = self._fork(self._run_proxy)
        if self._plan.has_push:
            self._processes[PUSH_NETWORK] = self._fork(self._run_push_proxy)
        self._prepare()
        for client in sorted(self._plan.clients, key=lambda client: client.publishes):
            self._start(client)
        self._wait_for_messages()

    def _fork(self, body: Callable[[], int]) -> ForkedProcess:
        return ForkedProcess(body, self._folder / "workers.log")

    def _run_proxy(self) -> int:
        packet_filter = packet_filter_for(self._sabotage, self._broker.url)
        url, seed = self._context.url, self._plan.seed
        return packet_proxy.Proxy(url, self._broker.url, seed, self._counters, packet_filter).run()

    def _run_push_proxy(self) -> int:
        url, seed = self._context.acks, self._plan.seed
        proxy = packet_proxy.Proxy(url, self._push_acks, seed, self._counters, PacketFilter(), PUSH_NETWORK)
        return proxy.run()

    def _prepare(self) -> None:
        """Create topics. Raises BrokerAway if the broker does not start."""
        process = self._fork(lambda: auditor.subscribe_to_all(self._context))
        until_s = time.monotonic() + _FINISH_S
        while process.poll() is None and self._broker.is_running() and time.monotonic() < until_s:
            time.sleep(_POLL_S / 5)
        code = process.poll()
        process.kill()
        if code != 0:
            raise errors.BrokerAway(f"the broker of this run did not start:\n{self._broker.log_tail()}")

    def _wait_for_messages(self) -> None:
        """Wait until messages flow: the first fault needs something to lose."""
        until_s = time.monotonic() + _FINISH_S
        publishers = [client.name for client in self._plan.clients if client.publishes]
        while not self._is_interrupted and time.monotonic() < until_s:
            if self._counters.sum(DELIVERED) and all(self._counters.get(name, ACKNOWLEDGED) for name in publishers):
                return
            time.sleep(_POLL_S / 5)

    def _start_broker(self) -> None:
        self._broker.start(wait=False)
        self._is_broker_up = True

    def _start(self, client: ClientPlan) -> None:
        incarnation = self._incarnations[client.name] = self._incarnations.get(client.name, 0) + 1
        self._leaving.discard(client.name)
        self._returning.discard(client.name)
        context, body = self._context, _BODIES[client.kind]
        self._processes[client.name] = self._fork(lambda: Worker(context, client, incarnation).run(body))

    # The faults.

    def _apply_faults(self) -> None:
        self._began_s = time.monotonic()
        faults = list(self._plan.faults)
        while not self._is_interrupted and (elapsed_s := self._elapsed_s()) < self._plan.seconds:
            while faults and faults[0].at_s <= elapsed_s:
                self._apply(faults.pop(0))
            self._watch()
            time.sleep(_POLL_S)

    def _apply(self, fault: Fault) -> None:
        if fault.network is not None:
            self._counters.set_network_faults(fault.network)
            self._log(NETWORK, str(fault.network))
        elif fault.target == BROKER:
            self._apply_to_broker(fault)
        elif fault.target == GATEWAY:
            self._kill_gateway()
        else:
            self._apply_to(next(client for client in self._plan.clients if client.name == fault.target), fault)

    def _kill_gateway(self) -> None:
        gateways = children_of(self._broker.pid) if self._broker.is_running() else []
        for gateway in gateways:
            # It may be ending together with its broker.
            with suppress(ProcessLookupError):
                os.kill(gateway, signal.SIGKILL)
        if gateways:
            self._survived.gateway_kills += 1
            self._log(GATEWAY, "killed with SIGKILL; the broker starts it again")

    def _apply_to_broker(self, fault: Fault) -> None:
        if fault.action == "kill" and self._broker.is_running():
            self._broker.kill()
            self._is_broker_up = False
            self._survived.broker_kills += 1
            self._log(BROKER, f"killed with SIGKILL; {self._counters.sum(ACKNOWLEDGED):,} messages are acknowledged")
        elif fault.action == "start" and not self._broker.is_running():
            self._start_broker()
            self._log(BROKER, "restarts, and recovers from its journal")

    def _apply_to(self, client: ClientPlan, fault: Fault) -> None:
        process = self._processes[client.name]
        is_up = process.poll() is None
        if fault.action == "start":
            self._returning.add(client.name)
        elif is_up and fault.action == "leave" and client.name not in self._leaving:
            self._leaving.add(client.name)
            process.terminate()
            self._survived.departures += 1
            self._log(client.name, "leaves, and comes back for other topics")
        elif is_up and fault.action == "kill":
            process.kill()
            if client.publishes:
                self._survived.publisher_kills += 1
            else:
                self._survived.subscriber_kills += 1
            self._log(client.name, "killed with SIGKILL")

    def _watch(self) -> None:
        """Restart processes. One that ended without being killed is a problem."""
        for client in self._plan.clients:
            code = self._processes[client.name].poll()
            if code is not None and code > 0:
                self._problems.append(f"{client.name} ended with exit code {code}")
                self._start(client)
            elif code is not None and client.name in self._returning:
                self._start(client)
                self._log(client.name, f"is back: process {self._incarnations[client.name]}")
        if self._is_broker_up and not self._broker.is_running():
            self._problems.append(f"the broker ended unexpectedly: {self._broker.log_tail(3)}")
            self._start_broker()
        proxies = [self._processes[name] for name in (NETWORK, PUSH_NETWORK) if name in self._processes]
        if any(proxy.poll() is not None for proxy in proxies):
            raise RuntimeError(f"the proxy has ended:\n{(self._folder / 'workers.log').read_text()[-2000:]}")
        self._display.show(self._numbers())

    def _numbers(self) -> Numbers:
        counters, survived = self._counters, self._survived
        survived.packets_lost = counters.sum(packet_proxy.LOST)
        survived.packets_duplicated = counters.sum(packet_proxy.DUPLICATED)
        survived.packets_delayed = counters.sum(packet_proxy.DELAYED)
        return Numbers(
            self._elapsed_s(),
            self._plan.seconds,
            counters.sum(ATTEMPTED),
            counters.sum(ACKNOWLEDGED),
            counters.sum(DELIVERED),
            survived,
            (self._broker_row(), *map(self._row, self._plan.clients)),
        )

    def _broker_row(self) -> ProcessRow:
        state = "up" if self._broker.is_running() else "down"
        return ProcessRow(BROKER, "stores and delivers", state, self._counters.sum(ACKNOWLEDGED))

    def _row(self, client: ClientPlan) -> ProcessRow:
        state = "up" if self._processes[client.name].poll() is None else "down"
        messages = self._counters.get(client.name, ACKNOWLEDGED if client.publishes else DELIVERED)
        return ProcessRow(client.name, _ROLES[client.kind], state, messages)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _log(self, source: str, text: str) -> None:
        self._display.log(self._elapsed_s(), source, text)

    # The end.

    def _finish(self) -> None:
        self._log("chaos", "no more faults: all processes finish their work")
        self._counters.set_network_faults(NO_FAULTS)
        if not self._broker.is_running():
            self._start_broker()
        self._finish_clients([client for client in self._plan.clients if client.publishes])
        reader = self._fork(lambda: auditor.read_all(self._context))
        if (code := reader.wait(_FINISH_S)) != 0:
            reader.kill()
            self._problems.append(f"the stored messages could not be read (exit code {code})")
        self._finish_clients([client for client in self._plan.clients if not client.publishes])

    def _finish_clients(self, clients: list[ClientPlan]) -> None:
        """Let clients finish. Those that are not running start again: outboxes are emptied, and inboxes are filled."""
        until_s = time.monotonic() + _FINISH_S
        for client in clients:
            process = self._processes[client.name]
            if client.name in self._leaving:
                process.wait(_FINISH_S)
            if process.poll() is not None:
                self._start(client)
            self._processes[client.name].terminate()
        for client in clients:
            while (code := self._processes[client.name].poll()) is None and time.monotonic() < until_s:
                self._display.show(self._numbers())
                time.sleep(_POLL_S)
            if code != 0:
                self._problems.append(f"{client.name} did not finish (exit code {code})")

    def _conclude(self) -> Result:
        evidence = gather(self._folder)
        evidence.errors += self._problems
        is_empty = not evidence.acknowledged or not any(delivery.got for delivery in evidence.deliveries)
        if is_empty and not self._is_interrupted:
            evidence.errors.append("no message was put or delivered: there is nothing to judge")
        self._numbers()
        plan, sabotage = self._plan, self._sabotage or ""
        verdict = judge(evidence)
        return Result(
            plan.seed,
            plan.seconds,
            self._is_interrupted,
            sabotage,
            verdict,
            self._survived,
            push=plan.has_push,
            transport=self._transport,
        )


def _loopback(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"
