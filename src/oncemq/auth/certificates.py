"""Creates the files of certificates: an authority of one's own, and brokers and clients that it signs.

    ca.pem, ca-key.pem            the authority. Clients need the first file; only this module needs the second one
    server.pem, server-key.pem    the broker
    NAME.pem, NAME-key.pem        a client

All keys are elliptic (P-256), and only their owner can read them. An authority is valid for ten years, and what it
signs for 825 days. All functions raise MissingExtra without the extra `secure`.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemq.protocol.errors import MissingExtra, SettingInvalid

if TYPE_CHECKING:
    from oncemq.auth.x509 import Authority, Pem

_AUTHORITY, _SERVER = "ca", "server"
_KEY_MODE, _CERTIFICATE_MODE, _FOLDER_MODE = 0o600, 0o644, 0o700
_CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DNS_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,250}[A-Za-z0-9])?")


class CertificateFiles(NamedTuple):
    certificate: Path
    key: Path


def create_authority(folder: Path, *, replace: bool = False) -> CertificateFiles:
    """Create the authority that signs all others. After it was replaced, all clients need the new `ca.pem`.

    Raises SettingInvalid if there is one and it is not to be replaced."""
    x509 = _x509()
    files = _files(folder, _AUTHORITY, replace)
    _write(files, x509.make_authority())
    return files


def create_server(folder: Path, names: Sequence[str], *, replace: bool = False) -> CertificateFiles:
    """Create the certificate of the broker. `names` are all DNS names and IP addresses that clients use for it.

    Raises SettingInvalid if there is one and it is not to be replaced, if a name is not valid, or if there is no
    authority."""
    if not names:
        raise SettingInvalid("the certificate of a broker needs the names or IP addresses that clients connect to")
    for name in names:
        if not _is_address(name) and _DNS_NAME.fullmatch(name) is None:
            raise SettingInvalid(f"{name!r} is neither a DNS name nor an IP address")
    authority = _load_authority(folder)
    files = _files(folder, _SERVER, replace)
    _write(files, authority.make_server(names))
    return files


def create_client(folder: Path, name: str, *, replace: bool = False) -> CertificateFiles:
    """Create the certificate of a client. auth.toml lists its `name`, the common name, in `certificates` of a user.

    Raises SettingInvalid if there is one and it is not to be replaced, if the name is not valid, or if there is no
    authority."""
    if _CLIENT_NAME.fullmatch(name) is None or name in (_AUTHORITY, _SERVER):
        raise SettingInvalid(
            f"{name!r} can't be the name of a client's certificate: use 1 to 64 letters, digits, '.', '_' and '-', "
            f"but not '{_AUTHORITY}' or '{_SERVER}'"
        )
    authority = _load_authority(folder)
    files = _files(folder, name, replace)
    _write(files, authority.make_client(name))
    return files


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _x509() -> Any:
    try:
        from oncemq.auth import x509
    except ImportError:
        raise MissingExtra("certificates need a package: pip install 'oncemq[secure]'") from None
    return x509


def _load_authority(folder: Path) -> Authority:
    x509 = _x509()
    files = _paths(folder, _AUTHORITY)
    try:
        authority: Authority = x509.Authority(x509.Pem(files.certificate.read_bytes(), files.key.read_bytes()))
    except OSError as error:
        advice = "Put it there to sign a certificate" if files.certificate.exists() else "Create the authority first"
        raise SettingInvalid(f"{error.filename} can't be read: {error.strerror}. {advice}") from None
    except (ValueError, TypeError) as error:
        raise SettingInvalid(f"{files.certificate} and {files.key} are not an authority: {error}") from None
    return authority


def _paths(folder: Path, name: str) -> CertificateFiles:
    return CertificateFiles(folder / f"{name}.pem", folder / f"{name}-key.pem")


def _files(folder: Path, name: str, replace: bool) -> CertificateFiles:
    """Return the files to write. Raises SettingInvalid if one of them exists."""
    files = _paths(folder, name)
    for path in files:
        if path.exists() and not replace:
            raise SettingInvalid(f"{path} exists. Replace it only if it is not needed any more")
    return files


def _write(files: CertificateFiles, pem: Pem) -> None:
    try:
        files.key.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        _write_file(files.key, pem.key, _KEY_MODE)
        _write_file(files.certificate, pem.certificate, _CERTIFICATE_MODE)
    except OSError as error:
        raise SettingInvalid(f"{files.key.parent} can't be written to: {error.strerror}") from None


def _write_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file that has its content and its mode from the first moment on."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as file:
            # Whatever the mask of the process is.
            os.chmod(temporary, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
