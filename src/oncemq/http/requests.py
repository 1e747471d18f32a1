"""Requests to gateways, repeated until there is a response: over several addresses in turn, with growing pauses.

The caller must make a repetition recognisable: by a key, a number or a position. Knows HTTP and the form of errors;
knows nothing of producers and consumers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from oncemq.http.credentials import Token, Verify, context_of
from oncemq.protocol import errors

DEFAULT_URL = "http://127.0.0.1:8002"

#: Pause after a failure. It doubles each time.
_PAUSE_S = 0.05
_PAUSE_S_MAX = 0.5

Json = dict[str, Any]


class GatewayRequests:
    """For one thread at a time."""

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        token: Token | None = None,
        verify: Verify | None = None,
        timeout_s: float = 10.0,
        total_timeout_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Raises SettingInvalid."""
        urls = [url] if isinstance(url, str) else [*url]
        if not urls or not all(one.startswith(("http://", "https://")) for one in urls):
            raise errors.SettingInvalid(f"{url!r} is not a gateway's address: use a URL such as {DEFAULT_URL}")
        self._urls = [one.rstrip("/") for one in urls]
        self._token = token or Token(None, None)
        self._token.refuse_plain(urls)
        #: The index of the address in use.
        self._current = 0
        self._total_timeout_s = total_timeout_s
        # A proxy of the environment must not see the token of a connection that is not encrypted.
        is_encrypted = all(one.startswith("https://") for one in urls)
        self._client = httpx.Client(
            verify=context_of(verify), timeout=timeout_s, transport=transport, trust_env=is_encrypted
        )
        self._pid = os.getpid()
        #: No further attempts: it is being closed.
        self._closing = threading.Event()
        #: Attempts of the last request.
        self.attempts = 0

    def get(self, path: str, query: Mapping[str, Any]) -> Json:
        """Send a GET. Raises what the gateway refuses it with, and BrokerAway."""
        return self._call("GET", path, params=query)

    def post(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> Json:
        """Send a POST. Raises as `get` does."""
        return self._call("POST", path, json=body, headers=headers)

    def stop_attempts(self) -> None:
        """Make a request that another thread repeats raise ClientClosed after its current attempt."""
        self._closing.set()

    def allow_final_requests(self) -> None:
        """Allow requests again after `stop_attempts`, for the thread that closes this."""
        self._closing.clear()

    def close(self) -> None:
        """Later requests raise ClientClosed."""
        self._closing.set()
        self._client.close()

    def _call(self, method: str, path: str, **request: Any) -> Json:
        if self._client.is_closed or self._closing.is_set():
            raise errors.ClientClosed
        if os.getpid() != self._pid:
            raise errors.ForkedError
        until_s = time.monotonic() + self._total_timeout_s
        pause_s = _PAUSE_S
        self.attempts = 0
        while True:
            self.attempts += 1
            token = self._token.current()
            try:
                return self._send(method, path, token, **request)
            except errors.Unauthenticated:
                # The token may have been replaced meanwhile.
                if self._token.current() == token:
                    raise
                continue
            except errors.TRANSIENT:
                if time.monotonic() + pause_s >= until_s:
                    raise
            # Another gateway may be reachable, if there are several.
            self._current = (self._current + 1) % len(self._urls)
            if self._closing.wait(pause_s):
                raise errors.ClientClosed
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _send(self, method: str, path: str, token: str, **request: Any) -> Json:
        url = self._urls[self._current]
        if token:
            request["headers"] = {**(request.get("headers") or {}), "Authorization": f"Bearer {token}"}
        try:
            response = self._client.request(method, url + path, **request)
        except RuntimeError:
            if self._client.is_closed:
                raise errors.ClientClosed from None
            raise
        except httpx.TransportError as error:
            raise errors.BrokerAway(f"there is no response from {url}: {error or type(error).__name__}") from None
        try:
            reply = response.json()
        except ValueError:
            reply = None
        if response.is_success and isinstance(reply, dict):
            return reply
        raise _error_of(response, reply)


def _error_of(response: httpx.Response, reply: object) -> errors.OnceMQError:
    """Return the error of a response. The queue's failures and the problems of other paths have the same code."""
    if isinstance(reply, dict) and "code" in reply:
        return errors.from_code(str(reply["code"]), str(reply.get("error") or reply.get("detail") or ""))
    what = f"{response.request.url} responded with {response.status_code} {response.reason_phrase}"
    if response.is_server_error:
        # It comes from a proxy, or from a server that failed. It is not known whether the request happened.
        return errors.BrokerAway(what)
    return errors.Malformed(f"{what}, which is not a response of an OnceMQ gateway")
