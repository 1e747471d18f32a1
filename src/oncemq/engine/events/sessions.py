"""Events of sessions, of what they and keys have claimed, of the registry, and of owners."""

from __future__ import annotations

import msgspec

from oncemq.engine.events.claims import AnyClaim


class SessionStarted(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sb"):
    """A session was created or taken over."""

    session_id: int
    name: str
    epoch: int
    nonce: int
    window: int
    anonymous: bool


class SessionEnded(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="se"):
    """A session was closed or expired, and is deleted with its verdicts."""

    session_id: int


class SessionDeleted(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sr"):
    claim: AnyClaim
    session_id: int


class Declined(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="no"):
    """A refusal. It consumes its number, and retries get the same refusal."""

    claim: AnyClaim
    code: str
    text: str


class Voided(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="vo"):
    """Nothing happened: a void number, or an abort of stages that do not exist."""

    claim: AnyClaim


class KeysExpired(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="kx"):
    """The oldest `count` idempotency keys have expired."""

    count: int


class KeysRemoved(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="kr"):
    """An operator freed idempotency keys of a principal before they expired."""

    claim: AnyClaim
    principal: str
    #: Each existed.
    keys: tuple[str, ...]


class RegistryChanged(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="rc"):
    claim: AnyClaim
    namespace: str
    key: str
    value: bytes | None
    version: int


class Owned(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="ow"):
    """Users own what they have created or taken over, or what was assigned to them."""

    #: None = it follows the event that has created it.
    claim: AnyClaim | None
    #: (kind, of, name, owner), see state/owners.py. An empty owner is nobody.
    entries: tuple[tuple[str, str, str, str], ...]


SessionEvent = (
    SessionStarted
    | SessionEnded
    | SessionDeleted
    | Declined
    | Voided
    | KeysExpired
    | KeysRemoved
    | RegistryChanged
    | Owned
)
