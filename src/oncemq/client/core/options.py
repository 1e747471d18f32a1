"""Timeouts, limits and retry delays of a client core."""

from __future__ import annotations

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a core behaves. Every option has a default."""

    #: If no answer arrives for this long, a new connection is opened and the commands are sent again.
    timeout_ms: float = 1000.0
    #: Consecutive timeouts after which the broker counts as away.
    tries: int = 5
    #: Maximum number of numbered commands in flight.
    window: int = 64
    #: How long "not now" is retried; 0 = timeout_ms * tries.
    give_up_ms: float = 0.0
    #: The timeout of a long poll is its wait plus this.
    wait_slack_ms: float = 1000.0
    #: Maximum number of commands in one request, and maximum size of their payloads.
    request_commands_max: int = 64
    request_bytes_max: int = 128 * 1024
    #: First pause after "not now"; it doubles up to `pause_ms_max`.
    pause_ms: float = 50.0
    #: First pause if the obstacle is known to pass quickly.
    pause_short_ms: float = 10.0
    pause_ms_max: float = 1000.0
    #: A standby is left for the next address immediately, but not more often than once in this time.
    next_address_ms: float = 100.0
    #: The addresses that are tried, for error texts and logs.
    where: str = "the broker"

    @property
    def patience_ms(self) -> float:
        """How long a caller waits if it sets no limit."""
        return self.give_up_ms or self.timeout_ms * self.tries
