"""The report of a campaign: counts, and every problem that was found. The judge is `oncemq.tools.faults.checker`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from oncemq.tools.faults.checker import Evidence, judge


class CampaignFailed(Exception):
    """A process ended that should not, or an event did not happen in time."""


class CampaignReport(msgspec.Struct, kw_only=True):
    campaign: str
    problems: list[str] = msgspec.field(default_factory=list)
    #: Kills of clients, by the point at which they died.
    kills: dict[str, int] = msgspec.field(default_factory=dict)
    broker_kills: dict[str, int] = msgspec.field(default_factory=dict)
    #: Messages that a client began to put, and those that were acknowledged.
    attempted: int = 0
    acknowledged: int = 0
    #: Messages that were stored at the end.
    stored: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    #: Processes that were fenced by another one.
    fenced: int = 0
    #: Further counts of the campaign.
    more: dict[str, int] = msgspec.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def kills_count(self) -> int:
        return sum(self.kills.values())

    @property
    def broker_kills_count(self) -> int:
        return sum(self.broker_kills.values())

    def add(self, evidence: Evidence) -> None:
        """Judge evidence, and add the verdict."""
        verdict = judge(evidence)
        self.problems += map(str, verdict.problems)
        self.attempted += verdict.attempted
        self.acknowledged += verdict.acknowledged
        self.stored += verdict.stored
        self.lost += verdict.lost
        self.duplicated += verdict.duplicated
        self.out_of_order += verdict.out_of_order

    def compare(
        self,
        attempted: Sequence[str],
        acknowledged: Collection[str],
        stored: Sequence[str],
        stream_of: Callable[[str], str] = lambda _: "",
        what: str = "messages",
    ) -> None:
        """Check that `stored` has each acknowledged message once, the others at most once, and each stream in order."""
        known = dict.fromkeys(acknowledged, -1)
        self.add(Evidence({what: [*attempted]}, {what: known}, {what: [*stored]}, stream_of=stream_of))

    def expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.problems.append(f"{what}: {found} instead of {expected}")
