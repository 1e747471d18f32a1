"""A snapshot of the state without stopping the world.

A capture belongs to one group boundary. It is taken in small chunks between rounds; a topic or session that
is about to change before its turn is captured first (`before_…_changes`), so every chunk shows the state at
that one boundary. What is immutable (stages, keys, registry, writers) is copied by reference at the start.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import msgspec

from oncemq.engine.replies import RegistryEntry, Verdict
from oncemq.engine.session import Session
from oncemq.engine.state import KeyEntry, StageEntry, State
from oncemq.engine.topic import Subscription, Topic
from oncemq.limits import Limits

CHUNK_ENTITIES = 200


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
    #: The index's columns, little-endian.
    ends: bytes
    positions: bytes
    sizes: bytes
    skips: bytes
    times: bytes


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


Image = HeadImage | TopicImage | SessionImage | StageImage | KeyImage | RegistryImage | WriterImage

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Image]).decode

_COLUMNS = (("ends", "q"), ("positions", "q"), ("sizes", "I"), ("skips", "I"), ("times", "q"))
_LITTLE = array("H", [1]).tobytes() == b"\1\0"


def _little(column: array[int]) -> array[int]:
    if not _LITTLE:
        column.byteswap()
    return column


def _topic_image(topic: Topic) -> TopicImage:
    index = topic.index
    columns = [_little(getattr(index, name)[index.head :]).tobytes() for name, _ in _COLUMNS]
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
        *columns,
    )


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
    """Begin it at a group boundary; call `chunk` until it returns None."""

    def __init__(self, state: State, generation: int) -> None:
        self.generation = generation
        self._state = state
        self._early: list[Image] = []
        self._topics = list(state.topics_by_id.values())
        self._sessions = list(state.sessions_by_id.values())
        self._images = self._walk(
            HeadImage(state.next_topic_id, state.next_epoch, state.time_ms),
            list(state.stages.values()),
            list(state.keys.values()),
            [(space, list(entries.values())) for space, entries in state.registry.items()],
            list(state.writers.items()),
        )
        state.capture = self

    def _walk(
        self,
        head: HeadImage,
        stages: list[StageEntry],
        keys: list[KeyEntry],
        registry: list[tuple[str, list[RegistryEntry]]],
        writers: list[tuple[str, int]],
    ) -> Iterator[Image]:
        yield head
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
        yield from (WriterImage(writer, batch) for writer, batch in writers)

    def before_topic_changes(self, topic: Topic) -> None:
        if topic.captured != self.generation:
            topic.captured = self.generation
            self._early.append(_topic_image(topic))

    def before_session_changes(self, session: Session) -> None:
        if session.captured != self.generation:
            session.captured = self.generation
            self._early.append(_session_image(session))

    def chunk(self, entities_max: int = CHUNK_ENTITIES) -> bytes | None:
        images = self._early
        self._early = []
        for image in self._images:
            images.append(image)
            if len(images) >= entities_max:
                break
        if images:
            return _encode(images)
        self._state.capture = None
        return None

    def abandon(self) -> None:
        self._state.capture = None


def restore(state: State, limits: Limits, chunks: Iterable[bytes]) -> None:
    """Fill an empty state from a snapshot's chunks."""
    for chunk in chunks:
        for image in _decode(chunk):
            _install(state, limits, image)
    for topic in state.topics_by_id.values():
        for position, size in topic.index.entries():
            state.count_live(position, size)
    for stage in state.stages.values():
        for batch in stage.batches:
            state.count_live(batch.position, batch.size)


def _install(state: State, limits: Limits, image: Image) -> None:
    if isinstance(image, TopicImage):
        _install_topic(state, image)
    elif isinstance(image, SessionImage):
        _install_session(state, limits, image)
    elif isinstance(image, StageImage):
        state.stages[image.entry.name] = image.entry
        state.schedule.stages.add(image.entry.expires_ms, image.entry.name)
    elif isinstance(image, KeyImage):
        state.keys[(image.entry.principal, image.entry.key)] = image.entry
    elif isinstance(image, RegistryImage):
        state.registry.setdefault(image.namespace, {})[image.entry.key] = image.entry
        state.registry_entries += 1
    elif isinstance(image, WriterImage):
        state.writers[image.writer] = image.batch
    else:
        state.next_topic_id = image.next_topic_id
        state.next_epoch = image.next_epoch
        state.time_ms = image.time_ms


def _install_topic(state: State, image: TopicImage) -> None:
    topic = Topic(image.id, image.name, image.stays, image.retain_ms, image.retain_bytes)
    topic.next_offset = image.next_offset
    topic.trimmed = image.trimmed
    topic.above_trim_bytes = image.above_trim_bytes
    for subscriber, acked, epoch, held_until_ms in image.subscriptions:
        topic.subscriptions[subscriber] = Subscription(subscriber, acked, epoch, held_until_ms)
    topic.measure_needed()
    topic.index.first = image.first
    for name, kind in _COLUMNS:
        setattr(topic.index, name, _little(array(kind, getattr(image, name))))
    topic.stored_bytes = sum(topic.index.sizes)
    state.topics[topic.name] = state.topics_by_id[topic.id] = topic
    state.subscriptions += len(topic.subscriptions)
    if topic.retain_ms and topic.trimmed < topic.next_offset:
        state.schedule.retention.add(0, topic.id)
    if topic.retain_bytes:
        state.schedule.oversized.add(topic.id)


def _install_session(state: State, limits: Limits, image: SessionImage) -> None:
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
