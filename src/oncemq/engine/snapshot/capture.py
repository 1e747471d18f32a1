"""A snapshot of the state that is taken while the engine runs.

A capture represents the state at one group boundary. It is taken in small chunks between rounds. A topic or session
that is about to change before its turn is captured first (`before_…_changes`), so that all chunks show the state at
that boundary. Immutable data (stages, keys, registry, writers, owners) is copied by reference at the start. Pattern
subscriptions, which are few, are copied completely.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import msgspec

from oncemq.engine.snapshot.shared_image import SharedImage, capture_shared, restore_shared
from oncemq.engine.state.expiry import rebuild_expiries, schedule_quota
from oncemq.engine.state.key_table import KeyEntry
from oncemq.engine.state.owners import OwnerEntry
from oncemq.engine.state.pattern_subscription import PatternSubscription
from oncemq.engine.state.session import Session
from oncemq.engine.state.state import StageEntry, State, WriterEntry
from oncemq.engine.state.topic import DelayedBatch, Subscription, Topic
from oncemq.engine.state.topic_schema import TopicSchema
from oncemq.protocol.commands import BY_PATTERN, REFUSE
from oncemq.protocol.limits import Limits
from oncemq.protocol.replies import RegistryEntry, Verdict

CHUNK_ENTITIES = 200
#: A chunk also ends when the indexes of its topics have this size. A larger index is a chunk of its own.
CHUNK_INDEX_BYTES = 256 * 1024
_OWNERS_PER_IMAGE = 50


class HeadImage(msgspec.Struct, array_like=True, frozen=True, tag="head"):
    next_topic_id: int
    next_epoch: int
    time_ms: int


class TopicImage(msgspec.Struct, array_like=True, frozen=True, tag="topic"):
    id: int
    name: str
    stays: bool
    retain_ms: int
    retain_bytes: int
    next_offset: int
    trimmed: int
    above_trim_bytes: int
    #: (subscriber, acked, epoch, held until)
    subscriptions: tuple[tuple[str, int, int, int], ...]
    first: int
    #: The columns of the index, little-endian.
    ends: bytes
    positions: bytes
    sizes: bytes
    skips: bytes
    times: bytes
    expires: bytes = b""
    #: (first offset, hashes) of entries with key hashes; and the offset from which on all entries have them.
    keys: tuple[tuple[int, bytes], ...] = ()
    keyed_from: int = 0
    quota_bytes: int = 0
    overflow: str = REFUSE
    delayed: tuple[DelayedBatch, ...] = ()
    #: (subscriber, sought epoch, dropped, shared) of subscriptions where one of them is set.
    more: tuple[tuple[str, int, int, SharedImage | None], ...] = ()
    expired_names: tuple[str, ...] = ()
    #: (subscriber, idle_ms) of subscriptions that are deleted when their owner is idle.
    idle: tuple[tuple[str, int], ...] = ()
    schema: TopicSchema | None = None


class PatternImage(msgspec.Struct, array_like=True, frozen=True, tag="pattern"):
    pattern: str
    subscriber: str
    epoch: int
    sought_epoch: int
    idle_ms: int = 0


class SessionImage(msgspec.Struct, array_like=True, frozen=True, tag="session"):
    id: int
    name: str
    anonymous: bool
    epoch: int
    nonces: tuple[int, ...]
    window: int
    last_number: int
    forgotten_below: int
    active_ms: int
    #: (number, digest, verdict)
    verdicts: tuple[tuple[int, int, Verdict], ...]


class StageImage(msgspec.Struct, array_like=True, frozen=True, tag="stage"):
    entry: StageEntry


class KeyImage(msgspec.Struct, array_like=True, frozen=True, tag="key"):
    entry: KeyEntry


class RegistryImage(msgspec.Struct, array_like=True, frozen=True, tag="registry"):
    namespace: str
    entry: RegistryEntry


class WriterImage(msgspec.Struct, array_like=True, frozen=True, tag="writer"):
    writer: str
    batch: int
    commits: tuple[tuple[int, bytes], ...] = ()


class OwnersImage(msgspec.Struct, array_like=True, frozen=True, tag="owners"):
    entries: tuple[OwnerEntry, ...]


Image = (
    HeadImage
    | PatternImage
    | TopicImage
    | SessionImage
    | StageImage
    | KeyImage
    | RegistryImage
    | WriterImage
    | OwnersImage
)

encode_images = msgspec.msgpack.Encoder().encode
decode_images = msgspec.msgpack.Decoder(list[Image]).decode

_COLUMNS = (("ends", "q"), ("positions", "q"), ("sizes", "I"), ("skips", "I"), ("times", "q"), ("expires", "q"))
_IS_LITTLE_ENDIAN = array("H", [1]).tobytes() == b"\1\0"


def little_endian(column: array[int]) -> array[int]:
    """Convert a column between the machine's byte order and little-endian, in place."""
    if not _IS_LITTLE_ENDIAN:
        column.byteswap()
    return column


