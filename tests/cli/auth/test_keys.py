"""Certificates and keys on the command line, with real cryptography."""

from __future__ import annotations

import json
import os
import shlex
import socket
import ssl
import stat
import sys
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner

from oncemq.auth.certificate_names import certificate_names
from oncemq.cli.main import cli
from oncemq.config import sources
from oncemq.config.exposure import check_exposure, exposures
from oncemq.net import curve
from oncemq.protocol.errors import SettingInvalid
from tests.cli.auth.conftest import Auth, users

KEYS = Path("oncemq-data/keys")
LOOPBACK = ["localhost", "127.0.0.1", "::1"]


def modes() -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in KEYS.iterdir()}


def test_the_keys_of_a_broker_are_created_once(auth: Auth) -> None:
    done = auth("keys", "--host", "broker.example", "--host", "192.0.2.1")
    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        f"{KEYS}/{name}" for name in ("ca.pem", "server.pem", "curve.public")
    ]
    assert "A broker uses them from its next start on." in done.stderr
    assert modes() == {
        "ca.pem": 0o644,
        "ca-key.pem": 0o600,
        "server.pem": 0o644,
        "server-key.pem": 0o600,
        "curve.public": 0o644,
        "curve.secret": 0o600,
    }
    assert stat.S_IMODE(KEYS.stat().st_mode) == 0o700
    assert sorted(certificate_names(KEYS / "server.pem")) == sorted(["broker.example", "192.0.2.1", *LOOPBACK])
    before = {path.name: path.read_bytes() for path in KEYS.iterdir()}
    again = auth("keys")
    assert again.stdout == ""
    assert "Everything exists already." in again.stderr
    assert {path.name: path.read_bytes() for path in KEYS.iterdir()} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_root_creates_belongs_to_the_owner_of_the_folder(auth: Auth) -> None:
    KEYS.parent.mkdir()
    os.chown(KEYS.parent, 12345, 12345)
    auth("keys")
    assert {path.stat().st_uid for path in (KEYS, *KEYS.iterdir())} == {12345}


def test_clients_are_told_what_they_need_and_no_secret(auth: Auth) -> None:
    done = auth("keys")
    text = done.stdout + done.stderr
    assert (KEYS / "curve.public").read_text().strip() in text
    assert (KEYS / "curve.secret").read_text().strip() not in text
    listed = json.loads(auth("keys", "--json").stdout)
    assert listed["created"] == []
    assert listed["hosts"] == [socket.gethostname(), *LOOPBACK]
    assert (listed["ca"], listed["curve_public"]) == (f"{KEYS}/ca.pem", curve.load(KEYS).public)  # type: ignore[union-attr]


def test_a_certificate_is_replaced_under_the_same_authority(auth: Auth) -> None:
    auth("keys", "--host", "broker.example")
    names = ("ca.pem", "ca-key.pem", "curve.public", "curve.secret")
    before = {name: (KEYS / name).read_bytes() for name in names}
    former = (KEYS / "server.pem").read_bytes()
    assert "`--replace` creates another one" in auth("keys", "--host", "other.example", code=2).stderr
    assert (KEYS / "server.pem").read_bytes() == former
    auth("keys", "--replace")
    assert certificate_names(KEYS / "server.pem") == ["broker.example", *LOOPBACK]
    auth("keys", "--replace", "--host", "other.example")
    assert certificate_names(KEYS / "server.pem") == ["other.example", *LOOPBACK]
    assert {name: (KEYS / name).read_bytes() for name in names} == before
    context = ssl.create_default_context(cafile=str(KEYS / "ca.pem"))
    context.load_cert_chain(KEYS / "server.pem", KEYS / "server-key.pem")


def test_a_certificate_of_another_authority_stays(auth: Auth) -> None:
    auth("keys", "--host", "broker.example")
    for name in ("ca.pem", "ca-key.pem"):
        (KEYS / name).unlink()
    former = (KEYS / "server.pem").read_bytes()
    assert "ca.pem" not in auth("keys").output
    assert (KEYS / "server.pem").read_bytes() == former
    assert not (KEYS / "ca.pem").exists()
    auth("keys", "--replace")
    assert (KEYS / "ca.pem").exists()
    assert certificate_names(KEYS / "server.pem") == ["broker.example", *LOOPBACK]
    assert (KEYS / "server.pem").read_bytes() != former


