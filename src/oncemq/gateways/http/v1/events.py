"""Server-sent events: a subscription's messages as they come, for browsers (EventSource) and whoever reads lines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from oncemq.gateways.http.framework.endpoint import EVENTS, Answer, Call, Endpoint, Reply, Streamed, endpoint, header
from oncemq.gateways.http.framework.fields import Epoch, Offset, SubscriberName, TopicName
from oncemq.gateways.http.framework.problems import problem_of
from oncemq.gateways.http.framework.state import Heir, Place, keep
from oncemq.gateways.http.v1.consume import acked_of
from oncemq.gateways.http.v1.messages import CONSUMING
from oncemq.gateways.http.v1.ownership import as_caller, note_acked, open_anew, refuse_pattern
from oncemq.gateways.http.v1.rendering import cut, view_of
from oncemq.gateways.link import expect
from oncemq.protocol import errors
from oncemq.protocol.commands import Ack, Get, Open
from oncemq.protocol.frames import Frame
from oncemq.protocol.replies import GetReply, OpenReply

ENDPOINTS: list[Endpoint] = []

#: After so long without a message a comment tells that the stream lives, and the next offset.
HEARTBEAT_MS = 15_000
#: What a stream has in hand at a time, beyond the first batch.
_FETCH_BYTES = 256 * 1024
_FETCH_MESSAGES = 10_000
#: A browser whose stream ended comes back after so long.
_RETRY_MS = 1_000

_encode = msgspec.json.Encoder().encode


#: <topic's id>-<epoch>-<offset>; without the offset where nothing was sent yet.
_ID = re.compile(r"(\d{1,18})-(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


class EventsParameters(msgspec.Struct, frozen=True):
    topic: TopicName
    subscriber: SubscriberName
    position: Annotated[Offset | UnsetType, Meta(description="Where to start; left out: at what is not acked.")] = UNSET
    ack: Annotated[
        Literal["none", "sent"],
        Meta(description="`sent`: what was written is done. `none`: only what `Last-Event-ID` or POST …/ack says."),
    ] = "none"
    epoch: Epoch = 0
    last_event_id: Annotated[
        str,
        header(
            "Last-Event-ID",
            "The last event that was seen: it and all before are done, and the stream goes on.",
            min_length=1,
        ),
    ] = ""


@endpoint(
    ENDPOINTS,
    "GET",
    "/v1/topics/{topic}/subscriptions/{subscriber}/events",
    tag="consuming",
    summary="Messages as they come",
    parameters=EventsParameters,
    is_changing=True,
    replies=(
        Reply(
            media=(EVENTS,),
            description="Events without end.",
            example=(
                "id: 281474976710657-2-3\n"
                'data: {"offset":3,"time_ms":1790000000000,"idempotency_key":"281474976710657-3","value":"soup"}\n\n'
            ),
        ),
        Reply(status=204, description="Somebody else has taken over since `Last-Event-ID`. EventSource stops."),
    ),
    refusals=CONSUMING,
)
async def events(call: Call[EventsParameters, None]) -> Answer | Streamed:
    """Each event has the message, in JSON, as its `data`. A browser's EventSource that has lost its connection comes
    back with `Last-Event-ID`, which acks what it has seen: so it gets each message once. After a seek meanwhile, or
    where the topic was made again, nothing is acked: the stream starts where the subscription stands.

    The stream becomes the subscription's owner, unless it has an `epoch`. One that is opened later without
    `Last-Event-ID` ends it, and keeps the subscription: who comes back then is told to stop (204). When there is
    nothing to send, a comment tells the next offset every 15 seconds. A failure is an event named `problem`, with the
    problem as its data; it ends the stream.
    """
    feed = _Feed(call)
    try:
        await feed.open()
        # Before the reply begins: what is refused is refused as anywhere.
        first = await feed.get(0)
    except errors.Fenced:
        if call.parameters.epoch or not call.parameters.last_event_id:
            raise
        return Answer(status=204)
    return Streamed(feed.parts(*first))


class _Seen(msgspec.Struct, frozen=True):
    """What `Last-Event-ID` says."""

    topic_id: int
    epoch: int
    #: Everything below was seen; 0: nothing is said.
    upto: int = 0


def _seen(last_event_id: str) -> _Seen | None:
    """Raises Malformed."""
    if not last_event_id:
        return None
    found = _ID.fullmatch(last_event_id)
    if found is None:
        raise errors.Malformed("Last-Event-ID is no `id` of this stream; without it, it starts at what is not acked")
    topic_id, epoch, offset = found.groups()
    return _Seen(int(topic_id), int(epoch), int(offset) + 1 if offset else 0)


class _Feed:
    """One stream: where it is, and what it may say is done."""

    def __init__(self, call: Call[EventsParameters, None]) -> None:
        self._call: Call[Any, Any] = call
        self._parameters = call.parameters
        self._place: Place = (call.parameters.topic, call.parameters.subscriber)
        self._opened = OpenReply(0, 0, 0)
        self._position = 0
        self._ack = -1

    async def open(self) -> None:
        """Raises Fenced where somebody else has opened it since the event that was seen."""
        parameters, seen = self._parameters, _seen(self._parameters.last_event_id)
        starts_anew = seen is None or not seen.upto
        if parameters.epoch:
            acked = await self._open_as_caller(seen)
        elif seen is not None:
            starts_anew = not await self._follow(seen) and starts_anew
            acked = self._opened.acked
        else:
            # Not the gateway's former epoch: an older stream of the same subscription ends.
            self._opened = await open_anew(self._call.link, self._call.state, self._place)
            acked = self._opened.acked
        is_placed = starts_anew and not isinstance(parameters.position, UnsetType)
        self._position = parameters.position if is_placed else acked  # type: ignore[assignment]

    async def _open_as_caller(self, seen: _Seen | None) -> int:
        async def ask(opened: OpenReply) -> int:
            self._opened = opened
            return await acked_of(self._call, self._place, opened)

        if seen is not None:
            with suppress(errors.Fenced, errors.Sought, errors.TopicGone):
                await self._ack_seen(seen, seen.epoch, seen.upto)
        return await as_caller(self._call, self._place[0], self._parameters.epoch, ask)

    async def _follow(self, seen: _Seen) -> bool:
        """Go on after a stream of the same reader. What it has seen counts as long as nothing has moved the
        subscription since; True: something has."""
        refuse_pattern(self._place[0])
        heir = self._call.state.heirs.get(self._place)
        epoch, is_moved = seen.epoch, False
        if heir is not None and heir.former_epoch == epoch:
            # It came back before, and the reply was lost.
            epoch, is_moved = heir.epoch, heir.is_moved
        try:
            await self._ack_seen(seen, epoch, 0 if is_moved else seen.upto)
        except errors.Sought:
            is_moved = True
        except errors.TopicGone:
            self._opened = await open_anew(self._call.link, self._call.state, self._place)
            return True
        await self._open_after(epoch, seen.epoch, is_moved)
        return is_moved

    async def _ack_seen(self, seen: _Seen, epoch: int, upto: int) -> None:
        await self._call.link.ask(Ack(seen.topic_id, self._place[1], epoch, upto))

    async def _open_after(self, epoch: int, told_epoch: int, is_moved: bool) -> None:
        """If somebody else has opened it since, it is theirs. The reader was told of the other epoch last."""
        reply = await self._call.link.operate(Open(*self._place, former=epoch))
        self._opened = expect(reply, OpenReply)
        keep(self._call.state.opened, self._place, self._opened)
        keep(self._call.state.heirs, self._place, Heir(told_epoch, self._opened.epoch, is_moved))

    async def get(self, wait_ms: int) -> tuple[GetReply, Sequence[Frame]]:
        opened = self._opened
        command = Get(opened.topic_id, self._place[1], opened.epoch, self._position, _FETCH_BYTES, wait_ms, self._ack)
        reply, payloads = await self._call.link.wait(command)
        got = expect(reply, GetReply)
        note_acked(self._call.state, self._place, opened.epoch, got.acked)
        self._ack = -1
        return got, payloads

    async def parts(self, reply: GetReply, payloads: Sequence[Frame]) -> AsyncIterator[bytes]:
        yield b"retry: %d\n%s" % (_RETRY_MS, _heartbeat(reply))
        try:
            async for part in self._messages(reply, payloads):
                yield part
        except errors.OnceMQError as error:
            # Not `error`: so EventSource calls its own.
            yield b"event: problem\ndata: %s\n\n" % _encode(problem_of(error))

    async def _messages(self, reply: GetReply, payloads: Sequence[Frame]) -> AsyncIterator[bytes]:
        now_s = asyncio.get_running_loop().time
        said_s = now_s()
        told_epoch = 0
        while True:
            if told_epoch != self._opened.epoch:
                told_epoch = self._opened.epoch
                yield b"id: %s\n\n" % self._id
            events, self._position = self._events(reply, payloads)
            if events:
                yield events
                said_s = now_s()
                if self._parameters.ack == "sent":
                    self._ack = self._position
            elif now_s() - said_s >= HEARTBEAT_MS / 1000:
                yield _heartbeat(reply)
                said_s = now_s()
            reply, payloads = await self._next()

    def _events(self, reply: GetReply, payloads: Sequence[Frame]) -> tuple[bytes, int]:
        messages, is_cut = cut(self._place[0], reply.topic_id, reply.batches, payloads, _FETCH_MESSAGES)
        events = b"".join(
            b"id: %s-%d\ndata: %s\n\n" % (self._id, each.offset, _encode(view_of(each))) for each in messages
        )
        return events, messages[-1].offset + 1 if is_cut else reply.next_position

    @property
    def _id(self) -> bytes:
        """Of the stream; with an offset, of an event."""
        return b"%d-%d" % (self._opened.topic_id, self._opened.epoch)

    async def _next(self) -> tuple[GetReply, Sequence[Frame]]:
        try:
            return await self.get(HEARTBEAT_MS)
        except errors.Sought:
            if self._parameters.epoch:
                raise
            epoch = self._opened.epoch
            await self._open_after(epoch, epoch, is_moved=True)
            self._position, self._ack = self._opened.acked, -1
        return await self.get(0)


def _heartbeat(reply: GetReply) -> bytes:
    return b": next offset %d\n\n" % reply.end_offset
