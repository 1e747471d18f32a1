"""Recovery: restores the engine from the newest snapshot and the groups after it."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from oncemq.engine.engine import ApplyFailed, Engine
from oncemq.engine.events import Event
from oncemq.journal.contract import Journal, LoadedJournal, ReplayedGroup
from oncemq.journal.verification import unfinished_copy
from oncemq.protocol import errors
from oncemq.protocol.limits import Limits

log = logging.getLogger("oncemq.broker")

#: Space in a group that the largest batch leaves to its event and headers.
_PUT_OVERHEAD_BYTES = 8 * 1024
#: The events of the first group of a copy (offline/copy.py). A later snapshot marks the copy as complete; without
#: one, the copy must not be served. No event has this name.
UNFINISHED_COPY = msgspec.msgpack.encode([["unfinished copy"]])

_decode_events = msgspec.msgpack.Decoder(list[Event]).decode


def recover(journal: Journal, limits: Limits, counters: Counter[str]) -> Engine:
    """Return the engine. Raise JournalCorrupt if the journal holds an event that can't be applied. On any failure the
    journal is closed, which also releases its lease."""
    try:
        return _recover(journal, limits, counters)
    except BaseException:
        with suppress(errors.JournalError):
            journal.close()
        raise


def _recover(journal: Journal, limits: Limits, counters: Counter[str]) -> Engine:
    loaded = journal.load()
    engine = new_engine(journal, limits)
    for _ in replay(journal, loaded, engine):
        counters["groups_replayed"] += 1
    engine.state.is_recovered = True
    engine.state.term = journal.term
    return engine


def replay(journal: Journal, loaded: LoadedJournal, engine: Engine) -> Iterator[ReplayedGroup]:
    """Restore the snapshot and apply the groups after it. Yield each group when it is applied."""
    try:
        if loaded.snapshot is not None:
            engine.restore(loaded.snapshot)
        for group in loaded.groups:
            if group.events == UNFINISHED_COPY:
                raise unfinished_copy(journal.describe())
            for event in _decode_events(group.events) if group.events else ():
                engine.apply(group.time_ms, event)
            engine.pass_time(group.time_ms)
            yield group
    except (msgspec.MsgspecError, ValueError, ApplyFailed) as error:
        raise errors.JournalCorrupt(f"{journal.describe()} holds an event that can't be applied: {error}") from error


def count_missing_extents(engine: Engine, journal: Journal, counters: Counter[str]) -> None:
    """Log and count the extents that hold messages and do not exist. Replay did not need them: the state is complete,
    and everything else can be served. A read of what is gone is refused with RECORD_CORRUPT."""
    found = {extent.number for extent in journal.extents()}
    missing = sorted(number for number in engine.state.live if number not in found)
    counters["extents_missing"] += len(missing)
    for number in missing:
        log.error(
            "%s: extent %d is missing, with %d bytes of messages that are still needed. Everything else is served. "
            "Restore it if you have a copy of it; otherwise consumers have to seek past these messages "
            "(docs/journal.md, Lost segments)",
            journal.describe(),
            number,
            engine.state.live[number],
        )


def new_engine(journal: Journal, limits: Limits) -> Engine:
    """Return an empty engine. Its topic ids start at a number derived from the journal's id, so that ids of another
    journal are not valid by accident. They stay below 2**53, so that no JSON reader rounds them.

    The journal's id itself stays secret: it seeds the checksums, so that no payload can imitate a group."""
    public_id = hashlib.sha256(journal.journal_id).digest()[:16]
    first_topic_id = (int.from_bytes(public_id[:4], "little") >> 4 << 24) + 1
    return Engine(public_id.hex(), first_topic_id, journal.extent_bytes, limits)


def fitting(limits: Limits, journal: Journal) -> Limits:
    """Return limits under which every batch fits into a segment. The size of the segments is that with which the
    journal was created, so they may be too small for `batch_bytes_max`."""
    bytes_max = max(1, journal.group_capacity_bytes - _PUT_OVERHEAD_BYTES)
    if limits.batch_bytes_max <= bytes_max:
        return limits
    log.info(
        "%s has segments of %d bytes: a batch has at most %d bytes, not %d (batch_bytes_max)",
        journal.describe(),
        journal.extent_bytes,
        bytes_max,
        limits.batch_bytes_max,
    )
    return msgspec.structs.replace(limits, batch_bytes_max=bytes_max)
