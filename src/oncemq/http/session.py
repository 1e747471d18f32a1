"""A producer's session: it numbers the messages, so that each is stored once, without a limit of time.

The numbers have no gaps. A request that was refused may or may not have used its number. So after a refusal the session
is started again, and the gateway returns its last number.
"""

from __future__ import annotations

import secrets
import uuid

from oncemq.http.requests import GatewayRequests


class ProducerSession:
    def __init__(self, requests: GatewayRequests) -> None:
        self._requests = requests
        self._session = f"http-producer-{uuid.uuid4().hex}"
        #: 0: the session must be started, or started again.
        self._epoch = 0
        self._number = 0

    def headers(self) -> dict[str, str]:
        """Return the headers of the next message. A repetition has the same headers."""
        if not self._epoch:
            self._start()
        return {
            "OnceMQ-Session": self._session,
            "OnceMQ-Epoch": str(self._epoch),
            "OnceMQ-Number": str(self._number),
        }

    def note_stored(self) -> None:
        """The message is stored: its number is used."""
        self._number += 1

    def note_failed(self) -> None:
        """The message was refused, or its outcome is unknown."""
        self._epoch = 0

    def _start(self) -> None:
        body = {"session": self._session, "nonce": secrets.randbits(62) + 1, "anonymous": True}
        started = self._requests.post("/v1/sessions", body)
        self._epoch, self._number = started["epoch"], started["last_number"] + 1
