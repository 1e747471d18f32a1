"""One request on its way through the broker: commands in, replies gathered, then sent at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from oncemq.engine.decide.reads import Reading
from oncemq.engine.state.batch_index import Slice
from oncemq.journal.contract import Journal, RecordRef
from oncemq.protocol import errors
from oncemq.protocol.commands import Command, Get, GetAny, Read
from oncemq.protocol.frames import Frame, Request, encode_response
from oncemq.protocol.replies import AnyPart, BatchHead, GetAnyReply, GetReply, NotNow, Refusal, Reply, TakeReply

log = logging.getLogger("oncemq.broker")


class Job:
    __slots__ = ("_fetches", "fetch_bytes", "payloads", "peer", "replies", "request")

    def __init__(self, peer: bytes, request: Request, payloads: list[tuple[Frame, ...]]) -> None:
        self.peer = peer
        self.request = request
        self.payloads = payloads
        self.replies: list[Reply] = []
        #: Which replies wait for which batches.
        self._fetches: list[tuple[int, Reading]] = []
        #: What its gets will read, all together.
        self.fetch_bytes = 0

    def answer(self, decision: Reading) -> None:
        if decision.slices:
            self._fetches.append((len(self.replies), decision))
            self.fetch_bytes += sum(entry.size for entry in decision.slices)
        self.replies.append(decision.reply)

    def refuse(self, reply: NotNow) -> None:
        """Nothing more is decided: the rest gets the same answer."""
        while len(self.replies) < len(self.request.commands):
            self.replies.append(reply)

    def settle_start(self, decision: Reading) -> None:
        """What waits goes on where it stood when it came: "new" must not mean newer with each look. The acks that
        rode on a get have been taken, so that looking again records nothing."""
        command, reply = self.request.commands[0], decision.reply
        settled: Command
        if isinstance(command, Read):
            assert isinstance(reply, GetReply)
            settled = msgspec.structs.replace(command, topic_id=reply.topic_id, position=reply.next_position)
        elif isinstance(command, Get):
            assert isinstance(reply, GetReply)
            settled = msgspec.structs.replace(command, position=reply.next_position, ack=-1)
        elif isinstance(command, GetAny):
            settled = msgspec.structs.replace(command, acks=())
        else:
            return
        self.request = msgspec.structs.replace(self.request, commands=(settled,))

    def encode(self, journal: Journal) -> list[Frame]:
        """The response. Reads what its gets found: only after the sync."""
        payloads: list[Frame] = []
        for slot, decision in self._fetches:
            self.replies[slot] = _fetch(journal, decision, payloads)
        return encode_response(self.request.request_id, self.replies, payloads)


def _fetch(journal: Journal, decision: Reading, payloads: list[Frame]) -> Reply:
    reply, slices = decision.reply, decision.slices
    if isinstance(reply, GetReply):
        found = _read(journal, reply.topic_id, slices)
        if isinstance(found, Refusal):
            return found
        heads = _heads(slices, found, payloads)
        return msgspec.structs.replace(reply, batches=heads, next_position=_end(reply, slices, heads))
    if isinstance(reply, GetAnyReply):
        return _fetch_any(journal, reply, decision, payloads)
    assert isinstance(reply, TakeReply)
    return _fetch_tasks(journal, reply, slices, payloads)


def _fetch_any(journal: Journal, reply: GetAnyReply, decision: Reading, payloads: list[Frame]) -> Reply:
    parts: list[AnyPart] = []
    first = 0
    for part, count in zip(reply.parts, decision.counts, strict=True):
        slices = decision.slices[first : first + count]
        first += count
        found = _read(journal, part.topic_id, slices)
        if isinstance(found, Refusal):
            if not parts:
                return found
            # What was found before it goes first; the damage is met again by the next get.
            return msgspec.structs.replace(reply, parts=tuple(parts), is_all=False)
        heads = _heads(slices, found, payloads)
        parts.append(msgspec.structs.replace(part, batches=heads, next_position=_end(part, slices, heads)))
    return msgspec.structs.replace(reply, parts=tuple(parts))


def _fetch_tasks(journal: Journal, reply: TakeReply, slices: Sequence[Slice], payloads: list[Frame]) -> Reply:
    found = _read(journal, reply.topic_id, slices)
    if isinstance(found, Refusal):
        return found
    payloads += [payload for payload, _ in found]
    heads = tuple(
        msgspec.structs.replace(head, checksum=found[head.payload][1])
        for head in reply.heads
        if head.payload < len(found)
    )
    return msgspec.structs.replace(reply, heads=heads, payloads=len(found))


def _heads(slices: Sequence[Slice], found: Sequence[tuple[bytes, int]], payloads: list[Frame]) -> tuple[BatchHead, ...]:
    heads = []
    for entry, (payload, checksum) in zip(slices, found, strict=False):
        payloads.append(payload)
        heads.append(BatchHead(entry.first_offset, entry.count, entry.skip, entry.time_ms, checksum))
    return tuple(heads)


def _end(reply: GetReply | AnyPart, slices: Sequence[Slice], heads: Sequence[BatchHead]) -> int:
    """Where to go on: as was decided, or behind what could be read."""
    return reply.next_position if len(heads) == len(slices) else heads[-1].first_offset + heads[-1].count


def _read(journal: Journal, topic_id: int, slices: Sequence[Slice]) -> list[tuple[bytes, int]] | Refusal:
    """Payloads and their checksums, up to the first damaged one; a refusal where that is the first."""
    wanted = [RecordRef(s.position, topic_id, s.first_offset - s.skip, s.size) for s in slices]
    try:
        return list(journal.read(wanted))
    except errors.RecordCorrupt as error:
        found = _read_until_damage(journal, wanted)
        log.error("offset %d of topic %x can't be read: %s", slices[len(found)].first_offset, topic_id, error)
        if found:
            return found
        text = f"offset {slices[0].first_offset} is damaged on the broker's disk: {error.text}"
        return Refusal(error.code, text)


def _read_until_damage(journal: Journal, wanted: Sequence[RecordRef]) -> list[tuple[bytes, int]]:
    """One damaged record must not hide the good ones before it."""
    found: list[tuple[bytes, int]] = []
    for one in wanted:
        try:
            found += journal.read([one])
        except errors.RecordCorrupt:
            break
    return found
