"""Events of shared subscriptions: members, leases, and how they end."""

from __future__ import annotations

import msgspec

from oncemq.engine.events.claims import AnyClaim
from oncemq.protocol.commands import Sharing


class Joined(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="jn"):
    """A client opened a shared subscription. Nothing changes."""

    claim: AnyClaim
    topic_id: int
    subscriber: str
    epoch: int
    acked: int
    sharing: Sharing


class Leased(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ls"):
    """A member of a shared subscription got a lease on messages."""

    topic_id: int
    subscriber: str
    member: str
    number: int
    token: int
    #: (first offset, count, number of deliveries including this one)
    ranges: tuple[tuple[int, int, int], ...]
    until_ms: int
    #: (first offset, count) of expired messages, which were skipped.
    skipped: tuple[tuple[int, int], ...] = ()
    #: (first offset, count) of blocked messages: another message of their key is in flight.
    blocked: tuple[tuple[int, int], ...] = ()


class Settled(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sl"):
    #: None for a part of a transaction.
    claim: AnyClaim | None
    topic_id: int
    subscriber: str
    #: (token, first offset, count)
    done: tuple[tuple[int, int, int], ...]
    #: (token, first offset, count, time from which on it may be delivered again)
    returned: tuple[tuple[int, int, int, int], ...]
    #: (first offset, count) of messages whose lease had ended.
    lost: tuple[tuple[int, int], ...] = ()


class Extended(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="xt"):
    topic_id: int
    subscriber: str
    tokens: tuple[int, ...]
    until_ms: int


class LeasesExpired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="lx"):
    """Leases have ended. Their messages may be delivered again."""

    topic_id: int
    subscriber: str
    tokens: tuple[int, ...]


class LeasesRestarted(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="la"):
    """After a recovery, every lease gets its full duration again."""

    time_ms: int


class MembersLeft(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ml"):
    """Members left or were idle. The messages of their leases may be delivered again."""

    topic_id: int
    subscriber: str
    members: tuple[str, ...]


SharedEvent = Joined | Leased | Settled | Extended | LeasesExpired | LeasesRestarted | MembersLeft
