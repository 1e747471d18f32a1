"""What a caller sets for one consumer of a shared subscription."""

from __future__ import annotations

import msgspec


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one consumer of a shared subscription. Raises ValueError."""

    #: How many messages are taken before they are requested; None: about as many as are processed in a second.
    prefetch: int | None = None
    #: About how many bytes are taken ahead.
    prefetch_bytes: int = 1024 * 1024
    #: How many tasks may be delivered and not settled.
    unsettled_max: int = 1000
    #: Leases are renewed automatically, each for at most `extend_max_s`.
    auto_extend: bool = True
    extend_max_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.unsettled_max < 1 or self.prefetch_bytes < 1:
            raise ValueError("unsettled_max and prefetch_bytes must be at least 1")
        if self.prefetch is not None and self.prefetch < 0:
            raise ValueError(f"prefetch must not be negative, but is {self.prefetch}")
