"""Models of sessions, built from the packets between clients and broker.

Each (session, epoch, number) is a *try* of an operation. A verdict decides it. A hello that takes over decides all
tries of earlier owners: numbers above the broker's last one were not and will not be executed.
"""

from __future__ import annotations

from collections.abc import Callable

from oncemq.protocol import commands, errors, replies
from tests.simulation.checks.history import Attempt, History
from tests.simulation.environment.world import Violation, World

#: Refusals that concern the session, not the command.
_ABOUT_SESSION = frozenset({"FENCED", "SESSION_UNKNOWN"})
_BUGS = frozenset({"BROKER_BUG", "MALFORMED", "RECORD_CORRUPT", "VERSION_UNSUPPORTED"})


#: Called when an operation is first sent under a number.
OnSent = Callable[[commands.Operation], None]
#: Called with the verdict of an operation, or None if it was not and will not be executed.
OnDecided = Callable[[commands.Operation, replies.Verdict | None], None]


class Try:
    __slots__ = ("attempts", "epoch", "is_open", "is_void", "number", "operation")

    def __init__(self, epoch: int, number: int, operation: commands.Operation, attempts: tuple[Attempt, ...]) -> None:
        self.epoch = epoch
        self.number = number
        self.operation = operation
        #: The attempts of the operation, in the order of its puts.
        self.attempts = attempts
        self.is_open = True
        #: A void was also sent under this number.
        self.is_void = False
        for attempt in attempts:
            attempt.open += 1


