"""The base classes: `OnceMQError`, and the two answers of a broker that are not a result."""

from __future__ import annotations

from typing import ClassVar


class OnceMQError(Exception):
    """OnceMQ failed."""

    code: ClassVar[str] = "ERROR"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    #: What to do. An instance can have its own advice.
    advice: str = "Read the message: it says what happened."
    #: The advice for HTTP clients, if `advice` mentions the command line; empty = `advice`.
    http_advice: ClassVar[str] = ""

    def __init__(self, text: str = "") -> None:
        super().__init__(text or (self.__doc__ or "").strip())
        self.text = str(self)


class Refused(OnceMQError):
    """The broker refused the command. Nothing was changed."""

    code = "REFUSED"
    exit_code = 4
    http_status = 400
    advice = "The command cannot succeed in this form. Change it."


class NotNow(OnceMQError):
    """The broker cannot process the command now. The same command may succeed later."""

    code = "NOT_NOW"
    exit_code = 8
    http_status = 503
    advice = "Try again. The client retries automatically until its timeout."
