"""One request on its way through the broker: commands in, replies gathered, then sent at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from oncemq import errors
from oncemq.engine.commands import Command, Get, Read
from oncemq.engine.index import Slice
from oncemq.engine.replies import BatchHead, GetReply, NotNow, Refusal, Reply
from oncemq.journal.contract import Journal, Wanted
from oncemq.wire.frames import Frame, Request, encode_response

log = logging.getLogger("oncemq.broker")


class Job:
    __slots__ = ("_fetches", "fetch_bytes", "payloads", "peer", "replies", "request")

    def __init__(self, peer: bytes, request: Request, payloads: list[Frame | None]) -> None:
        self.peer = peer
        self.request = request
        self.payloads = payloads
        self.replies: list[Reply] = []
        #: Which replies wait for which batches.
        self._fetches: list[tuple[int, tuple[Slice, ...]]] = []
        #: What its gets will read, all together.
        self.fetch_bytes = 0

    def answer(self, reply: Reply, slices: tuple[Slice, ...] = ()) -> None:
        if slices:
            self._fetches.append((len(self.replies), slices))
            self.fetch_bytes += sum(entry.size for entry in slices)
        self.replies.append(reply)

    def refuse(self, reply: NotNow) -> None:
        """Nothing more is decided: the rest gets the same answer."""
        while len(self.replies) < len(self.request.commands):
            self.replies.append(reply)

    def settle_start(self, topic_id: int, position: int) -> None:
        """What waits goes on where it stood when it came: "new" must not mean newer with each look. The ack that
        rode on a get has been taken, so that looking again records nothing."""
        command = self.request.commands[0]
        settled: Command
        if isinstance(command, Read):
            settled = msgspec.structs.replace(command, topic_id=topic_id, position=position)
        else:
            assert isinstance(command, Get)
            settled = msgspec.structs.replace(command, position=position, ack=-1)
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
        found = _read_until_damage(journal, wanted)
        log.error("offset %d of topic %x can't be read: %s", slices[len(found)].first_offset, reply.topic_id, error)
        if not found:
            text = f"offset {slices[0].first_offset} is damaged on the broker's disk: {error.text}"
            return Refusal(error.code, text)
    heads = []
    for entry, (payload, checksum) in zip(slices, found, strict=False):
        payloads.append(payload)
        heads.append(BatchHead(entry.first_offset, entry.count, entry.skip, entry.time_ms, checksum))
    next_position = heads[-1].first_offset + heads[-1].count
    return msgspec.structs.replace(reply, batches=tuple(heads), next_position=next_position)


def _read_until_damage(journal: Journal, wanted: Sequence[Wanted]) -> list[tuple[bytes, int]]:
    """One damaged record must not hide the good ones before it."""
    found: list[tuple[bytes, int]] = []
    for one in wanted:
        try:
            found += journal.read([one])
        except errors.RecordCorrupt:
            break
    return found
