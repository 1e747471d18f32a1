"""What the text gateway must be told."""

from __future__ import annotations

import msgspec

from oncemq import errors


class TextSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Raises SettingInvalid for what can't be."""

    #: Where clients connect their REQ or DEALER sockets.
    listen: str = "tcp://127.0.0.1:5556"
    #: A longer request is refused. One that is twice as long is not even received: its peer is disconnected.
    request_bytes_max: int = 16 * 2**20
    #: Requests in hand, of all peers and of one. Beyond them, and beyond these bytes, the answer is OVERLOADED.
    requests_max: int = 10_000
    peer_requests_max: int = 100
    requests_bytes_max: int = 64 * 2**20
    #: A peer that does not read its answers for so long loses the next one.
    patience_ms: int = 10_000

    def __post_init__(self) -> None:
        for field in ("request_bytes_max", "requests_max", "peer_requests_max", "requests_bytes_max", "patience_ms"):
            if getattr(self, field) < 1:
                raise errors.SettingInvalid(f"{field} is at least 1")
