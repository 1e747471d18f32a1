"""A session: a sequence of numbered commands, each with one verdict."""

from __future__ import annotations

from oncemq.protocol.limits import NONCES_MAX
from oncemq.protocol.replies import Verdict


class Session:
    __slots__ = (
        "active_ms",
        "anonymous",
        "captured",
        "epoch",
        "forgotten_below",
        "id",
        "last_number",
        "name",
        "nonces",
        "verdicts",
        "window",
    )

    def __init__(self, session_id: int, name: str, anonymous: bool) -> None:
        self.id = session_id
        self.name = name
        self.anonymous = anonymous
        self.epoch = 0
        #: Nonces of the last hellos, the newest last.
        self.nonces: tuple[int, ...] = ()
        self.window = 1
        self.last_number = 0
        #: Number → (digest, verdict) of commands that the client may retry.
        self.verdicts: dict[int, tuple[int, Verdict]] = {}
        self.forgotten_below = 1
        self.active_ms = 0
        #: Generation of the last capture that contains this session (snapshot/capture.py).
        self.captured = 0

    def start(self, epoch: int, nonce: int, window: int, time_ms: int) -> None:
        self.epoch = epoch
        self.nonces = (*self.nonces, nonce)[-NONCES_MAX:]
        self.window = window
        self.active_ms = time_ms

    def remember(self, number: int, digest: int, seen_below: int, verdict: Verdict, time_ms: int) -> None:
        """Store the verdict of a number, and delete the verdicts that the client has received."""
        self.last_number = number
        self.active_ms = time_ms
        self.verdicts[number] = (digest, verdict)
        if seen_below > self.forgotten_below:
            for seen in range(self.forgotten_below, seen_below):
                self.verdicts.pop(seen, None)
            self.forgotten_below = seen_below
