"""What the broker's answers mean for the commands they answer: the receiving half of the core.

Whatever arrives, nothing here raises: what can't be read is counted and ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from oncemq.client.core.failover import Rotation
from oncemq.client.core.inflight import Flight
from oncemq.client.core.options import Options
from oncemq.client.core.outbox_queue import Backlog
from oncemq.client.core.pending import Entry, Pending, Sent
from oncemq.client.core.requests import Requests
from oncemq.client.outbox.contract import is_passing
from oncemq.protocol import errors
from oncemq.protocol.commands import Close, RemoveSession, Void
from oncemq.protocol.frames import Frame, decode_response, opening_of
from oncemq.protocol.replies import Done, HealthReply, HelloReply, NotNow, Refusal, Reply, Verdict

if TYPE_CHECKING:
    from oncemq.client.recording.recorder import Recorder

#: Refusals that may come from in front of the engine, where no number is used up: a void makes sure of it.
_NUMBER_IN_DOUBT = frozenset({"MALFORMED", "VERSION_UNSUPPORTED", "TOO_LARGE", "BROKER_BUG"})
#: Obstacles that pass quickly.
_SHORT = frozenset({"WINDOW_FULL", "STOPPING", "OVERLOADED", "DAMAGED_IN_TRANSIT"})


class Answers:
    """The part of the core that receives; its state is the core's."""

    options: Options
    session: str
    anonymous: bool
    epoch: int
    broker_id: str
    batch_bytes_max: int
    finished: errors.OnceMQError | None
    garbage_count: int
    recorder: Recorder | None
    _nonce: int
    _renew: Callable[[], tuple[str, int]] | None
    _flight: Flight
    _requests: Requests
    _rotation: Rotation
    _asks: dict[Entry, None]
    _greetings: list[Pending]
    _hello: Sent | None
    _hello_not_before_ms: float
    _is_open: bool
    _is_away: bool
    _timeouts: int
    _pause_until_ms: float
    _pause_ms: float
    _obstacle: errors.OnceMQError | None
    _backlog: Backlog | None
    _must_probe: bool

    def _fail_all(self, error: errors.OnceMQError) -> None:
        raise NotImplementedError

    def _lose_patience(self, error: errors.OnceMQError) -> None:
        raise NotImplementedError

    def _move_on(self, now_ms: float, error: errors.Standby) -> None:
        raise NotImplementedError

    def receive(self, now_ms: float, frames: Sequence[Frame]) -> None:
        """Take in whatever arrived."""
        try:
            response, payloads = decode_response(frames)
        except errors.VersionUnsupported as error:
            self._receive_foreign(now_ms, frames, error)
            return
        except errors.OnceMQError:
            self.garbage_count += 1
            return
        sent = self._requests.find(response.request_id)
        if sent is None or self.finished is not None:
            self.garbage_count += 1
            return
        objection = self._rotation.objection(response.replies) if response.replies else None
        if objection is not None:
            self._turned_away(now_ms, sent, objection)
            return
        if not self._fits(sent, response.replies):
            self.garbage_count += 1
            return
        self._heard(now_ms, sent)
        if sent.greeting >= 0:
            self._receive_greeting(now_ms, sent, response.replies)
        elif len(response.replies) < len(sent.entries):
            self._send_each_alone(sent)
        else:
            for entry, reply, frames_of_it in zip(list(sent.entries), response.replies, payloads, strict=True):
                self._receive_one(now_ms, sent, entry, reply, frames_of_it)
        self._fill()

    def _turned_away(self, now_ms: float, sent: Sent, error: errors.Standby) -> None:
        if not self._requests.is_live(sent):
            # Of a connection that was left before.
            self.garbage_count += 1
            return
        self._timeouts = 0
        self._move_on(now_ms, error)

    def _send_each_alone(self, sent: Sent) -> None:
        """The request as a whole was refused: it could not be read. Which command's fault it is shows then."""
        for entry in sent.entries:
            if not entry.settled and entry.request_ids[-1:] == [sent.request_id]:
                entry.goes_alone = True
                self._send_again(entry)

    def _send_again(self, entry: Entry) -> None:
        if entry.number:
            self._flight.send_again(entry)
        else:
            entry.must_send = True

    def _receive_foreign(self, now_ms: float, frames: Sequence[Frame], error: errors.VersionUnsupported) -> None:
        sent = self._requests.find(opening_of(frames)[1])
        self.garbage_count += 1
        if sent is None or self.finished is not None:
            return
        self._heard(now_ms, sent)
        refusal = Refusal(error.code, error.text)
        if sent.greeting >= 0:
            self._receive_greeting(now_ms, sent, (refusal,))
        for entry in list(sent.entries):
            self._receive_one(now_ms, sent, entry, refusal, [])

    @staticmethod
    def _fits(sent: Sent, replies: Sequence[Reply]) -> bool:
        if sent.greeting >= 0:
            return Answers._fits_greeting(sent, replies)
        if len(replies) != len(sent.entries):
            return len(replies) == 1 and isinstance(replies[0], Refusal)
        return all(
            not entry.number or isinstance(reply, NotNow | Verdict)
            for entry, reply in zip(sent.entries, replies, strict=True)
        )

    @staticmethod
    def _fits_greeting(sent: Sent, replies: Sequence[Reply]) -> bool:
        if not sent.is_probe:
            return len(replies) == 1 and isinstance(replies[0], HelloReply | NotNow | Refusal)
        if len(replies) == 1:
            return isinstance(replies[0], Refusal)
        return (
            len(replies) == 2
            and isinstance(replies[0], HealthReply)
            and isinstance(replies[1], HelloReply | NotNow | Refusal)
        )

    def _heard(self, now_ms: float, sent: Sent) -> None:
        self._requests.answered(sent, now_ms)
        self._rotation.heard()
        self._timeouts = 0

    # One command's answer.

    def _receive_one(self, now_ms: float, sent: Sent, entry: Entry, reply: Reply, payloads: Sequence[Frame]) -> None:
        if entry.settled or self.finished is not None or not entry.request_ids:
            return
        if isinstance(reply, NotNow):
            if entry.request_ids[-1] == sent.request_id:
                self._receive_not_now(now_ms, entry, reply)
            # Else it has been sent again since: that answer counts.
        elif entry.number:
            self._receive_verdict(now_ms, entry, reply)
        else:
            self._settle(now_ms, entry, reply, payloads)

    def _receive_verdict(self, now_ms: float, entry: Entry, reply: Reply) -> None:
        if isinstance(reply, Refusal):
            if self._ends_session(entry, reply):
                if reply.code == "SESSION_UNKNOWN" and self._never_happened(entry) and self._begin_anew():
                    return
                self._finish(errors.from_code(reply.code, reply.text))
                return
            if entry.kept_number and reply.code == "VERSION_UNSUPPORTED":
                # The broker was exchanged for one that can't read this. The right one may come back.
                self._receive_not_now(now_ms, entry, NotNow(reply.code, reply.text))
                return
            if reply.code in _NUMBER_IN_DOUBT and not isinstance(entry.body, Void):
                self._void_refused(now_ms, entry, reply)
                return
        self._pause_until_ms = self._pause_ms = 0.0
        self._obstacle = None
        self._settle(now_ms, entry, reply, ())

    @staticmethod
    def _ends_session(entry: Entry, reply: Refusal) -> bool:
        """The session itself is meant, not what the operation is about. Who has lost a subscription is told
        SUBSCRIPTION_FENCED, except for `Close`, where FENCED may mean either: the next command shows which."""
        if reply.code == "FENCED":
            return not isinstance(entry.body, Close)
        return reply.code == "SESSION_UNKNOWN" and not isinstance(entry.body, RemoveSession)

    def _void_refused(self, now_ms: float, entry: Entry, refusal: Refusal) -> bool:
        """Its caller is told no, and its number is used up. False: the outbox could not write it down."""
        backlog = self._backlog
        if entry.kept_number and backlog is not None:
            number = entry.kept_number
            if not self._written(now_ms, entry, lambda: backlog.outbox.void(number, refusal.code, refusal.text)):
                return False
        pending = entry.pending
        self._flight.void(entry)
        if pending is not None:
            pending.succeed(refusal)
        return True

    def _never_happened(self, entry: Entry) -> bool:
        """It was sent once, to a broker that had forgotten the session. What has higher numbers did not happen
        either: the broker takes them in order."""
        return entry.number == self._flight.seen_below and len(entry.request_ids) == 1

    def _begin_anew(self) -> bool:
        """An idle session of no name has expired, and nothing of it is in doubt: go on under a new name."""
        if self._renew is None or not self.anonymous:
            return False
        self.session, self._nonce = self._renew()
        self.epoch = 0
        self._is_open = False
        self._hello = None
        self._hello_not_before_ms = self._pause_until_ms = self._pause_ms = 0.0
        given_up = [entry for entry in self._flight if entry.pending is None]
        self._requests.forget([*self._flight.begin_anew(), *given_up])
        return True

    def _settle(self, now_ms: float, entry: Entry, reply: Reply, payloads: Sequence[Frame]) -> None:
        backlog = self._backlog
        if entry.kept_number and backlog is not None:
            # First of all: from the next request on the broker may forget its verdict.
            outcome: list[Reply] = []
            if not self._written(now_ms, entry, lambda: outcome.append(backlog.record(entry, reply))):
                return
            [reply] = outcome
        if self.recorder is not None:
            self.recorder.answered(self.session, self.broker_id, entry, reply)
        entry.settled = True
        self._requests.settled(entry)
        if entry.number or entry.kept_number:
            self._flight.settle(entry)
        else:
            self._asks.pop(entry, None)
        if entry.pending is not None:
            entry.pending.succeed(reply, payloads)

    def _written(self, now_ms: float, entry: Entry, write: Callable[[], None]) -> bool:
        """What became of an entry is in the outbox. If not, it counts as not answered, and is asked for again."""
        try:
            write()
        except errors.OnceMQError as error:
            if is_passing(error):
                self._obstacle = error
                self._flight.go_back(entry.number)
                self._pause(now_ms, error.code)
            else:
                self._finish(error)
            return False
        return True

    def _fill(self) -> None:
        """What is sent next comes from the outbox into memory."""
        if self._backlog is None or self.finished is not None:
            return
        try:
            self._backlog.fill(self._flight)
        except errors.OnceMQError as error:
            self._finish(error)

    def _give_up_entry(self, entry: Entry, error: errors.OnceMQError) -> None:
        pending = entry.pending
        if entry.kept_number:
            entry.pending = None
        elif entry.number:
            self._flight.void(entry)
        else:
            if entry in self._asks:
                del self._asks[entry]
            else:
                self._flight.drop(entry)
            entry.settled = True
            self._requests.settled(entry)
        if pending is not None:
            pending.fail(error)

    # Nothing was decided.

    def _receive_not_now(self, now_ms: float, entry: Entry, reply: NotNow) -> None:
        error = errors.from_code(reply.code, reply.text)
        if not entry.number:
            self._pause_ask(now_ms, entry, reply.code, error)
            return
        if reply.code == "GAP":
            if entry.kept_number and reply.last_number < self._flight.seen_below - 1:
                # A late answer, or a broker that has forgotten what it answered: a hello tells.
                self._is_open = False
                self._hello = None
            self._flight.go_back(min(reply.last_number + 1, entry.number))
            error = self._obstacle or error
        else:
            self._obstacle = error
            self._flight.go_back(entry.number)
            self._pause(now_ms, reply.code)
        if entry.pending is not None and self._must_tell(now_ms, entry.pending, reply.code):
            self._give_up_entry(entry, error)
            self._pause_until_ms = 0.0

    def _must_tell(self, now_ms: float, pending: Pending, code: str) -> bool:
        return now_ms >= pending.deadline_ms or code in self.options.told_at_once

    def _pause(self, now_ms: float, code: str) -> None:
        if now_ms < self._pause_until_ms:
            return
        first_ms = self.options.pause_short_ms if code in _SHORT else self.options.pause_ms
        self._pause_ms = min(max(2 * self._pause_ms, first_ms), self.options.pause_ms_max)
        self._pause_until_ms = now_ms + self._pause_ms

    def _pause_ask(self, now_ms: float, entry: Entry, code: str, error: errors.OnceMQError) -> None:
        assert entry.pending is not None
        if code == "GAP" or self._must_tell(now_ms, entry.pending, code):
            # A gap in somebody else's numbers is not ours to fill.
            self._give_up_entry(entry, error)
            return
        first_ms = self.options.pause_short_ms if code in _SHORT else self.options.pause_ms
        tries = len(entry.request_ids) - 1
        entry.must_send = True
        entry.not_before_ms = now_ms + min(first_ms * 2 ** min(tries, 16), self.options.pause_ms_max)

    # The session.

    def _receive_greeting(self, now_ms: float, sent: Sent, replies: Sequence[Reply]) -> None:
        if sent.is_probe:
            self._receive_probe(now_ms, sent, replies)
        else:
            self._receive_hello(now_ms, sent, replies[0])

    def _receive_probe(self, now_ms: float, sent: Sent, replies: Sequence[Reply]) -> None:
        """Whether this is the outbox's broker, and knows its session; then the session is taken over."""
        backlog = self._backlog
        if not self._must_probe or backlog is None:
            return
        health, answer = replies[0], replies[-1]
        misfit = backlog.misfit(health.broker_id) if isinstance(health, HealthReply) else None
        code = answer.code if isinstance(answer, Refusal) else ""
        if misfit is not None:
            self._finish(misfit)
        elif code == "SESSION_UNKNOWN":
            self._finish(backlog.unknown())
        elif isinstance(answer, HelloReply) or code == "FENCED":
            self._must_probe = False
            self._hello = None
        elif sent is self._hello:
            self._hello = None
            self._hello_refused(now_ms, answer)

    def _receive_hello(self, now_ms: float, sent: Sent, reply: Reply) -> None:
        is_newest = sent is self._hello
        if isinstance(reply, HelloReply):
            if self.epoch and reply.epoch != self.epoch:
                self.garbage_count += 1
                return
            if is_newest:
                self._open(now_ms, sent, reply)
            elif self.epoch:
                self._take_verdicts(now_ms, reply)
            return
        is_lost = isinstance(reply, Refusal) and reply.code in ("FENCED", "SESSION_UNKNOWN")
        if isinstance(reply, Refusal) and is_lost and (self.epoch or reply.code == "FENCED"):
            if reply.code == "SESSION_UNKNOWN" and not self._flight.is_in_doubt and self._begin_anew():
                return
            # Fenced before the first answer came: another call of the same name was later than this one.
            self._finish(errors.from_code(reply.code, reply.text))
            return
        if is_newest:
            self._hello = None
            self._hello_refused(now_ms, reply)

    def _hello_refused(self, now_ms: float, reply: Reply) -> None:
        assert isinstance(reply, Refusal | NotNow)
        error = errors.from_code(reply.code, reply.text)
        if isinstance(reply, Refusal):
            self._lose_patience(error)
            if not self._is_away:
                self._pause_hello(now_ms, error)
            return
        self._pause_hello(now_ms, error)
        self._give_up_overdue(now_ms, error, self._entries_of_session())

    def _give_up_overdue(self, now_ms: float, error: errors.OnceMQError, entries: Sequence[Entry]) -> None:
        """Who has waited long enough for the session to be open is told why it is not."""

        def is_over(pending: Pending | None) -> bool:
            return pending is not None and self._rotation.is_out_of_patience(now_ms, pending)

        for greeting in [greeting for greeting in self._greetings if is_over(greeting)]:
            self._greetings.remove(greeting)
            greeting.fail(error)
        for entry in [entry for entry in entries if is_over(entry.pending)]:
            self._give_up_entry(entry, error)

    def _pause_hello(self, now_ms: float, error: errors.OnceMQError) -> None:
        self._obstacle = error
        self._pause(now_ms, error.code)
        self._hello_not_before_ms = self._pause_until_ms

    def _callers_of_session(self) -> list[Pending]:
        """Who waits for the session to be open."""
        waiting = [entry.pending for entry in self._entries_of_session() if entry.pending is not None]
        return [*self._greetings, *waiting]

    def _entries_of_session(self) -> list[Entry]:
        return [*self._asks, *self._flight] if self._must_greet_first else list(self._flight)

    @property
    def _must_greet_first(self) -> bool:
        """Only a hello tells whether this broker is still the one that its standbys wait for."""
        return self._rotation.term > 0 and not self._is_open

    def _open(self, now_ms: float, sent: Sent, reply: HelloReply) -> None:
        self._hello = None
        if self._backlog is not None and self.epoch == 0:
            if not self._may_open_outbox(now_ms, self._backlog, reply):
                return
        elif self.epoch == 0:
            self._flight.next_number = reply.last_number + 1
        elif reply.last_number < sent.greeting:
            self._finish(
                errors.SessionUnknown(
                    f"the broker's memory of this session ends at number {reply.last_number}, "
                    f"and {sent.greeting} was answered before"
                )
            )
            return
        self._rotation.met(reply.term)
        self.epoch = reply.epoch
        self.broker_id = reply.broker_id
        self.batch_bytes_max = reply.batch_bytes_max
        self._flight.window = max(1, min(self.options.window, reply.window))
        self._is_open = True
        self._pause_until_ms = self._pause_ms = 0.0
        self._take_verdicts(now_ms, reply)
        self._flight.go_back(0)
        greetings, self._greetings = self._greetings, []
        for pending in greetings:
            pending.succeed(Done())

    def _may_open_outbox(self, now_ms: float, backlog: Backlog, reply: HelloReply) -> bool:
        """The outbox fits the broker, and has written down that it is sent from here on."""
        error = backlog.contradiction(reply)
        try:
            if error is None:
                backlog.outbox.greeted(reply.broker_id)
            else:
                # Another process may have opened it and sent from it: then this one is fenced, and nothing is wrong.
                backlog.outbox.entries(1, 1, 0)
        except errors.OnceMQError as met:
            error = met
        if error is None:
            return True
        if is_passing(error):
            self._hello_refused(now_ms, NotNow(error.code, error.text))
        else:
            self._finish(error)
        return False

    def _take_verdicts(self, now_ms: float, reply: HelloReply) -> None:
        for number, verdict in reply.verdicts:
            entry = self._flight.get(number)
            if entry is not None and self.finished is None:
                self._settle(now_ms, entry, verdict, ())

    def _finish(self, error: errors.OnceMQError) -> None:
        """Final: no flapping between twins."""
        self.finished = error
        self._is_open = False
        self._requests.abandon()
        self._fail_all(error)
