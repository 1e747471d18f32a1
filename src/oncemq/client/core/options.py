"""What can be set about a client's patience and appetite."""

from __future__ import annotations

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How the core behaves. All of it has sensible defaults."""

    #: No answer for so long: open a new connection and send again.
    timeout_ms: float = 1000.0
    #: Time-outs in a row before the broker counts as away.
    tries: int = 5
    #: Numbered commands in flight at the most.
    window: int = 64
    #: How long "not now" is retried; 0 = timeout_ms * tries.
    give_up_ms: float = 0.0
    #: A waiting get's time-out is its wait plus this.
    wait_slack_ms: float = 1000.0
    #: Numbered commands that share one request, at the most, and their payloads.
    request_commands_max: int = 64
    request_bytes_max: int = 128 * 1024
    #: First pause after "not now"; it doubles up to `pause_ms_max`.
    pause_ms: float = 50.0
    #: The same where the obstacle passes quickly.
    pause_short_ms: float = 10.0
    pause_ms_max: float = 1000.0
    #: "Not now" of these codes is told at once: where many callers share a session, one must not hold up the others.
    told_at_once: frozenset[str] = frozenset()
    #: An address is left for the next one at once if its broker is a standby, but not twice within this time.
    next_address_ms: float = 100.0
    #: For people: the addresses that are tried.
    where: str = "the broker"

    @property
    def patience_ms(self) -> float:
        return self.give_up_ms or self.timeout_ms * self.tries
