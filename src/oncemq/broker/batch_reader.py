"""Reads the batches of replies, after the sync.

A damaged batch is logged once and reported to its consumers. It keeps nothing else from being delivered. A failing disk
may take seconds for each read, so one reply makes few reads that fail.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from oncemq.engine.decide.decision import Decision
from oncemq.engine.engine import Engine
from oncemq.engine.state.batch_index import Slice
from oncemq.journal.contract import Journal, RecordRef
from oncemq.protocol import errors
from oncemq.protocol.commands import Command, GetAny
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import AnyPart, BatchHead, GetAnyReply, GetReply, Refusal, Reply, TakeReply

log = logging.getLogger("oncemq.broker")

#: Maximum number of damaged batches that one refusal describes.
_DAMAGED_MAX = 100
#: Batches that the disk failed to read, after which no more reads are attempted for the same reply.
_FAILURES_MAX = 3
#: A pattern subscription that gets messages of other topics is told of a damaged batch at once, and then each time it
#: has met the batch this often.
REPORT_EVERY_GETS = 100
#: Damaged batches that are remembered.
_MET_MAX = 10_000

_BatchesT = TypeVar("_BatchesT", GetReply, AnyPart)
_Payloads = list[tuple[Frame, int]]


class BatchReader:
    def __init__(self, journal: Journal, engine: Engine) -> None:
        self._journal = journal
        self._engine = engine
        #: How often a damaged batch was met, by its journal position; and how often by each pattern subscription. Those
        #: that were met last are at the end.
        self._met: dict[int | tuple[str, str, int], int] = {}
        self._failures_left = _FAILURES_MAX

    def read(self, command: Command, decision: Decision, payloads: list[Frame]) -> Reply:
        """Return the reply to a command with the batches that the decision found, and add their payloads."""
        self._failures_left = _FAILURES_MAX
        reply, slices = decision.reply, decision.slices
        if isinstance(reply, GetAnyReply):
            assert isinstance(command, GetAny)
            return self._read_any(command, reply, decision, payloads)
        if isinstance(reply, TakeReply):
            return self._read_take(reply, slices, payloads)
        assert isinstance(reply, GetReply)
        found, damage = self._read(reply.topic_id, slices)
        if damage is not None and not found:
            return self._refusal(reply.topic_id, slices, damage)
        return _with_batches(reply, slices, found, payloads)

    def _read_take(self, reply: TakeReply, slices: Sequence[Slice], payloads: list[Frame]) -> Reply:
        """Return what can be read. Damaged batches stay leased."""
        found, damage = self._read(reply.topic_id, slices)
        readable = dict(enumerate(found))
        for index in self._damaged_last([entry.position for entry in slices], len(found) + 1):
            if self._failures_left:
                readable.update((index, one) for one in self._read_singly(reply.topic_id, slices[index : index + 1])[0])
        if damage is not None and not readable:
            return self._refusal(reply.topic_id, slices, damage)
        payloads += [payload for payload, _ in readable.values()]
        numbers = {index: number for number, index in enumerate(readable)}
        heads = tuple(
            msgspec.structs.replace(head, payload=numbers[head.payload], checksum=readable[head.payload][1])
            for head in reply.heads
            if head.payload in readable
        )
        return msgspec.structs.replace(reply, heads=heads, payloads=len(readable))

    def _read_any(self, command: GetAny, reply: GetAnyReply, decision: Decision, payloads: list[Frame]) -> Reply:
        """Return the topics that can be read, or a refusal if a damaged one is to be reported."""
        rest = iter(decision.slices)
        slices_of = [list(islice(rest, count)) for count in decision.counts]
        parts: list[AnyPart] = []
        read: list[Frame] = []
        damaged: list[tuple[AnyPart, list[Slice], errors.RecordCorrupt]] = []
        for index in self._damaged_last([slices[0].position for slices in slices_of]):
            part, slices = reply.parts[index], slices_of[index]
            found, damage = self._read(part.topic_id, slices) if self._failures_left else ([], None)
            if found:
                parts.append(_with_batches(part, slices, found, read))
            elif damage is not None:
                damaged.append((part, slices, damage))
                self._engine.defer(command.pattern, command.subscriber, part.topic_id)
        if damaged:
            met = [(command.pattern, command.subscriber, slices[0].position) for _, slices, _ in damaged]
            least = min(range(len(met)), key=lambda index: self._met.get(met[index], 0))
            if self._meet(met[least]) % REPORT_EVERY_GETS == 1 or not parts:
                part, slices, damage = damaged[least]
                return self._refusal(part.topic_id, slices, damage, f"topic '{part.topic}': ")
        payloads += read
        return msgspec.structs.replace(
            reply, parts=tuple(parts), is_all=reply.is_all and len(parts) == len(reply.parts)
        )

    def _damaged_last(self, positions: Sequence[int], first: int = 0) -> list[int]:
        """Return the indexes of these positions. Those that are known to be damaged are the last ones."""
        return sorted(range(first, len(positions)), key=lambda index: positions[index] in self._met)

    def _read(self, topic_id: int, slices: Sequence[Slice]) -> tuple[_Payloads, errors.RecordCorrupt | None]:
        """Return payloads and checksums up to the first damaged batch, and what is wrong with it."""
        try:
            return list(self._journal.read(_references(topic_id, slices))), None
        except errors.RecordCorrupt as error:
            found, damage = self._read_singly(topic_id, slices)
            if damage is None:
                log.warning("topic %x could be read at the second attempt only: %s", topic_id, error)
            return found, damage

    def _read_singly(self, topic_id: int, slices: Sequence[Slice]) -> tuple[_Payloads, errors.RecordCorrupt | None]:
        """Read batch by batch, so that a damaged one does not hide the good ones before it."""
        found: _Payloads = []
        for entry, reference in zip(slices, _references(topic_id, slices), strict=True):
            try:
                found += self._journal.read([reference])
            except errors.RecordCorrupt as damage:
                if self._meet(entry.position) == 1:
                    log.error("offset %d of topic %x can't be read: %s", entry.first_offset, topic_id, damage)
                self._failures_left -= _is_failure(damage)
                return found, damage
        return found, None

    def _meet(self, damaged: int | tuple[str, str, int]) -> int:
        """Return how often it was met, this time included."""
        times = self._met[damaged] = self._met.pop(damaged, 0) + 1
        if len(self._met) > _MET_MAX:
            del self._met[next(iter(self._met))]
        return times

    def _refusal(
        self, topic_id: int, slices: Sequence[Slice], damage: errors.RecordCorrupt, prefix: str = ""
    ) -> Refusal:
        """Describe the damaged batches that follow each other, so that a consumer can seek past them in one step; only
        the first one if the disk fails."""
        count = 1
        if not _is_failure(damage):
            references = _references(topic_id, slices[:_DAMAGED_MAX])
            while count < len(references) and self._is_damaged(references[count]):
                count += 1
        last = slices[count - 1]
        next_offset = last.first_offset + last.count
        return Refusal(
            damage.code,
            f"{prefix}offsets {slices[0].first_offset} to {next_offset - 1} are damaged on the broker's disk: "
            f"{damage.text} The next offset is {next_offset}.",
        )

    def _is_damaged(self, reference: RecordRef) -> bool:
        """Return whether a batch is damaged. One that the disk fails to read is not known to be."""
        try:
            self._journal.read([reference])
        except errors.RecordCorrupt as damage:
            return not _is_failure(damage)
        return False


def _is_failure(damage: errors.RecordCorrupt) -> bool:
    """Return whether the disk failed to read it. Other damage, as a wrong checksum, costs no time."""
    return isinstance(damage.__cause__, OSError)


def _references(topic_id: int, slices: Sequence[Slice]) -> list[RecordRef]:
    return [RecordRef(s.position, topic_id, s.first_offset - s.skip, s.size) for s in slices]


def _with_batches(
    reply: _BatchesT, slices: Sequence[Slice], found: Sequence[tuple[Frame, int]], payloads: list[Frame]
) -> _BatchesT:
    """Return the reply with the batches that were read. If fewer were read than decided, it ends after the last one."""
    heads = []
    for entry, (payload, checksum) in zip(slices, found, strict=False):
        payloads.append(payload)
        heads.append(BatchHead(entry.first_offset, entry.count, entry.skip, entry.time_ms, checksum))
    end = reply.next_position if len(heads) == len(slices) else heads[-1].first_offset + heads[-1].count
    return msgspec.structs.replace(reply, batches=tuple(heads), next_position=end)
