"""What an event answers: the number of a session, or an idempotency key."""

from __future__ import annotations

import msgspec


class Claim(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=0):
    """The number of a session that this event consumes."""

    session_id: int
    number: int
    #: Digest of the operation: a different operation under this number is refused with SEQUENCE_REUSED.
    digest: int
    #: Verdicts of lower numbers may be deleted.
    seen_below: int


class KeyClaim(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=1):
    """The idempotency key that this event consumes."""

    principal: str
    key: str
    digest: int


AnyClaim = Claim | KeyClaim
