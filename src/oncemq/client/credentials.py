"""What a client shows to a broker: a token, and how its connection is encrypted."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import msgspec

from oncemq.protocol.errors import SettingInvalid


class CurveKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a ZeroMQ connection, as text of 40 characters each."""

    #: The public key of the broker.
    server: str
    public: str
    secret: str

    def __repr__(self) -> str:
        return f"CurveKeys(public={self.public!r})"


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream connection is encrypted. All names are those of files in PEM format."""

    #: The authorities that the certificate of the broker is checked against; "" = those of the system.
    ca: str = ""
    #: The client's own certificate and key, if the broker asks for one.
    certificate: str = ""
    key: str = ""
    #: The name that the certificate of the broker must have; "" = the host of the address.
    server_name: str = ""
    #: Used as it is, instead of all the others.
    context: ssl.SSLContext | None = None


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    token: str = ""
    #: A file with the token. It is read again for each connection, so that a token can be replaced while a client runs.
    token_file: str = ""
    tls: TlsSettings | None = None
    curve: CurveKeys | None = None

    def __repr__(self) -> str:
        """Without secrets: it may be logged."""
        has = [name for name in ("token", "token_file", "tls", "curve") if getattr(self, name)]
        return f"Credentials({', '.join(has)})"

    def current_token(self) -> str:
        """Return the token; empty if there is none. Raises SettingInvalid if its file can't be read."""
        if not self.token_file:
            return self.token
        try:
            return Path(os.path.expanduser(self.token_file)).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingInvalid(f"the token can't be read from {self.token_file}: {error}") from None


NO_CREDENTIALS = Credentials()
