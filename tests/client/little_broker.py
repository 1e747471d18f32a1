"""A broker's sessions and nothing else: numbers, verdicts, epochs. What it executes is looked at."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncemq.engine import commands as co
from oncemq.engine import replies as re
from oncemq.wire.frames import Frame, decode_request, encode_response

_encode = msgspec.msgpack.Encoder().encode


class LittleSession:
    def __init__(self) -> None:
        self.epoch = 0
        self.nonce = 0
        self.last_number = 0
        self.verdicts: dict[int, tuple[bytes, re.Verdict]] = {}


class LittleBroker:
    """Refuses what is about the topic "nowhere", and can't read what is about "unreadable"."""

    def __init__(self, broker_id: str = "broker") -> None:
        self.broker_id = broker_id
        self.batch_bytes_max = 0
        self.sessions: dict[str, LittleSession] = {}
        #: (operation, payloads) in the order in which they happened.
        self.executed: list[tuple[co.Operation, tuple[bytes, ...]]] = []

    @property
    def values(self) -> list[bytes]:
        """The payloads of the puts that happened."""
        return [payload for _, payloads in self.executed for payload in payloads]

    def answer(self, frames: Sequence[Frame]) -> list[Frame]:
        request, payloads = decode_request(frames)
        replies = [self._step(*each) for each in zip(request.commands, payloads, strict=True)]
        return encode_response(request.request_id, replies)

    def _step(self, command: co.Command, payloads: tuple[Frame, ...]) -> re.Reply:
        if isinstance(command, co.Hello):
            return self._hello(command)
        if isinstance(command, co.Numbered):
            return self._numbered(command, tuple(map(bytes, payloads)))
        assert isinstance(command, co.Health)
        return re.HealthReply("1", self.broker_id, "memory", 0, 0, 0, 0, -1, {})

    def _hello(self, hello: co.Hello) -> re.Reply:
        session = self.sessions.get(hello.session)
        if hello.epoch:
            if session is None or hello.epoch > session.epoch:
                return re.Refusal("SESSION_UNKNOWN", "there is no such session")
            if hello.epoch < session.epoch:
                return re.Refusal("FENCED", "another client took over")
        else:
            session = self.sessions.setdefault(hello.session, LittleSession())
            if session.nonce != hello.nonce:
                session.epoch += 1
                session.nonce = hello.nonce
        verdicts = tuple((number, verdict) for number, (_, verdict) in session.verdicts.items())
        return re.HelloReply(
            session.epoch, session.last_number, 64, verdicts, self.broker_id, self.batch_bytes_max
        )

    def _numbered(self, command: co.Numbered, payloads: tuple[bytes, ...]) -> re.Reply:
        session = self.sessions.get(command.session)
        if session is None or command.epoch > session.epoch:
            return re.Refusal("SESSION_UNKNOWN", "there is no such session")
        if command.epoch < session.epoch:
            return re.Refusal("FENCED", "another client took over")
        if isinstance(command.operation, co.Put) and command.operation.topic == "unreadable":
            return re.Refusal("MALFORMED", "it can't be read")
        digest = _encode(command.operation)
        if command.number <= session.last_number:
            return self._repeat(session, command, digest)
        if command.number != session.last_number + 1:
            return re.NotNow("GAP", "a number is missing", session.last_number)
        assert 1 <= command.seen_below <= command.number
        verdict = self._execute(command.operation, payloads)
        session.last_number = command.number
        session.verdicts[command.number] = digest, verdict
        for number in [number for number in session.verdicts if number < command.seen_below]:
            del session.verdicts[number]
        return verdict

    @staticmethod
    def _repeat(session: LittleSession, command: co.Numbered, digest: bytes) -> re.Reply:
        is_void = isinstance(command.operation, co.Void)
        if command.number not in session.verdicts:
            return re.Done() if is_void else re.Refusal("VERDICT_FORGOTTEN", "it was decided long ago")
        known, verdict = session.verdicts[command.number]
        if known != digest and not is_void:
            return re.Refusal("SEQUENCE_REUSED", "the number was used for something else")
        return verdict

    def _execute(self, operation: co.Operation, payloads: tuple[bytes, ...]) -> re.Verdict:
        if isinstance(operation, co.Put) and operation.topic == "nowhere":
            return re.Refusal("TOPIC_UNKNOWN", "there is no topic 'nowhere'")
        if not isinstance(operation, co.Void):
            self.executed.append((operation, payloads))
        return re.Done()
