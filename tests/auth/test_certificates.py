"""Certificates that the broker creates for itself and its clients: TLS accepts them, and keys stay private."""

from __future__ import annotations

import contextlib
import ssl
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from oncemq.auth.certificates import CertificateFiles, create_authority, create_client, create_server
from oncemq.net.tls import client_context, has_server_certificate, server_context
from oncemq.protocol.errors import MissingExtra, SettingInvalid


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def loaded(files: CertificateFiles) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


def days_left(certificate: x509.Certificate) -> int:
    return round((certificate.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1))


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """Let both sides agree, in memory. Return the server's side. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(3):
        for side in (other, one):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return one


def test_a_broker_and_a_client_accept_what_was_created(tmp_path: Path) -> None:
    create_authority(tmp_path)
    assert not has_server_certificate(tmp_path)
    create_server(tmp_path, ["broker.example", "127.0.0.1", "[::1]", "*.brokers.example"])
    assert has_server_certificate(tmp_path)
    own = create_client(tmp_path, "kitchen")
    server = server_context(tmp_path, client_certificates=True)
    for name in ("broker.example", "127.0.0.1", "::1", "one.brokers.example"):
        side = shake_hands(server, client_context(str(tmp_path / "ca.pem")), name)
        assert side.getpeercert() is None
        assert side.version() == "TLSv1.3"
    side = shake_hands(server, client_context(str(tmp_path / "ca.pem"), *map(str, own)), "broker.example")
    certificate = side.getpeercert()
    assert certificate is not None
    assert certificate["subject"] == ((("commonName", "kitchen"),),)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'other\.example'"):
        shake_hands(server, client_context(str(tmp_path / "ca.pem")), "other.example")


def test_the_certificate_of_one_purpose_does_not_serve_for_another(tmp_path: Path) -> None:
    create_authority(tmp_path)
    server = create_server(tmp_path, ["broker.example"])
    client = create_client(tmp_path, "broker.example")
    asking = server_context(tmp_path, client_certificates=True)
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate"):
        shake_hands(asking, client_context(str(tmp_path / "ca.pem"), *map(str, server)), "broker.example")
    client.certificate.rename(tmp_path / "server.pem")
    client.key.rename(tmp_path / "server-key.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server_context(tmp_path), client_context(str(tmp_path / "ca.pem")), "broker.example")


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "one", tmp_path / "other"):
        create_authority(folder)
        create_server(folder, ["broker.example"])
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer certificate"):
        shake_hands(server_context(tmp_path / "one"), client_context(str(tmp_path / "other/ca.pem")), "broker.example")


def test_keys_are_private_and_dates_are_those_that_libraries_accept(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "keys"
    authority = create_authority(folder)
    server, client = create_server(folder, ["a" * 70 + ".example"]), create_client(folder, "kitchen")
    assert mode_of(folder) == 0o700
    assert [mode_of(files.key) for files in (authority, server, client)] == [0o600] * 3
    assert [mode_of(files.certificate) for files in (authority, server, client)] == [0o644] * 3
    assert [days_left(loaded(files)) for files in (authority, server, client)] == [3650, 825, 825]
    assert sorted(path.name for path in folder.iterdir()) == [
        "ca-key.pem",
        "ca.pem",
        "kitchen-key.pem",
        "kitchen.pem",
        "server-key.pem",
        "server.pem",
    ]


def test_nothing_is_overwritten_by_accident(tmp_path: Path) -> None:
    create_authority(tmp_path)
    create_server(tmp_path, ["a"])
    create_client(tmp_path, "kitchen")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SettingInvalid, match=r"ca\.pem exists"):
        create_authority(tmp_path)
    with pytest.raises(SettingInvalid, match=r"server\.pem exists"):
        create_server(tmp_path, ["b"])
    (tmp_path / "kitchen.pem").rename(tmp_path / "moved")
    with pytest.raises(SettingInvalid, match=r"kitchen-key\.pem exists"):
        create_client(tmp_path, "kitchen")
    (tmp_path / "moved").rename(tmp_path / "kitchen.pem")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    create_server(tmp_path, ["b"], replace=True)
    assert (tmp_path / "server.pem").read_bytes() != before[tmp_path / "server.pem"]
    assert mode_of(tmp_path / "server-key.pem") == 0o600


@pytest.mark.parametrize("name", ["", "a b", "ä.example", "a/b", ":::", "http://a", "-a", "a*.example", "a" * 300])
def test_a_name_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    create_authority(tmp_path)
    with pytest.raises(SettingInvalid, match="neither a DNS name nor an IP address"):
        create_server(tmp_path, ["good.example", name])
    assert not (tmp_path / "server.pem").exists()


@pytest.mark.parametrize("name", ["", "ca", "server", "../kitchen", "a/b", ".hidden", "a" * 65])
def test_a_client_has_a_name_that_can_be_a_file(tmp_path: Path, name: str) -> None:
    create_authority(tmp_path)
    with pytest.raises(SettingInvalid, match="can't be the name"):
        create_client(tmp_path, name)


def test_a_broker_without_names_and_a_folder_without_an_authority_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match="needs the names"):
        create_server(tmp_path, [])
    with pytest.raises(SettingInvalid, match=r"ca\.pem can't be read: .* Create the authority first"):
        create_server(tmp_path, ["a"])
    create_authority(tmp_path / "one")
    create_authority(tmp_path / "other")
    (tmp_path / "one/ca-key.pem").write_bytes((tmp_path / "other/ca-key.pem").read_bytes())
    with pytest.raises(SettingInvalid, match="the key is not the one of the certificate"):
        create_client(tmp_path / "one", "kitchen")
    (tmp_path / "one/ca-key.pem").write_text("nonsense")
    with pytest.raises(SettingInvalid, match="are not an authority"):
        create_client(tmp_path / "one", "kitchen")


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "oncemq.auth.x509", raising=False)
    monkeypatch.delattr("oncemq.auth.x509", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtra, match=r"pip install 'oncemq\[secure\]'"):
        create_authority(tmp_path)


# Loading them.


def test_files_that_cannot_be_loaded_are_named(tmp_path: Path) -> None:
    create_authority(tmp_path)
    create_server(tmp_path, ["a"])
    create_client(tmp_path, "kitchen")
    (tmp_path / "empty").write_text("")
    with pytest.raises(SettingInvalid, match="empty has no certificates in PEM format"):
        client_context(str(tmp_path / "empty"))
    with pytest.raises(SettingInvalid, match="missing can't be read: No such file"):
        client_context(str(tmp_path / "missing"))
    with pytest.raises(SettingInvalid, match="has no certificate: set both"):
        client_context(str(tmp_path / "ca.pem"), key=str(tmp_path / "kitchen-key.pem"))
    with pytest.raises(SettingInvalid, match=r"kitchen\.pem and .*server-key\.pem are not a certificate and its key"):
        client_context("", str(tmp_path / "kitchen.pem"), str(tmp_path / "server-key.pem"))
    (tmp_path / "server-key.pem").unlink()
    assert has_server_certificate(tmp_path)
    with pytest.raises(SettingInvalid, match=r"server-key\.pem can't be read"):
        server_context(tmp_path)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    create_authority(tmp_path)
    files = create_server(tmp_path, ["a"])
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    with pytest.raises(SettingInvalid, match="is encrypted with a password"):
        server_context(tmp_path)


def test_a_certificate_and_its_key_may_be_in_one_file_and_a_path_may_begin_with_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    create_authority(tmp_path)
    files = create_client(tmp_path, "kitchen")
    (tmp_path / "both.pem").write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    client_context("~/ca.pem", "~/both.pem")
    client_context()


def test_old_versions_are_refused_and_nothing_is_resumed(tmp_path: Path) -> None:
    create_authority(tmp_path)
    create_server(tmp_path, ["a"])
    context = server_context(tmp_path)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION
    old = client_context(str(tmp_path / "ca.pem"))
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    assert shake_hands(context, old, "a").version() == "TLSv1.2"
