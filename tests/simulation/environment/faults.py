"""The faults and limits of a run, chosen by its seed: network faults, crashes of the broker, small limits."""

from __future__ import annotations

from random import Random

import msgspec

from oncemq.broker.housekeeping import Policy
from oncemq.protocol.limits import Limits


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    # The network.
    loss: float
    duplication: float
    #: Probability that a packet is delayed, so that others overtake it.
    reordering: float
    damage: float
    #: Average time between two network partitions of a client.
    partition_every_ms: int
    # The broker.
    crash_every_ms: int
    #: Probabilities of how the broker ends. The remaining probability is a kill.
    power_loss: float
    clean_stop: float
    failed_sync: float
    during_recovery: float
    #: What a power loss does to pending writes (disk.py).
    fates: tuple[float, float, float]
    #: Probability that the broker dies again soon after a start.
    soon_again: float
    full_every_ms: int
    # Clients.
    client_crash_every_ms: int
    think_ms: int
    segment_bytes: int
    duration_ms: int
    policy: Policy
    limits: Limits
    #: Probability that the clock is far ahead at a start of the broker.
    clock_leap: float


def has_standby(seed: int) -> bool:
    """Return whether two brokers share a journal in memory. All other runs have one broker with a disk."""
    return seed > 0 and seed % 10 == 0


def faults_of(seed: int) -> Faults:
    random = Random(f"{seed}/weather")
    calm = random.random() < 0.1

    def rate(highest: float) -> float:
        return 0.0 if calm or random.random() < 0.25 else random.random() * highest

    return Faults(
        loss=rate(0.3),
        duplication=rate(0.3),
        reordering=rate(0.3),
        damage=rate(0.05),
        partition_every_ms=random.choice((800, 2_000, 1_000_000)),
        crash_every_ms=random.choice((150, 250, 400)),
        power_loss=random.choice((0.2, 0.5, 0.8)),
        clean_stop=0.08,
        failed_sync=0.1,
        during_recovery=random.choice((0.2, 0.4, 0.6)),
        fates=random.choice(((0.4, 0.65, 0.9), (0.4, 0.5, 0.6))),
        soon_again=random.choice((0.1, 0.4)),
        full_every_ms=random.choice((1_500, 1_000_000)),
        client_crash_every_ms=random.choice((400, 1_000, 4_000)),
        think_ms=random.choice((75, 135, 220)),
        segment_bytes=random.choice((24, 32, 48)) * 1024,
        duration_ms=1_700,
        policy=_policy_of(random),
        limits=_limits_of(random),
        clock_leap=random.choice((0.0, 0.0, 0.2)),
    )


def _policy_of(random: Random) -> Policy:
    return Policy(
        snapshot_bytes=random.choice((16, 32, 96)) * 1024,
        snapshot_events=random.choice((20, 50, 200)),
        copy_round_bytes=random.choice((600, 4096)),
        copy_below_share=random.choice((0.3, 0.6)),
        copy_extents_min=random.choice((1, 3)),
        look_every_ms=random.choice((40, 120)),
    )


def _limits_of(random: Random) -> Limits:
    return Limits(
        batch_bytes_max=2_000,
        get_bytes_max=random.choice((300, 1_000, 4_000)),
        group_bytes_max=random.choice((1_500, 6_000, 20_000)),
        topics_max=24,
        session_idle_ms=random.choice((400, 1_200)),
        keys_max=random.choice((8, 40)),
        key_ms=1_000,
        registry_entries_max=3,
        stage_ms=random.choice((300, 900)),
        stages_max=random.choice((4, 30)),
        clock_leap_ms_max=2_000,
    )
