"""Makes TLS contexts: of the broker's listeners from its folder of keys, and of clients from their settings.

Nothing is resumed. A handshake takes the broker a quarter of a millisecond, and a ticket would keep a client's
certificate valid after it has expired.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path

from oncemq.protocol.errors import SettingInvalid

#: The files in the broker's folder of keys, all in PEM format (auth/certificates.py creates them).
AUTHORITY, AUTHORITY_KEY = "ca.pem", "ca-key.pem"
SERVER, SERVER_KEY = "server.pem", "server-key.pem"


def has_server_certificate(keys: Path) -> bool:
    """Return whether a folder of keys has a certificate for the broker, complete or not."""
    return (keys / SERVER).exists() or (keys / SERVER_KEY).exists()


def server_context(keys: Path, *, client_certificates: bool = False) -> ssl.SSLContext:
    """Return the context of the broker. With `client_certificates`, clients may present one that `ca.pem` has signed.

    Raises SettingInvalid, which names the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    _load_chain(context, str(keys / SERVER), str(keys / SERVER_KEY))
    if client_certificates:
        _load_authorities(context, str(keys / AUTHORITY))
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(ca: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext:
    """Return the context of a client that checks the broker's certificate, and its name, against the authorities in
    the file `ca`; "" = those of the system. `certificate` and `key` are the client's own, if it has one; both may be
    in one file.

    Raises SettingInvalid, which names the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    if ca:
        _load_authorities(context, os.path.expanduser(ca))
    else:
        context.load_default_certs()
    if certificate:
        _load_chain(context, os.path.expanduser(certificate), os.path.expanduser(key or certificate))
    elif key:
        raise SettingInvalid(f"the key {key} has no certificate: set both")
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    _load([path], f"{path} has no certificates in PEM format", lambda: context.load_verify_locations(path))


def _load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    def no_password() -> str:
        raise SettingInvalid(f"the key {key} is encrypted with a password; store it without one, in mode 0600")

    _load(
        [certificate, key],
        f"{certificate} and {key} are not a certificate and its key in PEM format",
        lambda: context.load_cert_chain(certificate, key, password=no_password),
    )


def _load(paths: list[str], otherwise: str, load: Callable[[], None]) -> None:
    """Load files. OpenSSL does not say which of them it can't open."""
    for path in paths:
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise SettingInvalid(f"{path} can't be read: {error.strerror}") from None
    try:
        load()
    except ssl.SSLError as error:
        reason = f" ({error.reason})" if error.reason else ""
        raise SettingInvalid(f"{otherwise}{reason}") from None
