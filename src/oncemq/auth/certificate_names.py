"""Reads the names in a certificate, so that it can be replaced by one with the same names."""

from __future__ import annotations

from pathlib import Path

from oncemq.protocol.errors import MissingExtra, SettingInvalid


def certificate_names(path: Path) -> list[str]:
    """Return the DNS names and IP addresses in a certificate. Raises SettingInvalid, and MissingExtra without the extra
    `secure`."""
    try:
        from cryptography import x509
    except ImportError:
        raise MissingExtra("certificates need a package: pip install 'oncemq[secure]'") from None
    try:
        extensions = x509.load_pem_x509_certificate(path.read_bytes()).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as error:
        raise SettingInvalid(f"{path} can't be read: {error.strerror}") from None
    except x509.ExtensionNotFound:
        return []
    except ValueError as error:
        raise SettingInvalid(f"{path} is not a certificate: {error}") from None
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
