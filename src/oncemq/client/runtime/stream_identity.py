"""What a stream connection shows to the broker: a token in its opening, and TLS.

Files are read again while the client runs, so that a token or a certificate can be replaced: the token for each
connection, and the files of TLS after the broker has refused a connection.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from typing import Any

from oncemq.client.credentials import Credentials
from oncemq.config.addresses import is_loopback, stream_place
from oncemq.net.tls import client_context
from oncemq.net.tls_socket import NotTls, TlsSocket
from oncemq.protocol.errors import OnceMQError, SettingInvalid, TlsFailed, from_code
from oncemq.protocol.stream import encode_opening
from oncemq.protocol.version import __version__

_CLIENT = f"oncemq-python {__version__}"
#: With these codes the broker refuses a client that would be refused the next time, too.
_FINAL = frozenset({"UNAUTHENTICATED", "FORBIDDEN", "QUOTA_REACHED", "TLS_FAILED"})


class StreamIdentity:
    def __init__(self, credentials: Credentials, urls: Sequence[str]) -> None:
        """Raises SettingInvalid if the token would be sent over a network without encryption, or a file can't be
        used."""
        self._credentials = credentials
        self._tls = credentials.tls
        self._context: ssl.SSLContext | None = None
        if self._tls is not None:
            self._context = self._load()
        self._loaded = self._stamps()
        #: The token of the last opening.
        self._token = credentials.current_token()
        for url in urls:
            self._check(url)

    def _check(self, url: str) -> None:
        place = stream_place(url)
        if isinstance(place, str):
            return
        if self._context is not None:
            try:
                self._context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=self._server_name(url))
            except ValueError as error:
                raise SettingInvalid(f"{self._server_name(url)!r} can't be the name of a broker: {error}") from None
            except ssl.SSLError as error:
                raise SettingInvalid(f"the context of TLS can't be used: {error}") from None
        elif not is_loopback(place[0]) and (self._credentials.token or self._credentials.token_file):
            raise SettingInvalid(
                f"{url} is not encrypted: others on the network could read the token. Connect with TLS: tls=True, or "
                'tls="ca.pem" for an authority of your own'
            )

    def opening(self) -> bytes:
        """Return the opening of a new connection. Raises SettingInvalid if the token can't be read."""
        self._token = self._credentials.current_token()
        properties: dict[str, Any] = {"client": _CLIENT}
        if self._token:
            properties["auth"] = {"token": self._token}
        return encode_opening(properties)

    def secured(self, sock: Any, url: str) -> TlsSocket | None:
        """Return a connection with TLS over this one; None if it needs none."""
        if self._context is None or isinstance(stream_place(url), str):
            return None
        return TlsSocket(sock, self._context, self._server_name(url))

    def _server_name(self, url: str) -> str:
        assert self._tls is not None
        return self._tls.server_name or str(stream_place(url)[0])

    def has_changed(self) -> bool:
        """Return whether a file was replaced since the last connection was opened, so that another attempt may
        succeed."""
        try:
            return self._credentials.current_token() != self._token or self._reload()
        except (SettingInvalid, OSError):
            # It is being replaced, or it is broken.
            return False

    def _reload(self) -> bool:
        """Load the files of TLS again if one of them was replaced. Return whether it was."""
        stamps = self._stamps()
        if self._tls is None or stamps == self._loaded:
            return False
        self._context = self._load()
        self._loaded = stamps
        return True

    def _load(self) -> ssl.SSLContext:
        tls = self._tls
        assert tls is not None
        return tls.context or client_context(tls.ca, tls.certificate, tls.key)

    def _stamps(self) -> list[tuple[int, int]]:
        """Return what changes when a file of TLS is replaced."""
        tls = self._tls
        if tls is None or tls.context is not None:
            return []
        found = [os.stat(os.path.expanduser(path)) for path in (tls.ca, tls.certificate, tls.key) if path]
        return [(each.st_ino, each.st_mtime_ns) for each in found]


def refusal_of(url: str, refusal: object) -> OnceMQError | None:
    """Return the error with which a broker has refused this client for good; None if it may accept it later."""
    match refusal:
        case [str(code), str(text)] if code in _FINAL:
            return from_code(code, f"{url} has refused the connection: {text}")
    return None


def tls_failure(url: str, error: Exception) -> TlsFailed:
    if isinstance(error, NotTls):
        return TlsFailed(f"{url} does not use TLS")
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(f"the certificate of {url} is not valid: {error.verify_message}")
    return TlsFailed(f"the TLS handshake with {url} failed: {getattr(error, 'reason', None) or error}")
