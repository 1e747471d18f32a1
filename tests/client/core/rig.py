"""A core whose network is the test: the test reads what the core sends, and writes what it receives."""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.client.core.commands.pending import Pending
from oncemq.client.core.commands.wire import WireBytes
from oncemq.client.core.core import Core
from oncemq.client.core.options import Options
from oncemq.client.outbox.contract import Outbox
from oncemq.protocol.batch import checksum, encode_batch
from oncemq.protocol.commands import Command, Envelope, Hello, Numbered, Put
from oncemq.protocol.frames import Frame, Request, decode_request, encode_response
from oncemq.protocol.replies import HelloReply, PutReply, Reply, Verdict


class CoreRig:
    """A core, and the broker's side of its connection."""

    def __init__(
        self,
        *,
        name: str = "billing",
        anonymous: bool = False,
        renewed: tuple[str, int] | None = None,
        outbox: Outbox | None = None,
        **options: object,
    ) -> None:
        name = name if outbox is None else outbox.session
        renew = None if renewed is None else lambda: renewed
        self.core = Core(name, anonymous, 7, Options(**options), renew, outbox)  # type: ignore[arg-type]
        self.now_ms = 1000.0
        self.requests: list[Request] = []
        self.payloads: list[list[tuple[Frame, ...]]] = []

    def sent(self) -> list[Request]:
        """The requests that the core sends now."""
        new = []
        for frames in self.core.outgoing(self.now_ms):
            request, payloads = decode_request(frames)
            new.append(request)
            self.payloads.append(payloads)
        self.requests += new
        return new

    def commands(self) -> list[Command]:
        return [command for request in self.sent() for command in request.commands]

    def numbered(self) -> list[Numbered]:
        return [command for command in self.commands() if isinstance(command, Numbered)]

    def numbers(self) -> list[int]:
        return [command.number for command in self.numbered()]

    def answer(self, request: Request, *replies: Reply, payloads: Sequence[Frame] = ()) -> int:
        """Answer a request. Return the number of bytes."""
        frames = encode_response(request.request_id, replies, payloads)
        self.core.receive(self.now_ms, frames)
        return sum(map(len, frames))

    def answer_last(self, *replies: Reply) -> None:
        self.answer(self.requests[-1], *replies)

    def greet(self, *, epoch: int = 1, last_number: int = 0, window: int = 64) -> Hello:
        """Answer the core's first hello."""
        self.core.greet()
        [request] = self.sent()
        [hello] = request.commands
        assert isinstance(hello, Hello)
        self.answer(request, HelloReply(epoch, last_number, window, (), "broker"))
        return hello

    def resume(self, *, last_number: int, verdicts: tuple[tuple[int, Verdict], ...] = (), epoch: int = 1) -> None:
        [request] = [request for request in self.sent() if isinstance(request.commands[0], Hello)]
        self.answer(request, HelloReply(epoch, last_number, 64, verdicts, "broker"))

    def put(self, value: bytes = b"x") -> Pending:
        payload = encode_batch([value])
        return self.core.submit(Put("orders", Envelope(1, len(payload), checksum(payload))), payload)

    def pass_ms(self, time_ms: float, wire: WireBytes | None = None) -> bool:
        self.now_ms += time_ms
        return self.core.check(self.now_ms, wire)


def stored(offset: int) -> PutReply:
    return PutReply(5, offset, 1, 1_000, 1)
