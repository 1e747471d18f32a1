"""What the broker's answers mean for the commands that they answer.

Nothing here raises, whatever arrives: an answer that can't be read or that belongs to nothing is counted and ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.client.core.commands.command_table import CommandTable
from oncemq.client.core.commands.pending import PendingCommand
from oncemq.client.core.commands.requests import SentRequest
from oncemq.client.core.failover import Failover
from oncemq.client.core.handshake import Handshake
from oncemq.protocol import errors
from oncemq.protocol.commands import Close, RemoveSession, Void
from oncemq.protocol.frames import Frame, decode_response, decode_stored, opening_of
from oncemq.protocol.replies import NotNow, Refusal, Reply, Verdict

#: Refusals that may come from a layer in front of the engine, where the number is not used. A void makes sure that it
#: is.
_NUMBER_IN_DOUBT = frozenset({"MALFORMED", "VERSION_UNSUPPORTED", "TOO_LARGE", "BROKER_BUG"})


class ResponseHandler:
    """Assigns replies to commands, and decides which of them are final."""

    def __init__(self, commands: CommandTable, failover: Failover, handshake: Handshake) -> None:
        self._commands = commands
        self._failover = failover
        self._handshake = handshake
        self._session = commands.session
        self._window = commands.window
        self._requests = commands.requests
        self._backoff = commands.backoff
        #: Answers that could not be read or belonged to nothing.
        self.discarded_count = 0

    def receive(self, now_ms: float, frames: Sequence[Frame]) -> None:
        """Process an answer."""
        self._requests.arrived(frames)
        if self._commands.alone is not None and self._receive_alone(now_ms, frames):
            return
        try:
            response, payloads = decode_response(frames)
        except errors.VersionUnsupported as error:
            self._receive_other_version(now_ms, frames, error)
            return
        except errors.OnceMQError:
            self.discarded_count += 1
            return
        replies = response.replies
        sent = self._requests.find(response.request_id)
        if sent is None or self._session.finished is not None:
            self.discarded_count += 1
            return
        objection = self._failover.objection(replies) if replies else None
        if objection is not None and self._requests.is_live(sent):
            self._failover.leave(now_ms, objection)
            return
        if objection is not None or not self._fits(sent, replies):
            # An objection to a request that is not live comes from a connection that was left before.
            self.discarded_count += 1
            return
        self._requests.answered(sent, now_ms)
        self._failover.answered()
        if sent.is_hello:
            self._handshake.receive(now_ms, sent, replies)
        elif len(replies) < len(sent.commands):
            self._send_each_alone(sent)
        else:
            for command, reply, frames_of_reply in zip(list(sent.commands), replies, payloads, strict=True):
                self._receive_one(now_ms, sent, command, reply, frames_of_reply)
        self._commands.load_outbox()

    def _receive_alone(self, now_ms: float, frames: Sequence[Frame]) -> bool:
        """Process the answer to a put that is alone, if this is it, without the checks that only others need. False:
        nothing was done."""
        command, self._commands.alone = self._commands.alone, None
        if (
            command is None
            or command.is_completed
            or command.pending is None
            or self._session.finished is not None
            or self._backoff.obstacle is not None
        ):
            return False
        reply = decode_stored(frames, command.request_ids)
        if reply is None:
            return False
        self._requests.answered_alone(command, now_ms)
        self._failover.answered()
        self._window.complete(command)
        self._window.decided_count += 1
        command.is_completed = True
        command.pending.succeed(reply)
        return True

    def _receive_other_version(self, now_ms: float, frames: Sequence[Frame], error: errors.VersionUnsupported) -> None:
        self.discarded_count += 1
        sent = self._requests.find(opening_of(frames)[1])
        if sent is None or self._session.finished is not None:
            return
        self._requests.answered(sent, now_ms)
        self._failover.answered()
        refusal = Refusal(error.code, error.text)
        if sent.is_hello:
            self._handshake.receive(now_ms, sent, (refusal,))
        for command in list(sent.commands):
            self._receive_one(now_ms, sent, command, refusal, ())

    def _fits(self, sent: SentRequest, replies: Sequence[Reply]) -> bool:
        if sent.is_hello:
            return self._handshake.fits(sent, replies)
        if len(replies) != len(sent.commands):
            return len(replies) == 1 and isinstance(replies[0], Refusal)
        return all(
            not command.number or isinstance(reply, NotNow | Verdict)
            for command, reply in zip(sent.commands, replies, strict=True)
        )

    def _send_each_alone(self, sent: SentRequest) -> None:
        """The request as a whole was refused because it could not be read. Sent one by one, the command at fault is
        found."""
        for command in sent.commands:
            if not command.is_completed and command.request_ids[-1:] == [sent.request_id]:
                command.sends_alone = True
                self._commands.resend(command)

    # The answer to one command.

    def _receive_one(
        self, now_ms: float, sent: SentRequest, command: PendingCommand, reply: Reply, payloads: Sequence[Frame]
    ) -> None:
        if command.is_completed or self._session.finished is not None or not command.request_ids:
            return
        if isinstance(reply, NotNow):
            # If the command was sent again since, the answer to that request counts.
            if command.request_ids[-1] == sent.request_id:
                self._receive_not_now(now_ms, command, reply)
        elif not command.number:
            self._commands.complete(now_ms, command, reply, payloads)
        elif not isinstance(reply, Refusal) or self._is_final(now_ms, command, reply):
            backoff = self._backoff
            if backoff.obstacle is not None:
                backoff.reset()
                backoff.obstacle = None
            self._commands.complete(now_ms, command, reply)

    def _is_final(self, now_ms: float, command: PendingCommand, refusal: Refusal) -> bool:
        """Whether a refusal completes its command. If not, the necessary steps are taken here."""
        if _ends_session(command, refusal):
            is_expired = refusal.code == "SESSION_UNKNOWN" and self._was_not_executed(command)
            if not (is_expired and self._handshake.restart()):
                self._commands.finish(errors.from_code(refusal.code, refusal.text))
        elif command.outbox_number and refusal.code == "VERSION_UNSUPPORTED":
            # The broker was replaced by one that can't read this. The right one may come back.
            self._receive_not_now(now_ms, command, NotNow(refusal.code, refusal.text))
        elif refusal.code == "UNAUTHENTICATED" and not command.caller:
            # The broker has not looked at the number: it may have been decided before.
            self._handshake.connection_refused(now_ms, errors.from_code(refusal.code, refusal.text))
        elif refusal.code in _NUMBER_IN_DOUBT and not isinstance(command.body, Void):
            self._commands.void_refused(now_ms, command, refusal)
        else:
            return True
        return False

    def _was_not_executed(self, command: PendingCommand) -> bool:
        """It was sent once, to a broker that had forgotten the session. Commands with higher numbers were not executed
        either, because the broker takes them in order."""
        return command.number == self._window.seen_below and len(command.request_ids) == 1

    # Nothing was decided.

    def _receive_not_now(self, now_ms: float, command: PendingCommand, reply: NotNow) -> None:
        error = errors.from_code(reply.code, reply.text)
        if not command.number:
            self._retry_unnumbered(now_ms, command, error)
            return
        backoff = self._backoff
        if reply.code == "GAP":
            if command.outbox_number and reply.last_number < self._window.seen_below - 1:
                # Either a late answer, or the broker has forgotten what it answered. A hello shows which.
                self._session.suspend()
            self._window.resend_from(min(reply.last_number + 1, command.number))
            error = backoff.obstacle or error
        else:
            self._window.resend_from(command.number)
            backoff.pause(now_ms, error)
        if command.pending is not None and backoff.must_report(now_ms, command.pending, reply.code):
            self._commands.give_up(command, error)
            backoff.until_ms = 0.0
        if self._failover.holds_unnumbered:
            self._failover.give_up_overdue(now_ms, error, list(self._commands.unnumbered))

    def _retry_unnumbered(self, now_ms: float, command: PendingCommand, error: errors.OnceMQError) -> None:
        assert command.pending is not None
        if error.code == "GAP" or self._backoff.must_report(now_ms, command.pending, error.code):
            # A gap in the numbers of another session can't be filled here.
            self._commands.give_up(command, error)
            return
        command.must_send = True
        command.not_before_ms = self._backoff.retry_at_ms(now_ms, error.code, len(command.request_ids) - 1)


def _ends_session(command: PendingCommand, refusal: Refusal) -> bool:
    """Whether a refusal is about the session itself, not about the object of the operation. A client that has lost a
    subscription gets SUBSCRIPTION_FENCED, except for `Close`, where FENCED may mean either: the next command shows
    which."""
    if refusal.code == "FENCED":
        return not isinstance(command.plain, Close)
    return refusal.code == "SESSION_UNKNOWN" and not isinstance(command.plain, RemoveSession)
