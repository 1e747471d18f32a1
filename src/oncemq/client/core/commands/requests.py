"""Requests that were sent: what they carry, and since when their answers are awaited.

A request is *live* while its answer is awaited. A request that was abandoned (its commands were sent again, or the
connection was given up) remains known until its commands are completed, because a late answer to it counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from oncemq.client.core.commands.pending import PendingCommand
from oncemq.client.core.commands.wire import Wire, WireBytes, assumed_ms
from oncemq.protocol.commands import Get, GetAny, Read, Take
from oncemq.protocol.frames import Frame
from oncemq.protocol.limits import REQUEST_FRAMES_MAX, Limits

#: Unanswered hellos whose late answers are still understood.
_HELLOS_KNOWN_MAX = 4
#: A reply with messages is rarely larger than this.
_REPLY_BYTES_MAX = Limits().get_bytes_max
#: The bytes that may arrive between a request and the end of its reply. Replies to others may come before it.
_ARRIVING_BYTES_MAX = 8 * _REPLY_BYTES_MAX


class SentRequest:
    """A request that was sent."""

    __slots__ = (
        "allowance_ms",
        "answered_number",
        "arriving_bytes",
        "at_ms",
        "commands",
        "end",
        "incomplete_count",
        "is_hello",
        "is_probe",
        "live_count",
        "progress_ms",
        "request_id",
        "size",
        "timeout_ms",
    )

    def __init__(self, request_id: int, commands: list[PendingCommand], at_ms: float, timeout_ms: float) -> None:
        self.request_id = request_id
        self.commands = commands
        self.at_ms = at_ms
        self.timeout_ms = timeout_ms
        #: Commands that were not sent again since.
        self.live_count = len(commands)
        self.incomplete_count = len(commands)
        self.is_hello = False
        #: A hello that only asks whether the broker knows the session.
        self.is_probe = False
        #: Of a hello: the highest number whose answer had been seen when it was sent.
        self.answered_number = 0
        #: How many bytes it has, and where it ends in the stream.
        self.size = self.end = 0
        #: How many bytes may still arrive before its reply is complete.
        self.arriving_bytes = _ARRIVING_BYTES_MAX
        #: When the connection last transferred something that may belong to it, or to its reply.
        self.progress_ms = at_ms
        #: Time beyond the timeout, for a transfer that is not visible.
        self.allowance_ms = 0.0

    @property
    def was_under_way(self) -> bool:
        """The connection has transferred a part of it, or of its reply, after its timeout had begun."""
        return self.progress_ms > self.at_ms


class RequestBuilder:
    """Decides which commands share a request: small ones, up to a maximum number of them."""

    def __init__(self, commands_max: int, bytes_max: int) -> None:
        self._commands_max = commands_max
        self._bytes_max = bytes_max
        #: The commands of the request that is being filled.
        self.commands: list[PendingCommand] = []
        self._bytes = self._frames = 0

    def add(self, command: PendingCommand) -> list[PendingCommand]:
        """Add a command. Return the commands of the previous request, if this command starts another one."""
        full: list[PendingCommand] = []
        size = command.payload_bytes
        if self.commands and not self._fits(command, size):
            full, self.commands = self.commands, []
            self._bytes = self._frames = 0
        self.commands.append(command)
        self._bytes += size
        self._frames += len(command.payloads)
        return full

    def _fits(self, command: PendingCommand, size: int) -> bool:
        return not (
            command.sends_alone
            or self.commands[-1].sends_alone
            or self._bytes + size > self._bytes_max
            or self._frames + len(command.payloads) >= REQUEST_FRAMES_MAX
            or len(self.commands) >= self._commands_max
        )


class RequestTable:
    """All requests whose answers may still arrive and matter."""

    def __init__(self) -> None:
        self._last_id = 0
        self._known: dict[int, SentRequest] = {}
        #: In order of sending, so the first one is the first to be overdue.
        self._live: dict[int, SentRequest] = {}
        #: The same for long polls: each has its own timeout.
        self._live_polls: dict[int, SentRequest] = {}
        self._hello_ids: deque[int] = deque()
        self._wire = Wire()
        self._answered_id = 0
        self._answered_ms = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._live or self._live_polls)

    def add(
        self, commands: Sequence[PendingCommand], now_ms: float, timeout_ms: float, *, is_poll: bool = False
    ) -> SentRequest:
        """A request with these commands is about to be sent."""
        self._last_id += 1
        sent = SentRequest(self._last_id, list(commands), now_ms, timeout_ms)
        self._known[sent.request_id] = sent
        (self._live_polls if is_poll else self._live)[sent.request_id] = sent
        for command in commands:
            if command.pending is not None:
                command.pending.start(now_ms)
            self._supersede(command)
            command.request_ids.append(sent.request_id)
            command.must_send = False
        return sent

    @property
    def next_id(self) -> int:
        """The id of the next request."""
        return self._last_id + 1

    def add_alone(self, command: PendingCommand, now_ms: float, timeout_ms: float) -> SentRequest:
        """A request with a single command, which was never sent before, has the next id."""
        self._last_id = request_id = self._last_id + 1
        sent = self._known[request_id] = self._live[request_id] = SentRequest(request_id, [command], now_ms, timeout_ms)
        if command.pending is not None:
            command.pending.start(now_ms)
        command.request_ids.append(request_id)
        command.must_send = False
        return sent

    def add_hello(
        self, now_ms: float, timeout_ms: float, answered_number: int, *, is_probe: bool = False
    ) -> SentRequest:
        """A hello is about to be sent."""
        sent = self.add((), now_ms, timeout_ms)
        sent.is_hello = True
        sent.is_probe = is_probe
        sent.answered_number = answered_number
        self._hello_ids.append(sent.request_id)
        if len(self._hello_ids) > _HELLOS_KNOWN_MAX:
            self._known.pop(self._hello_ids.popleft(), None)
        return sent

    def encoded(self, sent: SentRequest, frames: list[Frame]) -> list[Frame]:
        """These are the frames of a request that was added."""
        sent.size = sum(map(len, frames))
        sent.end = self._wire.sent(sent.size)
        return frames

    def arrived(self, frames: Sequence[Frame]) -> None:
        """Something has arrived completely, whatever it is."""
        self._wire.received(frames)

    def find(self, request_id: int) -> SentRequest | None:
        return self._known.get(request_id)

    def is_live(self, sent: SentRequest) -> bool:
        return sent.request_id in self._live or sent.request_id in self._live_polls

    def answered(self, sent: SentRequest, now_ms: float) -> None:
        """An answer to this request has arrived."""
        self.end_wait(sent)
        self._answered_ms = now_ms
        self._answered_id = max(self._answered_id, sent.request_id)
        if sent.is_hello:
            self._known.pop(sent.request_id, None)

    def answered_alone(self, command: PendingCommand, now_ms: float) -> None:
        """The answer to the only request that carried this command has arrived: nothing more is expected for it."""
        [request_id] = command.request_ids
        self._live.pop(request_id, None)
        self._known.pop(request_id, None)
        self._answered_ms = now_ms
        self._answered_id = max(self._answered_id, request_id)

    def complete(self, command: PendingCommand) -> None:
        """Nothing more is expected for this command."""
        self._supersede(command)
        for request_id in command.request_ids:
            sent = self._known.get(request_id)
            if sent is None:
                continue
            sent.incomplete_count -= 1
            if sent.incomplete_count == 0:
                del self._known[request_id]

    def forget(self, commands: Sequence[PendingCommand]) -> None:
        """Ignore all answers to the requests that carried these commands, and to hellos."""
        for command in commands:
            self.complete(command)
            command.request_ids = []
        while self._hello_ids:
            self._known.pop(self._hello_ids.popleft(), None)

    def _supersede(self, command: PendingCommand) -> None:
        """The newest request that carried this command is not awaited because of it any longer."""
        if not command.request_ids:
            return
        newest = self._known.get(command.request_ids[-1])
        if newest is None:
            return
        newest.live_count -= 1
        if newest.live_count == 0:
            self.end_wait(newest)

    def end_wait(self, sent: SentRequest) -> None:
        """Do not await the answer of this request any longer."""
        self._live.pop(sent.request_id, None)
        self._live_polls.pop(sent.request_id, None)

    def abandon_all(self) -> None:
        """The connection is given up: no answer is awaited any longer."""
        self._live.clear()
        self._live_polls.clear()
        self._wire.reset()

    # Time.

    def _deadline_ms(self, sent: SentRequest) -> float:
        since_ms = sent.progress_ms
        if since_ms < self._answered_ms and not self.is_single_loss(sent):
            since_ms = self._answered_ms
        return since_ms + sent.timeout_ms + sent.allowance_ms

    def observe(self, now_ms: float, wire: WireBytes | None) -> None:
        """An answer is overdue: give the requests that are under way more time."""
        live = (*self._live.values(), *self._live_polls.values())
        # Each answer counts for all requests, so at most one transfer lies between two answers.
        size_max = max((sent.size for sent in live), default=0)
        if wire is None:
            for sent in live:
                sent.allowance_ms = assumed_ms(size_max + _repeated_reply_bytes(sent), wire)
            return
        moved = self._wire.report(wire)
        for sent in live:
            is_delivered = sent.end <= moved.acked
            sent.allowance_ms = assumed_ms(size_max, wire) if is_delivered else 0.0
            is_sending = moved.is_sending and not is_delivered
            if is_sending or (moved.is_receiving and sent.arriving_bytes > 0):
                sent.progress_ms = now_ms
            sent.arriving_bytes -= moved.received_bytes

    def next_deadline_ms(self) -> float:
        """When the first answer is overdue; infinite if none is awaited."""
        deadlines_ms = [self._deadline_ms(sent) for sent in self._live_polls.values()]
        first = next(iter(self._live.values()), None)
        if first is not None:
            deadlines_ms.append(self._deadline_ms(first))
        return min(deadlines_ms, default=float("inf"))

    def overdue(self, now_ms: float) -> list[SentRequest]:
        live = (*self._live.values(), *self._live_polls.values())
        return [sent for sent in live if self._deadline_ms(sent) <= now_ms]

    def is_single_loss(self, sent: SentRequest) -> bool:
        """A later request was answered: this one, or its answer, is probably lost. To send it again is enough."""
        return self._answered_id > sent.request_id


def _repeated_reply_bytes(sent: SentRequest) -> int:
    """The size of a reply with messages that did not arrive in time at the first attempt."""
    is_repeated = any(
        isinstance(command.plain, Get | GetAny | Read | Take) and command.losses for command in sent.commands
    )
    return _REPLY_BYTES_MAX if is_repeated else 0
