"""Compares the state of a recovered broker with a *reference*: an engine that applies every synced event.

The recovered state must be that of the reference, or that plus the one group that was written but not synced when the
process ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from oncemq.broker import recovery as broker_recovery
from oncemq.broker.loop import Broker
from oncemq.broker.requests.request import Request
from oncemq.broker.security.security import Security
from oncemq.engine.engine import Engine
from oncemq.engine.events import Event
from oncemq.engine.state import owners
from oncemq.engine.state.state import State
from oncemq.journal.contract import Journal
from oncemq.protocol import commands
from tests.simulation.environment.world import Violation, World

#: Maximum time for which a topic may exceed its quota.
QUOTA_MS_MAX = 150
LEAP_MS = 10 * 365 * 24 * 3600 * 1000

_decode_events = msgspec.msgpack.Decoder(list[Event]).decode
_decode_images = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def digest_of(engine: Engine) -> tuple[object, ...]:
    """Return a state in a form that does not depend on the order of the capture."""
    capture = engine.capture()
    images: list[bytes] = []
    while (chunk := capture.chunk(1_000_000)) is not None:
        images += [bytes(image) for image in _decode_images(chunk)]
    keys = [image for image in images if image[1:5] == b"\xa3key"]
    others = sorted(image for image in images if image[1:5] != b"\xa3key")
    state = engine.state
    return keys, others, sorted(state.owners), state.live, state.subscriptions, state.registry_entries


def _owned_things(state: State) -> Iterator[tuple[str, str, str]]:
    """Return what has an owner, if all of it was created by users."""
    yield from ((commands.SESSION, "", name) for name in state.sessions)
    yield from ((commands.WRITER, "", name) for name in state.writers)
    yield from ((owners.STAGE, "", name) for name in state.stages)
    yield from ((commands.SUBSCRIPTION, *key) for key in state.patterns)
    for namespace, entries in state.registry.items():
        yield from ((commands.ENTRY, namespace, key) for key in entries)
    for topic in state.topics.values():
        yield owners.TOPIC, "", topic.name
        for name, subscription in topic.subscriptions.items():
            if subscription.pattern is None:
                yield commands.SUBSCRIPTION, topic.name, name


def _check_waiting(security: Security, request: Request) -> None:
    caller, [command] = security._caller(request.caller), request.commands
    assert security._authorizer is not None
    if caller is None or security._authorizer.refuse(caller, caller, command) is not None:
        raise Violation(f"{request.caller} waits, and has no right to {command}")


class StateCheck:
    """Base class of a machine with a broker, and of a pair of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.reference: Engine | None = None
        #: The group that was written and is not known to be synced.
        self.appended: tuple[int, bytes] | None = None
        self._over_quota_ms = 0
        self._clock_random = world.random("clock")
        #: How far the clock is ahead at this start.
        self._leap_ms = 0

    def _compare_with_reference(self, broker: Broker, journal: Journal) -> None:
        if self.reference is None:
            self.reference = broker_recovery.new_engine(journal, self._world.faults.limits)
        found = digest_of(broker.engine)
        if found != digest_of(self.reference) and self.appended is not None:
            self._world.tally["recovery: unsynced group survived"] += 1
            self._apply_to_reference()
        if found != digest_of(self.reference):
            raise Violation("inconsistent: the state after recovery is not what was synced" + self._difference(found))
        self.appended = None

    def _difference(self, found: tuple[object, ...]) -> str:
        assert self.reference is not None
        synced = digest_of(self.reference)
        parts = []
        for name, one, other in zip(("keys", "state", "owners"), found, synced, strict=False):
            assert isinstance(one, list)
            assert isinstance(other, list)
            parts += [f"\n  recovered {name}: {image!r}" for image in one if image not in other]
            parts += [f"\n  synced {name}:    {image!r}" for image in other if image not in one]
        return "".join(parts)[:2000]

    def _apply_to_reference(self) -> None:
        assert self.appended is not None
        assert self.reference is not None
        time_ms, events = self.appended
        self.appended = None
        tally = self._world.tally
        for event in _decode_events(events) if events else ():
            tally["event: " + type(event).__name__] += 1
            self.reference.apply(time_ms, event)
        self.reference.pass_time(time_ms)

    def group_synced(self) -> None:
        if self.appended is not None:
            self._apply_to_reference()

    # The clock of the brokers.

    def now_ms(self) -> int:
        return self._world.now_ms - self._world.clock_behind_ms + self._leap_ms

    def continue_from(self, time_ms: int) -> None:
        if time_ms > self.now_ms():
            raise Violation(f"inconsistent: time {time_ms} was recorded at {self.now_ms()}")
        # The clock stays like this: if it caught up later, delays would be shorter than the checks expect.
        self._leap_ms = 0
        self._world.clock_behind_ms = self._world.now_ms - time_ms

    def _maybe_leap(self) -> None:
        """Let the clock be far ahead at this start, if the broker has a recorded time to continue from."""
        self._leap_ms = 0
        has_time = self.reference is not None and self.reference.state.time_ms > 0
        if self._clock_random.random() < self._world.faults.clock_leap and has_time and not self._world.healed:
            self._leap_ms = LEAP_MS
            self._world.tally["broker: clock leaps"] += 1
            self._world.note("CLOCK is ten years ahead")

    def _check_quotas(self, broker: Broker) -> None:
        """Check that a topic does not exceed its quota for long while the broker can write."""
        world = self._world
        is_over = any(topic.is_over_quota for topic in broker.engine.state.topics.values() if topic.quota_bytes)
        if not is_over or not world.is_available:
            self._over_quota_ms = 0
            return
        self._over_quota_ms = self._over_quota_ms or world.now_ms
        if world.now_ms - max(self._over_quota_ms, world.available_since_ms) > QUOTA_MS_MAX:
            raise Violation("a topic holds more than its quota, and keeps it")

    def _check_security(self, broker: Broker) -> None:
        """Check after a round of a broker with users that everything has an owner and nothing else has one, and that
        no user waits without a right to what it waits for."""
        security, state = broker.security, broker.engine.state
        if security is None:
            return
        owned = {entry[:3] for entry in state.owners}
        wrong = sorted(owned ^ set(_owned_things(state)))
        if wrong:
            raise Violation(f"there is no such thing, but it has an owner, or the other way round: {wrong}")
        if state.owners._counts != Counter((kind, owner) for kind, _, _, owner in state.owners):
            raise Violation(f"wrong counts of what users own: {state.owners._counts}")
        if not broker.waiting.unserved:
            for requests in broker.waiting._by_target.values():
                for waiting in requests.values():
                    _check_waiting(security, waiting.request)

    def count_broker(self, broker: Broker | None) -> None:
        """Add the counters of a process that ends."""
        if broker is not None:
            for name in ("commands", "groups", "snapshots", "records_moved"):
                self._world.tally[name] += broker.counters[name]
