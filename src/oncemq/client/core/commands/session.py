"""The state of a session: its identity, and how far its handshake with the broker has come."""

from __future__ import annotations

from collections.abc import Callable

from oncemq.client.core.commands.pending import Pending
from oncemq.client.core.commands.requests import SentRequest
from oncemq.protocol import errors
from oncemq.protocol.replies import HelloReply


class Session:
    """One session of a broker. It is *open* once the broker has answered the hello of the current connection."""

    def __init__(self, name: str, anonymous: bool, nonce: int, renew: Callable[[], tuple[str, int]] | None) -> None:
        self.name = name
        self.anonymous = anonymous
        self.nonce = nonce
        self._renew = renew
        #: 0 until the broker has answered the first hello.
        self.epoch = 0
        self.broker_id = ""
        #: 0 until the broker has said it.
        self.batch_bytes_max = 0
        self.is_open = False
        #: The final error, once there is one: every command fails with it.
        self.finished: errors.OnceMQError | None = None
        #: The hello whose answer is awaited.
        self.hello: SentRequest | None = None
        self.hello_not_before_ms = 0.0
        #: Callers that wait until the session is open.
        self.waiters: list[Pending] = []

    def opened(self, reply: HelloReply) -> None:
        """The broker has accepted the hello."""
        self.epoch = reply.epoch
        self.broker_id = reply.broker_id
        self.batch_bytes_max = reply.batch_bytes_max
        self.is_open = True

    def suspend(self) -> None:
        """The session must be resumed by another hello."""
        self.is_open = False
        self.hello = None

    def disconnected(self) -> None:
        """The connection is lost: the next one starts with a hello, immediately."""
        self.suspend()
        self.hello_not_before_ms = 0.0

    def renew(self) -> bool:
        """Start again under another name, as an anonymous session can. False: this one can't."""
        if self._renew is None or not self.anonymous:
            return False
        self.name, self.nonce = self._renew()
        self.epoch = 0
        self.disconnected()
        return True

    def take_waiters(self) -> list[Pending]:
        """The callers that waited. They are not waiting any longer."""
        waiters, self.waiters = self.waiters, []
        return waiters