class SessionModel:
    """The model of one session."""

    def __init__(self, name: str, history: History, on_sent: OnSent, on_decided: OnDecided) -> None:
        self.name = name
        self._history = history
        self._on_sent = on_sent
        self._on_decided = on_decided
        self._epoch_of_nonce: dict[int, int] = {}
        self.epoch = 0
        self.last_number = 0
        self._tries: dict[tuple[int, int], Try] = {}
        self._verdicts: dict[int, replies.Verdict] = {}
        self._seen_below = 1
        #: The session may not exist any more: deleted, expired or closed.
        self.may_be_deleted = False

    # Commands of clients.

    def sent(self, command: commands.Numbered, attempts: tuple[Attempt, ...]) -> None:
        self._seen_below = max(self._seen_below, command.seen_below)
        known = self._tries.get((command.epoch, command.number))
        if known is None:
            self._begin(command, attempts)
        elif isinstance(command.operation, commands.Void):
            known.is_void = True
        elif known.operation != command.operation:
            raise Violation(f"{self.name} sent another command under number {command.number}")

    def _begin(self, command: commands.Numbered, attempts: tuple[Attempt, ...]) -> None:
        is_decided = self._is_decided(command)
        started = Try(command.epoch, command.number, command.operation, () if is_decided else attempts)
        self._tries[command.epoch, command.number] = started
        if is_decided:
            started.is_open = False
            return
        self._on_sent(command.operation)
        if command.epoch < self.epoch:
            self._not_executed(started)

    def _is_decided(self, command: commands.Numbered) -> bool:
        """Return whether this was decided. An outbox resends a command if its process died before storing the reply."""
        return command.number in self._verdicts and any(
            found.number == command.number and found.operation == command.operation for found in self._tries.values()
        )

    # Replies of the broker.

    def answered(self, command: commands.Numbered, reply: replies.Reply) -> None:
        if isinstance(reply, replies.NotNow):
            return
        found = self._tries.get((command.epoch, command.number))
        if found is None:
            return  # The session was deleted since.
        if isinstance(reply, replies.Refusal) and self._is_about_session(found, command, reply):
            return
        is_forgotten_void = isinstance(command.operation, commands.Void) and isinstance(reply, replies.Done)
        if is_forgotten_void and not isinstance(found.operation, commands.Void) and not found.is_open:
            return
        if not found.is_open and command.number not in self._verdicts:
            raise Violation(
                f"a fenced client succeeded: '{self.name}' epoch {command.epoch} number {command.number} "
                f"was answered by {reply}, after epoch {self.epoch} began"
            )
        self._decide(found, reply)  # type: ignore[arg-type]

    def _is_about_session(self, found: Try, command: commands.Numbered, reply: replies.Refusal) -> bool:
        if reply.code in _BUGS or issubclass(type(errors.from_code(reply.code, "")), errors.NotNow):
            raise Violation(f"'{self.name}' number {command.number} was answered by {reply}")
        if reply.code in _ABOUT_SESSION and self._is_meant(found.operation, reply.text):
            if reply.code == "SESSION_UNKNOWN" and not self.may_be_deleted:
                raise Violation(f"lost: session '{self.name}' is unknown, but it was not deleted")
            return True
        if reply.code == "VERDICT_FORGOTTEN":
            if found.is_open:
                raise Violation(f"'{self.name}' number {command.number}: its verdict was forgotten before it was seen")
            return True
        if reply.code == "SEQUENCE_REUSED":
            if not found.is_void:
                raise Violation(f"'{self.name}' number {command.number}: {reply.text}")
            return True
        return False

    def _is_meant(self, operation: commands.Operation, text: str) -> bool:
        """Return whether a refusal concerns the session. Two operations can get the same code for another reason."""
        if isinstance(operation, commands.Close):
            return "' on '" not in text
        return not isinstance(operation, commands.RemoveSession) or f"'{self.name}'" in text

    def _decide(self, found: Try, verdict: replies.Verdict) -> None:
        known = self._verdicts.get(found.number)
        if known is not None and known != verdict:
            raise Violation(
                f"inconsistent: '{self.name}' number {found.number} was answered by {known} and then by {verdict}"
            )
        self._verdicts[found.number] = verdict
        self.last_number = max(self.last_number, found.number)
        if not found.is_open:
            return
        found.is_open = False
        self._decide_attempts(found, verdict)
        self._on_decided(found.operation, verdict)

    def _decide_attempts(self, found: Try, verdict: replies.Verdict) -> None:
        if found.attempts and isinstance(verdict, replies.Done) and not found.is_void:
            raise Violation(f"lost: {found.attempts[0].label} was answered by {verdict}")
        stored = _stored(verdict)
        if stored and len(stored) != len(found.attempts):
            raise Violation(f"inconsistent: '{self.name}' number {found.number} was answered by {verdict}")
        for index, attempt in enumerate(found.attempts):
            attempt.open -= 1
            if stored:
                attempt.done += 1
                self._history.acknowledged(attempt, stored[index])
            else:
                attempt.dead += 1

    def _not_executed(self, found: Try) -> None:
        if found.is_open:
            found.is_open = False
            for attempt in found.attempts:
                attempt.open -= 1
                attempt.dead += 1
            self._on_decided(found.operation, None)

    # Hellos.

    def on_hello(self, hello: commands.Hello, reply: replies.HelloReply) -> None:
        if hello.epoch:
            if reply.epoch != hello.epoch:
                raise Violation(f"'{self.name}' resumed epoch {hello.epoch} and got {reply.epoch}")
            if reply.epoch == self.epoch:
                self._check_verdicts(reply)
            return
        known = self._epoch_of_nonce.setdefault(hello.nonce, reply.epoch)
        if known != reply.epoch and not self.may_be_deleted:
            raise Violation(f"'{self.name}': one hello got epoch {known} and then {reply.epoch}")
        if reply.epoch > self.epoch:
            if self.may_be_deleted and reply.last_number == 0:
                self._forget()
            self._take_over(reply)

    def _forget(self) -> None:
        """The broker created the session again. The outcome of earlier commands in flight is unknown."""
        self.last_number = 0
        self._tries = {}
        self._verdicts = {}
        self._seen_below = 1

    def _take_over(self, reply: replies.HelloReply) -> None:
        if reply.last_number < self.last_number:
            raise Violation(
                f"lost: '{self.name}' had number {self.last_number} answered, the broker's last is {reply.last_number}"
            )
        self.epoch = reply.epoch
        self._check_verdicts(reply)
        decided = {number for number, _ in reply.verdicts}
        for found in self._tries.values():
            if not found.is_open or found.epoch >= reply.epoch:
                continue
            if found.number > reply.last_number:
                self._not_executed(found)
            elif found.number >= self._seen_below and found.number not in decided:
                raise Violation(f"'{self.name}' number {found.number}: its verdict was forgotten before it was seen")

    def _check_verdicts(self, reply: replies.HelloReply) -> None:
        for number, verdict in reply.verdicts:
            tries = [found for found in self._tries.values() if found.number == number and found.epoch <= reply.epoch]
            alive = [found for found in tries if found.is_open or number in self._verdicts]
            if alive:
                self._decide(alive[-1], verdict)


def _stored(verdict: replies.Verdict) -> tuple[replies.PutReply | replies.CommitReply, ...]:
    if isinstance(verdict, replies.TransactReply):
        return verdict.puts
    if isinstance(verdict, replies.CommitReply):
        return () if verdict.before else _published(verdict)
    return (verdict,) if isinstance(verdict, replies.PutReply) else ()


def _published(verdict: replies.CommitReply) -> tuple[replies.PutReply | replies.CommitReply, ...]:
    """Return one reply per topic of a commit."""
    if verdict.topic_id:
        return (verdict,)
    return tuple(
        replies.PutReply(part.topic_id, part.first_offset, part.count, verdict.time_ms, part.subscriptions)
        for part in verdict.parts
    )


class Sessions:
    """The models of all sessions."""

    def __init__(self, world: World, history: History, on_sent: OnSent, on_decided: OnDecided) -> None:
        self._history = history
        self._on_sent = on_sent
        self._on_decided = on_decided
        self._models: dict[str, SessionModel] = {}

    def model(self, name: str) -> SessionModel:
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = SessionModel(name, self._history, self._on_sent, self._on_decided)
        return found

    def may_be_deleted(self, name: str) -> None:
        self.model(name).may_be_deleted = True