def _topic_image(topic: Topic) -> TopicImage:
    index = topic.index
    columns = {name: little_endian(getattr(index, name)[index.head :]).tobytes() for name, _ in _COLUMNS}
    more = tuple(
        (s.subscriber, s.sought_epoch, s.dropped, capture_shared(s.shared) if s.shared is not None else None)
        for s in topic.subscriptions.values()
        if s.sought_epoch or s.dropped or s.shared is not None
    )
    return TopicImage(
        topic.id,
        topic.name,
        topic.stays,
        topic.retain_ms,
        topic.retain_bytes,
        topic.next_offset,
        topic.trimmed,
        topic.above_trim_bytes,
        tuple((s.subscriber, s.acked, s.epoch, s.held_until_ms) for s in topic.subscriptions.values()),
        index.first,
        **columns,
        keys=tuple(index.keys.items()),
        keyed_from=topic.keyed_from,
        quota_bytes=topic.quota_bytes,
        overflow=topic.overflow,
        delayed=tuple(topic.delayed.values()),
        more=more,
        expired_names=tuple(topic.expired_names),
        idle=tuple((s.subscriber, s.idle_ms) for s in topic.subscriptions.values() if s.idle_ms),
        schema=topic.schema,
    )


def _index_bytes(image: Image) -> int:
    """Return the size of the largest columns of a topic's index; 0 for other entities."""
    return len(image.ends) + len(image.positions) + len(image.times) if isinstance(image, TopicImage) else 0


def _session_image(session: Session) -> SessionImage:
    return SessionImage(
        session.id,
        session.name,
        session.anonymous,
        session.epoch,
        session.nonces,
        session.window,
        session.last_number,
        session.forgotten_below,
        session.active_ms,
        tuple((number, digest, verdict) for number, (digest, verdict) in session.verdicts.items()),
    )


class Capture:
    """A snapshot in progress. Start it at a group boundary; call `chunk` until it returns None."""

    def __init__(self, state: State, generation: int) -> None:
        self.generation = generation
        self._state = state
        self._early: list[Image] = []
        self._topics = list(state.topics_by_id.values())
        self._sessions = list(state.sessions_by_id.values())
        self._images = self._iterate(
            HeadImage(state.next_topic_id, state.next_epoch, state.time_ms),
            [
                PatternImage(entry.pattern, entry.subscriber, entry.epoch, entry.sought_epoch, entry.idle_ms)
                for entry in state.patterns.values()
            ],
            list(state.stages.values()),
            list(state.keys),
            [(space, list(entries.values())) for space, entries in state.registry.items()],
            list(state.writers.items()),
            list(state.owners),
        )
        state.capture = self

    def _iterate(
        self,
        head: HeadImage,
        patterns: list[PatternImage],
        stages: list[StageEntry],
        keys: list[KeyEntry],
        registry: list[tuple[str, list[RegistryEntry]]],
        writers: list[tuple[str, WriterEntry]],
        owners: list[OwnerEntry],
    ) -> Iterator[Image]:
        yield head
        yield from patterns
        for topic in self._topics:
            if topic.captured != self.generation:
                topic.captured = self.generation
                yield _topic_image(topic)
        for session in self._sessions:
            if session.captured != self.generation:
                session.captured = self.generation
                yield _session_image(session)
        yield from (StageImage(stage) for stage in stages)
        yield from (KeyImage(key) for key in keys)
        yield from (RegistryImage(space, entry) for space, entries in registry for entry in entries)
        yield from (WriterImage(writer, entry.batch, entry.commits) for writer, entry in writers)
        for at in range(0, len(owners), _OWNERS_PER_IMAGE):
            yield OwnersImage(tuple(owners[at : at + _OWNERS_PER_IMAGE]))

    def before_topic_changes(self, topic: Topic) -> None:
        if topic.captured != self.generation:
            topic.captured = self.generation
            self._early.append(_topic_image(topic))

    def before_session_changes(self, session: Session) -> None:
        if session.captured != self.generation:
            session.captured = self.generation
            self._early.append(_session_image(session))

    def chunk(self, entities_max: int = CHUNK_ENTITIES) -> bytes | None:
        """Return the next encoded chunk; None = the snapshot is complete."""
        images = self._early
        self._early = []
        index_bytes = sum(map(_index_bytes, images))
        while len(images) < entities_max and index_bytes < CHUNK_INDEX_BYTES:
            image = next(self._images, None)
            if image is None:
                break
            images.append(image)
            index_bytes += _index_bytes(image)
        if images:
            return encode_images(images)
        self._state.capture = None
        return None

    def abandon(self) -> None:
        self._state.capture = None


def restore(state: State, limits: Limits, chunks: Iterable[bytes]) -> None:
    """Restore an empty state from the chunks of a snapshot."""
    for chunk in chunks:
        for image in decode_images(chunk):
            _restore(state, limits, image)
    for topic in state.topics_by_id.values():
        for position, size in topic.index.entries():
            state.count_live(position, size)
        for delayed in topic.delayed.values():
            state.count_live(delayed.position, delayed.size)
            state.unpublished[delayed.position] = delayed.delay_id
        _attach(state, topic)
    for stage in state.stages.values():
        for batch in stage.batches:
            state.count_live(batch.position, batch.size)
            state.unpublished[batch.position] = stage.name


