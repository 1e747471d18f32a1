"""Planted bugs in shared subscriptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from oncemq.engine import events
from oncemq.engine.apply import leases as leases_applied
from oncemq.engine.decide import ticks, transactions
from oncemq.engine.decide.subscriptions import leases
from oncemq.engine.snapshot import capture, shared_image
from oncemq.engine.state.shared_subscription import Redeliveries, SharedState
from oncemq.engine.state.topic import Subscription, Topic
from oncemq.protocol import commands
from tests.simulation.bugs.messages import applied
from tests.simulation.bugs.registry import Patch, bug

_replace = msgspec.structs.replace


@bug("a settle is accepted without checking its lease")
def settle_token_is_not_checked() -> Sequence[Patch]:
    real: Any = leases.decide_settle

    def holder(shared: SharedState, offset: int, token: int) -> int:
        for lease in shared.leases.values():
            if any(first <= offset < end for first, end, _ in lease.spans):
                return lease.token
        return token

    def decide_settle(
        topic: Topic,
        subscription: Subscription,
        now_ms: int,
        claim: Any,
        command: commands.Settle,
        *,
        strict: bool = False,
    ) -> Any:
        assert subscription.shared is not None
        done = tuple(
            (holder(subscription.shared, offset, token), offset, 1)
            for token, first, count in command.done
            for offset in range(first, first + count)
        )
        return real(topic, subscription, now_ms, claim, _replace(command, done=done), strict=strict)

    return [(transactions, "decide_settle", decide_settle)]


@bug("a late settle is reported as successful")
def lost_settle_is_called_done() -> Sequence[Patch]:
    real: Any = leases.decide_settle

    def decide_settle(*args: Any, strict: bool = False) -> Any:
        decided = real(*args, strict=strict)
        return _replace(decided, lost=()) if isinstance(decided, events.Settled) else decided

    return [(transactions, "decide_settle", decide_settle)]


@bug("a transaction with a lost lease settles the rest and succeeds")
def transaction_goes_on_without_its_lease() -> Sequence[Patch]:
    real: Any = leases.decide_settle

    def decide_settle(*args: Any, strict: bool = False) -> Any:
        return real(*args, strict=False)

    return [(transactions, "decide_settle", decide_settle)]


@bug("leases are not restarted after a recovery")
def leases_are_not_restarted() -> Sequence[Patch]:
    return applied(events.LeasesRestarted, lambda _state, _limits, _time_ms, _event: None)


@bug("leases expire before their time")
def lease_expires_early() -> Sequence[Patch]:
    def expired_leases(shared: SharedState, now_ms: int, count_max: int) -> Iterator[int]:
        yield from [token for token, lease in shared.leases.items() if lease.until_ms <= now_ms + 60][:count_max]

    return [(ticks, "_expired_leases", expired_leases)]


@bug("an extension is answered but not applied")
def extension_is_not_applied() -> Sequence[Patch]:
    return applied(events.Extended, lambda _state, _limits, _time_ms, _event: None)


@bug("leases and their messages are missing in snapshots")
def lease_is_missing_in_snapshots() -> Sequence[Patch]:
    real: Any = shared_image.capture_shared
    return [(capture, "capture_shared", lambda shared: _replace(real(shared), leases=()))]


@bug("redeliveries are lost in a restart")
def returned_is_lost_in_a_restart() -> Sequence[Patch]:
    real: Any = shared_image.restore_shared
    return [(capture, "restore_shared", lambda image: real(_replace(image, returned=())))]


@bug("the leased messages of a member are lost when it leaves")
def leaving_loses_leased_messages() -> Sequence[Patch]:
    def remove_member(self: SharedState, name: str, time_ms: int) -> None:
        for token in sorted(self.members[name].tokens.values()):
            lease = self.leases[token]
            self.leased -= lease.spans.count
            self._end_lease(lease, time_ms)
        del self.members[name]

    return [(SharedState, "remove_member", remove_member)]


@bug("a key is free when the lease on one of its messages ends")
def key_is_free_when_a_lease_expires() -> Sequence[Patch]:
    real: Any = SharedState.return_lease

    def return_lease(self: SharedState, token: int, time_ms: int) -> None:
        spans = list(self.leases[token].spans)
        real(self, token, time_ms)
        for first, end, _ in spans:
            self._free_keys(first, end)

    return [(SharedState, "return_lease", return_lease)]


@bug("the delay of a nack is ignored")
def delay_of_a_return_is_ignored() -> Sequence[Patch]:
    real: Any = Redeliveries.add

    def add(self: Redeliveries, first: int, end: int, tries: int, _not_before_ms: int) -> None:
        real(self, first, end, tries, 0)

    return [(Redeliveries, "add", add)]


@bug("deliveries whose lease ended are not counted")
def tries_are_forgotten() -> Sequence[Patch]:
    real: Any = leases_applied._leases_expired

    def leases_expired(state: Any, limits: Any, time_ms: int, event: events.LeasesExpired) -> None:
        real(state, limits, time_ms, event)
        shared = state.topics_by_id[event.topic_id].subscriptions[event.subscriber].shared
        for first, (end, _, not_before_ms) in list(shared.redeliveries.spans.items()):
            shared.redeliveries.spans[first] = (end, 0, not_before_ms)

    return applied(events.LeasesExpired, leases_expired)


@bug("an acked message is redelivered when its lease would have ended")
def settled_message_comes_back() -> Sequence[Patch]:
    real: Any = leases_applied._settled

    def settled(state: Any, limits: Any, time_ms: int, event: events.Settled) -> None:
        real(state, limits, time_ms, event)
        shared = state.topics_by_id[event.topic_id].subscriptions[event.subscriber].shared
        for _, first, count in event.done:
            if first >= shared.floor():
                shared.redeliveries.add(first, first + count, 1, time_ms + shared.policy.lease_ms)

    return applied(events.Settled, settled)
