"""Requests to a gateway, repeated until there is an answer: over several addresses in turn, with growing pauses.

Whoever calls sees to it that a repetition is recognised: by a key, a number or a position. Knows HTTP, and how a
refusal looks; nothing of producers and consumers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from oncemq.protocol import errors

DEFAULT_URL = "http://127.0.0.1:8002"

#: After a failure; the pause doubles.
_PAUSE_S = 0.05
_PAUSE_S_MAX = 0.5
#: Of servers in front of the gateway, that have not found it.
_NOT_THERE = (502, 503, 504)

Json = dict[str, Any]


class Caller:
    """One thread at a time."""

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        timeout_s: float = 10.0,
        patience_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        urls = [url] if isinstance(url, str) else [*url]
        if not urls or not all(one.startswith(("http://", "https://")) for one in urls):
            raise errors.SettingInvalid(f"a gateway's address looks like {DEFAULT_URL}, not {url!r}")
        self._urls = [one.rstrip("/") for one in urls]
        self._at = 0
        self._patience_s = patience_s
        self._client = httpx.Client(timeout=timeout_s, transport=transport)
        self._pid = os.getpid()
        #: No further tries: somebody wants to close this.
        self._ending = threading.Event()
        #: Tries of the last call.
        self.tries = 0

    def get(self, path: str, query: Mapping[str, Any]) -> Json:
        """Raises what it is refused with, and BrokerAway."""
        return self._call("GET", path, params=query)

    def post(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> Json:
        """As `get` does."""
        return self._call("POST", path, json=body, headers=headers)

    def end_tries(self) -> None:
        """Whoever goes on trying in another thread is told ClientClosed, after the try that he is at."""
        self._ending.set()

    def begin_last_words(self) -> None:
        """The same thread calls once more, before it closes this."""
        self._ending.clear()

    def close(self) -> None:
        self._ending.set()
        self._client.close()

    def _call(self, method: str, path: str, **request: Any) -> Json:
        if self._client.is_closed or self._ending.is_set():
            raise errors.ClientClosed
        if os.getpid() != self._pid:
            raise errors.ForkedError
        until_s = time.monotonic() + self._patience_s
        pause_s = _PAUSE_S
        self.tries = 0
        while True:
            self.tries += 1
            try:
                return self._try(method, path, **request)
            except (errors.NotNow, errors.BrokerAway):
                if time.monotonic() + pause_s >= until_s:
                    raise
            # The next one may be there, where there are several.
            self._at = (self._at + 1) % len(self._urls)
            if self._ending.wait(pause_s):
                raise errors.ClientClosed
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _try(self, method: str, path: str, **request: Any) -> Json:
        url = self._urls[self._at]
        try:
            response = self._client.request(method, url + path, **request)
        except RuntimeError:
            if self._client.is_closed:
                raise errors.ClientClosed from None
            raise
        except httpx.TransportError as error:
            raise errors.BrokerAway(f"no answer from {url}: {error or type(error).__name__}") from None
        try:
            reply = response.json()
        except ValueError:
            reply = None
        if response.is_success and isinstance(reply, dict):
            return reply
        raise _refusal(response, reply)


def _refusal(response: httpx.Response, reply: object) -> errors.OnceMQError:
    """The queue's failures and the problems of other paths have the same code."""
    if isinstance(reply, dict) and "code" in reply:
        return errors.from_code(str(reply["code"]), str(reply.get("error") or reply.get("detail") or ""))
    what = f"{response.request.url} answered {response.status_code} {response.reason_phrase}"
    if response.status_code in _NOT_THERE:
        return errors.BrokerAway(what)
    return errors.Malformed(f"{what}, which no gateway of OnceMQ does")