def _restore(state: State, limits: Limits, image: Image) -> None:
    if isinstance(image, TopicImage):
        _restore_topic(state, image)
    elif isinstance(image, PatternImage):
        pattern = PatternSubscription(image.pattern, image.subscriber, image.epoch, image.sought_epoch, image.idle_ms)
        state.patterns[(image.pattern, image.subscriber)] = pattern
        if image.idle_ms:
            state.schedule.idle.add(0, (0, pattern.key))
    elif isinstance(image, SessionImage):
        _restore_session(state, limits, image)
    elif isinstance(image, StageImage):
        state.stages[image.entry.name] = image.entry
        state.schedule.stages.add(image.entry.expires_ms, image.entry.name)
    elif isinstance(image, KeyImage):
        state.keys.add(image.entry)
    elif isinstance(image, RegistryImage):
        state.registry.setdefault(image.namespace, {})[image.entry.key] = image.entry
        state.registry_entries += 1
    elif isinstance(image, WriterImage):
        state.writers[image.writer] = WriterEntry(image.batch, image.commits)
    elif isinstance(image, OwnersImage):
        for entry in image.entries:
            state.owners.assign(*entry)
    else:
        state.next_topic_id = image.next_topic_id
        state.next_epoch = image.next_epoch
        state.time_ms = image.time_ms


def _restore_topic(state: State, image: TopicImage) -> None:
    topic = Topic(image.id, image.name, image.stays, image.retain_ms, image.retain_bytes)
    topic.next_offset = image.next_offset
    topic.trimmed = image.trimmed
    topic.above_trim_bytes = image.above_trim_bytes
    for subscriber, acked, epoch, held_until_ms in image.subscriptions:
        topic.subscriptions[subscriber] = Subscription(subscriber, acked, epoch, held_until_ms)
    topic.update_low_watermark()
    topic.index.first = image.first
    for name, kind in _COLUMNS:
        setattr(topic.index, name, little_endian(array(kind, getattr(image, name))))
    if not image.expires:
        topic.index.expires = array("q", bytes(len(image.ends)))
    topic.stored_bytes = sum(topic.index.sizes)
    _restore_topic_extras(state, topic, image)
    state.topics[topic.name] = state.topics_by_id[topic.id] = topic
    state.subscriptions += len(topic.subscriptions)
    if topic.retain_ms and topic.trimmed < topic.next_offset:
        state.schedule.retention.add(0, topic.id)
    if topic.retain_bytes:
        state.schedule.oversized.add(topic.id)
    schedule_quota(state, topic)


def _restore_topic_extras(state: State, topic: Topic, image: TopicImage) -> None:
    topic.quota_bytes, topic.overflow = image.quota_bytes, image.overflow
    topic.keyed_from = image.keyed_from
    topic.schema = image.schema
    topic.expired_names = dict.fromkeys(image.expired_names)
    index = topic.index
    index.keys = dict(image.keys)
    index.expiring = sum(1 for expires_ms in index.expires if expires_ms)
    rebuild_expiries(topic)
    if topic.expiries:
        state.schedule.expiry.add(topic.expiries[0][0], topic.id)
    for batch in image.delayed:
        topic.delayed[batch.delay_id] = batch
        topic.delayed_bytes += batch.size
        topic.delayed_count += batch.count
        state.schedule.delays[batch.delay_id] = topic.id
        state.schedule.due.add(batch.due_ms, batch.delay_id)
    state.delayed += len(topic.delayed)
    for subscriber, idle_ms in image.idle:
        topic.subscriptions[subscriber].idle_ms = idle_ms
        state.schedule.idle.add(0, (topic.id, subscriber))
    for subscriber, sought_epoch, dropped, shared in image.more:
        subscription = topic.subscriptions[subscriber]
        subscription.sought_epoch, subscription.dropped = sought_epoch, dropped
        if shared is not None:
            subscription.shared = restore_shared(shared)
            topic.key_orders += shared.policy.key_order
            due_ms = subscription.shared.next_ms()
            if due_ms is not None:
                state.schedule.shared.add(due_ms, (topic.id, subscriber))


def _attach(state: State, topic: Topic) -> None:
    """Attach the pattern subscriptions of a topic."""
    for key, subscription in topic.subscriptions.items():
        subscriber, by_pattern, pattern = key.partition(BY_PATTERN)
        if by_pattern:
            state.patterns[(pattern, subscriber)].attach(topic, subscription)


def _restore_session(state: State, limits: Limits, image: SessionImage) -> None:
    session = Session(image.id, image.name, image.anonymous)
    session.epoch = image.epoch
    session.nonces = image.nonces
    session.window = image.window
    session.last_number = image.last_number
    session.forgotten_below = image.forgotten_below
    session.active_ms = image.active_ms
    session.verdicts = {number: (digest, verdict) for number, digest, verdict in image.verdicts}
    state.sessions[session.name] = state.sessions_by_id[session.id] = session
    if session.anonymous:
        state.schedule.sessions.add(session.active_ms + limits.session_idle_ms, session.id)
