"""The XPUB socket of a feed whose subscribers have different rights: reads subscriptions, and lets in what is allowed.

libzmq has a mode for this (ZMQ_XPUB_MANUAL): it gives each subscription to its reader, with the caller of its
connection, and then adds what the reader says to the *pipe* of the subscription that was read last. There is no other
name for a pipe. So a subscription whose right is not known yet can be added later only while no other was read
meanwhile. Otherwise its connection is ended: the client connects again and repeats its subscriptions, and the right is
known then.

Two weaknesses of this mode matter, because they could add one user's subscription to the pipe of another:

- A message that is no subscription, which only a hostile peer sends, shifts the pipes of all subscriptions that wait
  behind it. Until everything was read, none is added, and their connections are ended.
- A pipe may end while its subscriptions wait to be read, and a new pipe may get its place in memory. So everything is
  read before a connection is admitted. The pipe of that connection is made by libzmq's only thread before it can
  delete one whose end comes later.

A subscription is always narrowed to one topic: a prefix without a zero byte would match others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import zmq

from oncemq.auth.users import user_of
from oncemq.gateways.push.counters import Counters
from oncemq.gateways.push.feed.feed_listener import FeedListener, narrowed, topic_of_frame
from oncemq.gateways.secure_sockets import SecureSockets
from oncemq.gateways.tasks import report_failure
from oncemq.gateways.zmq_reader import ZmqReader
from oncemq.net import counters as net_counters
from oncemq.net import zap
from oncemq.net.connection import Connection, wire_bytes
from oncemq.net.policy import ListenerLimits
from oncemq.protocol import errors
from oncemq.protocol.push_feed import batch_frame, message_frame

_SUBSCRIBE, _UNSUBSCRIBE = b"\1", b"\0"
_TURN_MESSAGES = 500
#: Before a connection is admitted, this many are read at most. Then its client has to try again.
_DRAIN_MAX = 100_000
#: A connection with more subscriptions that were refused is ended.
_REFUSED_MAX = 100
_NOW = int(zmq.NOBLOCK)
#: After so many sweeps without news of a connection, it does not exist.
_SWEEPS_MAX = 5


class Access(Protocol):
    """Decides who may listen to what."""

    def verdict(self, caller: str, topic: str) -> bool | None:
        """None: it is not known yet, and `FeedGate.verdicts_changed` will be called."""

    def listen(self, caller: str, topic: str, frame: bytes, listener: object) -> bool:
        """A listener is about to get messages with this first frame. False: it must not."""

    def leave(self, caller: str, topic: str, frame: bytes, listener: object, *, is_last: bool) -> None:
        """It does not get them any more. `is_last`: nobody does."""


class FeedGate(ZmqReader):
    def __init__(
        self, access: Access, counters: Counters, secure: SecureSockets, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(zmq.XPUB, lambda *_: None, on_failure=on_failure, secure=secure)
        self.set(zmq.XPUB_MANUAL, 1)
        self._access = access
        self._counters = counters
        #: By the number of the connection.
        self._listeners: dict[int, FeedListener] = {}
        #: How many listeners get messages with this first frame.
        self._counts: dict[bytes, int] = {}
        #: The one whose subscription was read last.
        self._current: FeedListener | None = None
        #: What libzmq says about pipes is wrong.
        self._is_shifted = False
        #: There are connections from a time without users.
        self._has_open = False
        secure.before_admission(self.socket, self._read_all)

    def guard(self, name: str, limits: ListenerLimits, counters: net_counters.Counters) -> None:
        super().guard(name, limits, counters)
        assert self._listener is not None
        self._listener.when_gone = self._gone_soon

    def _gone_soon(self, connection: Connection) -> None:
        # In any thread.
        self._loop.call_soon_threadsafe(self._gone, connection)

    # Reading.

    def _read_turn(self) -> None:
        for _ in range(_TURN_MESSAGES):
            if not self._is_reading or not self._has_read_one():
                return
        self.read_soon()

    async def _read_all(self) -> None:
        """Raises Overloaded."""
        for _ in range(_DRAIN_MAX):
            if not self._has_read_one():
                return
        raise errors.Overloaded("there are too many subscriptions")

    def _has_read_one(self) -> bool:
        """Read a frame. Frames of a message are not read together: they may be of different connections."""
        try:
            frame = self._socket.recv(_NOW, False)
        except zmq.Again:
            self._is_shifted = False
            return False
        except zmq.ZMQError as error:
            report_failure("reading a socket", error)
            self.stop_reading()
            self._on_failure()
            return False
        try:
            self._take(frame)
        except Exception as error:
            report_failure("handling a subscription of the push feed", error)
        return True

    def _take(self, frame: zmq.Frame) -> None:
        content: bytes = frame.bytes
        kind = content[:1]
        number, caller = zap.property_of(frame, zap.NUMBER), zap.property_of(frame, zap.USER)
        assert self._listener is not None
        size = wire_bytes(len(frame) + self._overhead_bytes + self._frame_bytes)
        connection = self._listener.note_received(frame, size)
        if kind not in (_SUBSCRIBE, _UNSUBSCRIBE):
            self._is_shifted = True
            self._lose_current()
            if connection is not None:
                why = "it sent a message that is not a subscription"
                self._listener.cut(connection, "feed_malformed", why)
        elif number is None or caller is None or connection is None:
            # libzmq made it, because a connection has ended.
            self._lose_current()
        else:
            listener = self._listener_of(int(number), caller, connection)
            if listener is not self._current:
                self._lose_current()
                self._current = listener
            if self._is_shifted:
                self._lose_current()
                self._return(listener)
                return
            self._settle(listener)
            self._note(listener, kind == _SUBSCRIBE, content[1:])

    def _listener_of(self, number: int, caller: str, connection: Connection) -> FeedListener:
        listener = self._listeners.get(number)
        if listener is None:
            if caller and self._has_open:
                # Now there are users, and nobody has asked what those may do.
                self.end_caller("")
            self._has_open = not caller
            former = self._listeners.get(connection.number)
            if former is not None:
                # Its descriptor was given to this connection.
                self._forget(former)
            listener = self._listeners[number] = FeedListener(number, caller, connection)
            connection.number, connection.caller = number, caller
        return listener

    def _lose_current(self) -> None:
        self._current = None

    # Subscriptions.

    def _note(self, listener: FeedListener, is_new: bool, prefix: bytes) -> None:
        try:
            topic, frame = narrowed(prefix)
        except errors.NameInvalid as error:
            self._counters.report("feed_names_invalid", f"a subscription to the feed is invalid: {error.text}")
            return
        known = listener.granted.get(frame) or listener.waiting.get(frame) or listener.refused.get(frame)
        if not is_new:
            self._unsubscribe(listener, topic, frame, prefix)
        elif known is not None:
            known.add(prefix)
        else:
            listener.waiting[frame] = {prefix}
            self._settle(listener)

    def _unsubscribe(self, listener: FeedListener, topic: str, frame: bytes, prefix: bytes) -> None:
        for prefixes_of in (listener.granted, listener.waiting, listener.refused):
            prefixes = prefixes_of.get(frame, set())
            prefixes.discard(prefix)
            if not prefixes and prefixes_of.pop(frame, None) is not None and prefixes_of is listener.granted:
                self._socket.setsockopt(zmq.UNSUBSCRIBE, frame)
                self._leave(listener, topic, frame)

    def _settle(self, listener: FeedListener) -> None:
        """Add what is allowed, and drop what is not. The listener is the current one."""
        for frame in list(listener.waiting):
            topic = topic_of_frame(frame)
            verdict = self._access.verdict(listener.caller, topic)
            if verdict is None:
                continue
            prefixes = listener.waiting.pop(frame)
            if not verdict:
                self._refuse(listener, frame, prefixes)
            elif self._access.listen(listener.caller, topic, frame, listener):
                self._socket.setsockopt(zmq.SUBSCRIBE, frame)
                listener.granted[frame] = prefixes
                self._counts[frame] = self._counts.get(frame, 0) + 1

    def verdicts_changed(self) -> None:
        """More is known now."""
        current = self._current
        # What has arrived meanwhile may be the end of a pipe, which makes libzmq forget the last one.
        is_usable = current is not None and not self._is_shifted and not self.has_messages
        if current is not None and is_usable:
            self._settle(current)
        for listener in self._of(lambda each: bool(each.waiting)):
            verdicts = [self._access.verdict(listener.caller, topic_of_frame(frame)) for frame in listener.waiting]
            if (listener is current and is_usable) or None in verdicts:
                continue
            if any(verdicts):
                self._return(listener)
                continue
            while listener.waiting:
                self._refuse(listener, *listener.waiting.popitem())
        self.read_soon()

    def ask_again(self) -> None:
        """What was refused may be allowed now: a right was granted, or the topic was created."""
        for listener in self._of(lambda each: bool(each.refused)):
            listener.waiting.update(listener.refused)
            listener.refused.clear()
        self.verdicts_changed()

    def _refuse(self, listener: FeedListener, frame: bytes, prefixes: set[bytes]) -> None:
        listener.refused[frame] = prefixes
        if len(listener.refused) > _REFUSED_MAX:
            self._cut(listener, "feed_refused", "too many of its subscriptions were refused")

    def _leave(self, listener: FeedListener, topic: str, frame: bytes) -> None:
        self._counts[frame] -= 1
        is_last = not self._counts[frame]
        if is_last:
            del self._counts[frame]
        self._access.leave(listener.caller, topic, frame, listener, is_last=is_last)

    # Connections.

    def callers(self) -> set[str]:
        """Return all callers that have connections. (One that has subscribed to nothing gets nothing.)"""
        return {listener.caller for listener in self._listeners.values()}

    def end_caller(self, caller: str) -> None:
        """The credential of a caller was removed."""
        for listener in self._of(lambda each: each.caller == caller):
            self._cut(listener, "peers_cut_invalid", "its credentials are not valid any more")

    def end_topic(self, user: str, topic: str) -> None:
        """A user may not listen to a topic any more. Its subscribers repeat what they may."""
        frames = {message_frame(topic), batch_frame(topic)}
        for listener in self._of(lambda each: user_of(each.caller) == user and not frames.isdisjoint(each.granted)):
            self._cut(listener, "feed_revoked", f"its user may not listen to '{topic}' any more")

    def _of(self, condition: Callable[[FeedListener], bool]) -> list[FeedListener]:
        return [listener for listener in self._listeners.values() if condition(listener)]

    def _return(self, listener: FeedListener) -> None:
        """Let a client connect again, and repeat its subscriptions."""
        self._cut(listener, "feed_reconnected", "its subscriptions are known now, and it repeats them")

    def _cut(self, listener: FeedListener, kind: str, why: str) -> None:
        assert self._listener is not None
        self._listener.cut(listener.connection, kind, why)

    def _gone(self, connection: Connection) -> None:
        listener = self._listeners.get(connection.number)
        if listener is not None and listener.connection is connection:
            self._forget(listener)

    def _forget(self, listener: FeedListener) -> None:
        """libzmq deletes what it has added for a connection that has ended."""
        del self._listeners[listener.number]
        if listener is self._current:
            self._lose_current()
        granted, listener.granted = listener.granted, {}
        listener.waiting.clear()
        listener.refused.clear()
        for frame in granted:
            self._leave(listener, topic_of_frame(frame), frame)

    def sweep(self) -> None:
        """Forget connections of which there is no news. Called every second."""
        assert self._listener is not None
        for listener in list(self._listeners.values()):
            listener.sweeps = 0 if self._listener.has(listener.connection) else listener.sweeps + 1
            if listener.sweeps > _SWEEPS_MAX:
                self._forget(listener)
