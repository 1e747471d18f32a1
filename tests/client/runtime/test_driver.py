"""What a driver does between a core and a transport."""

from __future__ import annotations

from collections.abc import Sequence

from oncemq.client.core.commands.wire import WireBytes
from oncemq.client.core.core import Core
from oncemq.client.runtime.threads import ThreadDriver
from oncemq.protocol import errors
from oncemq.protocol.commands import Command, Health, Hello
from oncemq.protocol.frames import Frame, decode_request, encode_response
from oncemq.protocol.replies import HelloReply


class RecordingTransport:
    """Keeps what is sent. The test adds what arrives."""

    is_waited_for = True
    refusal: errors.OnceMQError | None = None

    def __init__(self) -> None:
        self.is_renewed = False
        self.sent: list[Sequence[Frame]] = []
        self.arrived: list[Sequence[Frame]] = []

    def send(self, frames: Sequence[Frame]) -> None:
        self.sent.append(frames)

    def receive(self) -> Sequence[Frame] | None:
        return self.arrived.pop(0) if self.arrived else None

    def wait(self, timeout_ms: float) -> None:
        """Nothing arrives by itself."""

    def wake(self) -> None:
        """No thread waits."""

    def wire_bytes(self) -> WireBytes | None:
        return None

    def reconnect(self) -> None:
        """There is no connection."""

    def close(self) -> None:
        """There is no connection."""

    def commands(self) -> list[Command]:
        """Return what was sent since the last call."""
        sent, self.sent = self.sent, []
        return [command for frames in sent for command in decode_request(list(frames))[0].commands]


def test_nothing_is_sent_over_a_renewed_connection_before_a_hello_if_there_is_a_standby() -> None:
    transport = RecordingTransport()
    driver = ThreadDriver(Core("billing", False, 7), transport)
    driver.core.greet()
    driver.pump()
    [hello] = transport.sent
    request, _ = decode_request(list(hello))
    transport.arrived.append(encode_response(request.request_id, [HelloReply(1, 0, 64, (), "broker", 2**20, term=2)]))
    transport.sent = []
    driver.pump()
    assert driver.core.term == 2
    driver.core.ask(Health())
    # The receive call of a single put has noticed it, and leaves the rest to the next pump.
    transport.is_renewed = True
    driver.pump()
    [command] = transport.commands()
    assert isinstance(command, Hello)
    assert not transport.is_renewed
