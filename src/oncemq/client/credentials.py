"""What a client shows to a broker: a token, and how its connection is encrypted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from oncemq.config.addresses import STREAM, is_remote, is_stream
from oncemq.config.endpoints import Endpoint
from oncemq.protocol.errors import SettingInvalid

if TYPE_CHECKING:
    import ssl


class CredentialOptions(TypedDict, total=False):
    """Options of `connect` that say who connects. None = the value of the environment or the context is used."""

    token: str | None
    token_file: str | os.PathLike[str] | None
    tls: bool | str | os.PathLike[str] | ssl.SSLContext | None
    tls_certificate: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    tls_server_name: str | None
    curve_server: str | None
    curve_public: str | None
    curve_secret: str | None


class CurveKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a ZeroMQ connection, as text of 40 characters each."""

    #: The public key of the broker.
    server: str
    public: str
    secret: str

    def __repr__(self) -> str:
        return f"CurveKeys(public={self.public!r})"

    def __reduce__(self) -> Any:
        raise _not_pickled()


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

    def __reduce__(self) -> Any:
        if self.token:
            raise _not_pickled()
        return super().__reduce__()

    def current_token(self) -> str:
        """Return the token; empty if there is none. Raises SettingInvalid if its file can't be read."""
        if not self.token_file:
            return self.token
        try:
            return Path(os.path.expanduser(self.token_file)).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SettingInvalid(f"the token can't be read from {self.token_file}: {why}") from None


NO_CREDENTIALS = Credentials()


def _not_pickled() -> TypeError:
    return TypeError("credentials are secrets, so they are not pickled: pass the name of a context instead")


def credentials_of(endpoint: Endpoint, urls: Sequence[str], context: ssl.SSLContext | None = None) -> Credentials:
    """Return the credentials of an endpoint with these addresses. `context` replaces its settings of TLS. Raises
    SettingInvalid for a connection that would not be encrypted, if it needs a token, or the settings for another
    transport say that it is."""
    tls, curve = _tls_settings(endpoint, context), _curve_keys(endpoint, urls)
    if tls is not None and curve is None and any(url.startswith("tcp://") for url in urls):
        raise SettingInvalid(f"{urls[0]} is an address of ZeroMQ, which has no TLS: use oncemq://, or curve_server")
    if curve is not None and tls is None and any(url.startswith(STREAM) for url in urls):
        raise SettingInvalid(f"{urls[0]} is an address of the stream transport, which has no CURVE: use tls")
    if tls is None and curve is None and not endpoint.token and not endpoint.token_file:
        return NO_CREDENTIALS
    if tls is None and curve is None and (remote := next(filter(is_remote, urls), "")):
        raise SettingInvalid(
            f"the connection to {remote} is not encrypted, so everybody on the way could read the token: "
            + ("use tls" if is_stream(remote) else "use curve_server, curve_public and curve_secret")
        )
    token_file = os.path.expanduser(endpoint.token_file)
    return Credentials(token=endpoint.token, token_file=token_file, tls=tls, curve=curve)


def _tls_settings(endpoint: Endpoint, context: ssl.SSLContext | None) -> TlsSettings | None:
    if context is not None:
        return TlsSettings(context=context)
    details = (endpoint.tls_certificate, endpoint.tls_server_name)
    if endpoint.tls is False or (endpoint.tls is None and not any(details)):
        return None
    return TlsSettings(
        ca=os.path.expanduser(endpoint.tls) if isinstance(endpoint.tls, str) else "",
        certificate=os.path.expanduser(endpoint.tls_certificate),
        key=os.path.expanduser(endpoint.tls_key),
        server_name=endpoint.tls_server_name,
    )


def _curve_keys(endpoint: Endpoint, urls: Sequence[str]) -> CurveKeys | None:
    keys = {name: getattr(endpoint, f"curve_{name}") for name in ("server", "public", "secret")}
    if not any(keys.values()) or (is_stream(urls[0]) and not keys["server"]):
        return None
    for name, key in keys.items():
        if not key:
            raise SettingInvalid(f"curve_{name} is missing: CURVE needs the broker's key and a pair of the client")
    return CurveKeys(**keys)
