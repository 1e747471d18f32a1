"""A request while the broker works on it: its commands, the replies so far, and the response at the end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from oncemq.engine.decide.decision import Decision
from oncemq.engine.state.batch_index import Slice
from oncemq.journal.contract import Journal, RecordRef
from oncemq.protocol import errors
from oncemq.protocol.commands import Command, Get, GetAny, Read
from oncemq.protocol.frames import Frame, encode_reply, encode_response
from oncemq.protocol.replies import AnyPart, BatchHead, GetAnyReply, GetReply, NotNow, Refusal, Reply, TakeReply

log = logging.getLogger("oncemq.broker")

#: Maximum number of damaged batches that one refusal describes.
_DAMAGED_MAX = 100

_BatchesT = TypeVar("_BatchesT", GetReply, AnyPart)


class Request:
    __slots__ = (
        "_fetches",
        "commands",
        "encoded_bytes",
        "fetch_bytes",
        "payloads",
        "peer",
        "replies",
        "request_id",
    )

    def __init__(
        self, peer: bytes, request_id: int, commands: tuple[Command, ...], payloads: list[tuple[Frame, ...]]
    ) -> None:
        self.peer = peer
        self.request_id = request_id
        self.commands = commands
        self.payloads = payloads
        #: Encoded, except for those whose batches are read after the sync.
        self.replies: list[Reply | msgspec.Raw] = []
        #: Index of each reply whose batches are read after the sync, with the decision that found them.
        self._fetches: list[tuple[int, Decision]] = []
        #: Bytes of all batches that the replies return.
        self.fetch_bytes = 0
        #: Bytes of all other replies.
        self.encoded_bytes = 0

    @property
    def has_messages(self) -> bool:
        """Whether batches are read for it after the sync of this round."""
        return bool(self._fetches)

    def answer(self, decision: Decision) -> None:
        """Add the reply to the next command."""
        if decision.slices:
            self._fetches.append((len(self.replies), decision))
            self.fetch_bytes += sum(entry.size for entry in decision.slices)
            self.replies.append(decision.reply)
        else:
            encoded = encode_reply(decision.reply)
            self.encoded_bytes += len(encoded)
            self.replies.append(msgspec.Raw(encoded))

    def refuse_rest(self, reply: NotNow) -> None:
        """Give the same reply to all commands that have none."""
        while len(self.replies) < len(self.commands):
            self.replies.append(reply)

    def fix_position(self, decision: Decision) -> None:
        """Replace the command of a request that starts to wait by one that starts at the position it has now.

        Otherwise "new" would mean a later position with each attempt. The acks of a get were recorded by the first
        attempt and are removed, so that further attempts record nothing."""
        command, reply = self.commands[0], decision.reply
        fixed: Command
        if isinstance(command, Read):
            assert isinstance(reply, GetReply)
            fixed = msgspec.structs.replace(command, topic_id=reply.topic_id, position=reply.next_position)
        elif isinstance(command, Get):
            assert isinstance(reply, GetReply)
            fixed = msgspec.structs.replace(command, position=reply.next_position, ack=-1)
        elif isinstance(command, GetAny):
            fixed = msgspec.structs.replace(command, acks=())
        else:
            return
        self.commands = (fixed,)

    def encode_response(self, journal: Journal) -> list[Frame]:
        """Return the response. It reads batches from the journal, so it must be called after the sync."""
        payloads: list[Frame] = []
        for index, decision in self._fetches:
            self.replies[index] = _fetch(journal, decision, payloads)
        return encode_response(self.request_id, self.replies, payloads)


def _fetch(journal: Journal, decision: Decision, payloads: list[Frame]) -> Reply:
    reply, slices = decision.reply, decision.slices
    if isinstance(reply, GetAnyReply):
        return _fetch_any(journal, reply, decision, payloads)
    if isinstance(reply, TakeReply):
        return _fetch_take(journal, reply, slices, payloads)
    assert isinstance(reply, GetReply)
    found = _read(journal, reply.topic_id, slices)
    return found if isinstance(found, Refusal) else _with_batches(reply, slices, found, payloads)


def _fetch_take(journal: Journal, reply: TakeReply, slices: Sequence[Slice], payloads: list[Frame]) -> Reply:
    """Return what can be read. Damaged batches stay leased: they must not keep the others from being delivered."""
    found = _read(journal, reply.topic_id, slices)
    if isinstance(found, Refusal) or len(found) < len(slices):
        readable = _readable(journal, reply.topic_id, slices)
        if isinstance(found, Refusal) and not readable:
            return found
    else:
        readable = dict(enumerate(found))
    payloads += [payload for payload, _ in readable.values()]
    numbers = {index: number for number, index in enumerate(readable)}
    heads = tuple(
        msgspec.structs.replace(head, payload=numbers[head.payload], checksum=readable[head.payload][1])
        for head in reply.heads
        if head.payload in readable
    )
    return msgspec.structs.replace(reply, heads=heads, payloads=len(readable))


def _fetch_any(journal: Journal, reply: GetAnyReply, decision: Decision, payloads: list[Frame]) -> Reply:
    """Return the topics that can be read. A damaged batch must not keep the other topics from being delivered: it is
    reported when there is nothing else."""
    parts: list[AnyPart] = []
    refusal: Refusal | None = None
    first = 0
    for part, count in zip(reply.parts, decision.counts, strict=True):
        slices = decision.slices[first : first + count]
        first += count
        found = _read(journal, part.topic_id, slices)
        if isinstance(found, Refusal):
            refusal = refusal or Refusal(found.code, f"topic '{part.topic}': {found.text}")
        else:
            parts.append(_with_batches(part, slices, found, payloads))
    if refusal is not None and not parts:
        return refusal
    return msgspec.structs.replace(reply, parts=tuple(parts), is_all=reply.is_all and refusal is None)


def _with_batches(
    reply: _BatchesT, slices: Sequence[Slice], found: Sequence[tuple[bytes, int]], payloads: list[Frame]
) -> _BatchesT:
    """Return the reply with the batches that were read. If fewer were read than decided, it ends after the last one."""
    heads = []
    for entry, (payload, checksum) in zip(slices, found, strict=False):
        payloads.append(payload)
        heads.append(BatchHead(entry.first_offset, entry.count, entry.skip, entry.time_ms, checksum))
    end = reply.next_position if len(heads) == len(slices) else heads[-1].first_offset + heads[-1].count
    return msgspec.structs.replace(reply, batches=tuple(heads), next_position=end)


def _read(journal: Journal, topic_id: int, slices: Sequence[Slice]) -> list[tuple[bytes, int]] | Refusal:
    """Return payloads and checksums up to the first damaged record, or a refusal if the first one is damaged."""
    wanted = _references(topic_id, slices)
    try:
        return list(journal.read(wanted))
    except errors.RecordCorrupt as error:
        found = _read_until_damage(journal, wanted)
        if len(found) == len(wanted):
            log.warning("topic %x could be read at the second attempt only: %s", topic_id, error)
            return found
        log.error("offset %d of topic %x can't be read: %s", slices[len(found)].first_offset, topic_id, error)
        if found:
            return found
        return Refusal(error.code, _damage_text(journal, wanted, slices, error))


def _readable(journal: Journal, topic_id: int, slices: Sequence[Slice]) -> dict[int, tuple[bytes, int]]:
    """Return payloads and checksums of the slices that can be read, by their index."""
    found = {}
    for index, entry in enumerate(slices):
        for payload in _read_until_damage(journal, _references(topic_id, [entry])):
            found[index] = payload
    return found


def _references(topic_id: int, slices: Sequence[Slice]) -> list[RecordRef]:
    return [RecordRef(s.position, topic_id, s.first_offset - s.skip, s.size) for s in slices]


def _damage_text(
    journal: Journal, wanted: Sequence[RecordRef], slices: Sequence[Slice], error: errors.RecordCorrupt
) -> str:
    """Describe the damaged batches that follow each other, so that a consumer can seek past them in one step."""
    damaged = 1
    while damaged < min(len(wanted), _DAMAGED_MAX) and not _read_until_damage(journal, wanted[damaged : damaged + 1]):
        damaged += 1
    last = slices[damaged - 1]
    next_offset = last.first_offset + last.count
    return (
        f"offsets {slices[0].first_offset} to {next_offset - 1} are damaged on the broker's disk: {error.text} "
        f"The next offset is {next_offset}."
    )


def _read_until_damage(journal: Journal, wanted: Sequence[RecordRef]) -> list[tuple[bytes, int]]:
    """Read record by record, so that one damaged record does not hide the good ones before it."""
    found: list[tuple[bytes, int]] = []
    for one in wanted:
        try:
            found += journal.read([one])
        except errors.RecordCorrupt:
            break
    return found
