"""The faults of connections of bytes in a run, chosen by its seed."""

from __future__ import annotations

from random import Random

import msgspec


class StreamFaults(msgspec.Struct, frozen=True, kw_only=True):
    #: The share of the processes that use the stream transport. The others use packets.
    share: float
    #: Average time between two resets of a connection.
    reset_every_ms: int
    #: Probability that a write is followed by a reset, while its bytes are under way.
    reset_after_write: float
    #: Probability that a connection is lost without a sign, for each of the two sides of a reset.
    half_open: float
    #: Probability that a connection is refused, although a broker listens.
    refusal: float
    #: Probability that bytes are split, and that a write or a read takes only a part of what it could.
    split: float
    #: Probability that bytes are delayed, and everything behind them.
    delay: float
    #: How many bytes may be written and not read.
    window_bytes: int
    connections_max: int


def stream_faults_of(seed: int) -> StreamFaults:
    random = Random(f"{seed}/streams")

    def rate(highest: float) -> float:
        return 0.0 if random.random() < 0.25 else random.random() * highest

    return StreamFaults(
        share=random.choice((0.0, 0.0, 0.5, 1.0, 1.0)),
        reset_every_ms=random.choice((40, 120, 1_000_000)),
        reset_after_write=rate(0.05),
        half_open=rate(0.6),
        refusal=rate(0.3),
        split=rate(0.5),
        delay=rate(0.1),
        window_bytes=random.choice((400, 1_500, 20_000)),
        connections_max=random.choice((50, 1_000)),
    )