def test_a_client_gets_a_key_pair_whose_secret_is_alone_on_standard_output(auth: Auth) -> None:
    auth("user", "add", "kitchen")
    auth("keys")
    done = auth("keys", "--client", "kitchen")
    secret = done.stdout.removesuffix("\n")
    public = zmq.curve_public(secret.encode()).decode()
    assert users().by_name["kitchen"].curve == {public}
    assert public in done.stderr
    assert secret not in done.stderr
    found = json.loads(auth("keys", "--client", "kitchen", "--json").stdout)
    assert zmq.curve_public(found["curve_secret"].encode()).decode() == found["curve_public"]
    assert found["curve_server"] == (KEYS / "curve.public").read_text().strip()
    assert users().by_name["kitchen"].curve == {public, found["curve_public"]}
    auth("keys", "--client", "kitchen", "--rm", public)
    assert users().by_name["kitchen"].curve == {found["curve_public"]}


def test_the_secret_key_is_written_to_a_file(auth: Auth) -> None:
    auth("user", "add", "kitchen")
    auth("keys")
    done = auth("keys", "--client", "kitchen", "--out", "kitchen.secret", "--json")
    path = Path("kitchen.secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = path.read_text().strip()
    assert zmq.curve_public(secret.encode()).decode() == json.loads(done.stdout)["curve_public"]
    assert secret not in done.output
    assert "exists" in auth("keys", "--client", "kitchen", "--out", "kitchen.secret", code=2).stderr
    assert path.read_text().strip() == secret
    Path("file").touch()
    auth("keys", "--client", "kitchen", "--out", "file/secret", code=1)
    assert len(users().by_name["kitchen"].curve) == 1


def test_a_client_gets_a_certificate(auth: Auth) -> None:
    auth("user", "add", "kitchen")
    auth("keys")
    done = auth("keys", "--client", "kitchen", "--certificate")
    assert f"Created {KEYS}/kitchen.pem and {KEYS}/kitchen-key.pem" in done.stdout
    assert users().by_name["kitchen"].certificates == {"kitchen"}
    assert modes()["kitchen-key.pem"] == 0o600
    auth("keys", "--client", "kitchen", "--certificate", code=2)
    auth("keys", "--client", "kitchen", "--certificate", "--replace", "--json")
    auth("keys", "--client", "kitchen", "--certificate", "--rm", "kitchen")
    assert users().by_name["kitchen"].certificates == frozenset()


def test_an_unknown_user_gets_nothing(auth: Auth) -> None:
    auth("user", "add", "kitchen")
    assert "`oncemq auth keys` creates them" in auth("keys", "--client", "kitchen", code=2).stderr
    auth("keys")
    before = {*KEYS.iterdir()}
    assert auth("keys", "--client", "eve", code=2).stdout == ""
    auth("keys", "--client", "eve", "--certificate", code=2)
    assert {*KEYS.iterdir()} == before


@pytest.mark.parametrize(
    "options",
    [
        ("--out", "x"),
        ("--certificate",),
        ("--rm", "x"),
        ("--client", "a", "--host", "b"),
        ("--client", "a", "--replace"),
        ("--client", "a", "--certificate", "--out", "x"),
    ],
    ids=" ".join,
)
def test_contradictory_options_are_a_usage_error(options: tuple[str, ...], auth: Auth) -> None:
    assert "Usage" in auth("keys", *options, code=2).stderr
    assert not KEYS.exists()


@pytest.mark.parametrize("name", ["ca.pem", "server.pem", "curve.secret"])
def test_a_damaged_file_is_named(name: str, auth: Auth) -> None:
    auth("keys")
    (KEYS / name).write_text("nonsense")
    assert name in auth("keys", "--replace", code=2).stderr


def test_certificates_need_the_extra(auth: Auth, monkeypatch: pytest.MonkeyPatch) -> None:
    auth("keys")
    for module in ("cryptography", "oncemq.auth.x509"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delattr("oncemq.auth.x509", raising=False)
    for arguments in ((), ("--keys", "others")):
        assert "pip install 'oncemq[secure]'" in auth("keys", *arguments, code=2).stderr


@pytest.mark.parametrize(
    "flags",
    [
        {"listen": "oncemq://0.0.0.0:5554", "data": "my data"},
        {"text": "192.0.2.1:5556"},
        {"http": "0.0.0.0:80", "keys": "k"},
    ],
)
def test_the_commands_in_the_error_of_an_open_address_set_everything_up(flags: dict[str, str]) -> None:
    settings = sources.load_serve(flags, {})
    with pytest.raises(SettingInvalid) as refused:
        check_exposure(settings)
    commands = [shlex.split(line) for line in refused.value.text.splitlines()[1:-1]]
    assert len(commands) == 3
    for command in commands:
        done = CliRunner().invoke(cli, command[1:])
        assert done.exit_code == 0, done.output
    check_exposure(settings)
    assert exposures(settings) == []
