"""One request on its way through the broker: commands in, replies gathered, then sent at once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncemq import errors
from oncemq.engine.commands import Read
from oncemq.engine.index import Slice
from oncemq.engine.replies import BatchHead, GetReply, NotNow, Refusal, Reply
from oncemq.journal.contract import Journal, Wanted
from oncemq.wire.frames import Frame, Request, encode_response


class Job:
    __slots__ = ("_fetches", "payloads", "peer", "replies", "request")

    def __init__(self, peer: bytes, request: Request, payloads: list[Frame | None]) -> None:
        self.peer = peer
        self.request = request
        self.payloads = payloads
        self.replies: list[Reply] = []
        #: Which replies wait for which batches.
        self._fetches: list[tuple[int, tuple[Slice, ...]]] = []

    def answer(self, reply: Reply, slices: tuple[Slice, ...] = ()) -> None:
        if slices:
            self._fetches.append((len(self.replies), slices))
        self.replies.append(reply)

    def refuse(self, reply: NotNow) -> None:
        """Nothing more is decided: the rest gets the same answer."""
        while len(self.replies) < len(self.request.commands):
            self.replies.append(reply)

    def settle_start(self, topic_id: int, position: int) -> None:
        """A read that waits goes on where it stood when it came: "new" must not mean newer with each look."""
        command = self.request.commands[0]
        if isinstance(command, Read):
            settled = msgspec.structs.replace(command, topic_id=topic_id, position=position)
            self.request = msgspec.structs.replace(self.request, commands=(settled,))

    def encode(self, journal: Journal) -> list[Frame]:
        """The response. Reads what its gets found: only after the sync."""
        payloads: list[Frame] = []
        for slot, slices in self._fetches:
            reply = self.replies[slot]
            assert isinstance(reply, GetReply)
            self.replies[slot] = _fetch(journal, reply, slices, payloads)
        return encode_response(self.request.request_id, self.replies, payloads)


def _fetch(journal: Journal, reply: GetReply, slices: Sequence[Slice], payloads: list[Frame]) -> Reply:
    wanted = [Wanted(s.position, reply.topic_id, s.first_offset - s.skip, s.size) for s in slices]
    try:
        found = journal.read(wanted)
    except errors.RecordCorrupt as error:
        return Refusal(error.code, error.text)
    heads = []
    for entry, (payload, checksum) in zip(slices, found, strict=True):
        payloads.append(payload)
        heads.append(BatchHead(entry.first_offset, entry.count, entry.skip, entry.time_ms, checksum))
    return msgspec.structs.replace(reply, batches=tuple(heads))
