"""What makes a producer's messages happen once, without a limit of time or number: a session, and a number for each.

The numbers have no gap. A request that is refused may have used its number, or not: the session is greeted again
then, and tells.
"""

from __future__ import annotations

import secrets
import uuid

from oncemq.http.requests import Caller


class Numbering:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._session = f"http-producer-{uuid.uuid4().hex}"
        #: 0: it has to be greeted.
        self._epoch = 0
        self._number = 0

    def headers(self) -> dict[str, str]:
        """Of the next request. A repetition has the same."""
        if not self._epoch:
            self._greet()
        return {
            "OnceMQ-Session": self._session,
            "OnceMQ-Epoch": str(self._epoch),
            "OnceMQ-Number": str(self._number),
        }

    def done(self) -> None:
        """The request was answered with yes."""
        self._number += 1

    def refused(self) -> None:
        """It was not, or not at all."""
        self._epoch = 0

    def _greet(self) -> None:
        body = {"session": self._session, "nonce": secrets.randbits(62) + 1, "anonymous": True}
        begun = self._caller.post("/v1/sessions", body)
        self._epoch, self._number = begun["epoch"], begun["last_number"] + 1
