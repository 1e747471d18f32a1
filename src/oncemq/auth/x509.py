"""Makes X.509 certificates, in memory. It needs the package `cryptography`; certificates.py imports it when needed."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_AUTHORITY_DAYS = 3650
#: The longest time that all TLS libraries accept.
_SIGNED_DAYS = 825
#: The clocks of others may be slow.
_BEFORE = timedelta(hours=1)
_COMMON_NAME_MAX = 64
_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class Pem(NamedTuple):
    """A certificate and its key, in PEM format."""

    certificate: bytes
    key: bytes


def make_authority() -> Pem:
    key = ec.generate_private_key(ec.SECP256R1())
    # Authorities of different brokers must not have the same name.
    name = _named(f"OnceMQ authority {secrets.token_hex(4)}")
    builder = (
        _builder(name, name, key, _in_days(_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    return _pem(builder.sign(key, hashes.SHA256()), key)


class Authority:
    """Signs the certificates of brokers and clients."""

    def __init__(self, pem: Pem) -> None:
        """Raises ValueError if these are not a certificate and its key."""
        self._certificate = x509.load_pem_x509_certificate(pem.certificate)
        key = serialization.load_pem_private_key(pem.key, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self._certificate.public_key():
            raise ValueError("the key is not the one of the certificate")
        self._key = key

    def make_server(self, names: Sequence[str]) -> Pem:
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
        return self._sign(names[0], ExtendedKeyUsageOID.SERVER_AUTH, alternatives)

    def make_client(self, name: str) -> Pem:
        return self._sign(name, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _sign(
        self, name: str, purpose: x509.ObjectIdentifier, alternatives: x509.SubjectAlternativeName | None = None
    ) -> Pem:
        key = ec.generate_private_key(ec.SECP256R1())
        until = min(_in_days(_SIGNED_DAYS), self._certificate.not_valid_after_utc)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(_named(name), self._certificate.subject, key, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(identifier, critical=False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        return _pem(builder.sign(self._key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, until: datetime
) -> x509.CertificateBuilder:
    public_key = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _BEFORE)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _in_days(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_COMMON_NAME_MAX])])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return x509.DNSName(name)


def _usage(*purposes: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in purposes for usage in _USAGES})


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pem:
    encoding = serialization.Encoding.PEM
    return Pem(
        certificate.public_bytes(encoding),
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
