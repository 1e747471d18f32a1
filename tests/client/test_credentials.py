"""Options of `connect` that say who connects."""

from __future__ import annotations

import asyncio
import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest

import oncemq
from oncemq.client.credentials import NO_CREDENTIALS, Credentials, CurveKeys, TlsSettings
from oncemq.client.options import ConnectSettings, settings_of
from oncemq.protocol.errors import SettingInvalid, Unauthenticated
from oncemq.testing.broker_process import BrokerProcess
from tests.secure_broker import FakeGate, make_keys, secure_broker

URL = "oncemq://broker.example:5554"
SECRET = "omq_k3v9x2aa_" + "s" * 43
KEYS = {"curve_server": "a" * 40, "curve_public": "b" * 40, "curve_secret": "s" * 40}


@pytest.fixture(autouse=True)
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "contexts.toml"
    monkeypatch.setenv("ONCEMQ_CONTEXTS", str(path))
    monkeypatch.delenv("ONCEMQ_URL", raising=False)
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def settings(url: str | list[str] | None = None, **options: Any) -> ConnectSettings:
    return settings_of(url, None, options)


def test_without_options_there_are_no_credentials() -> None:
    assert settings().urls == ["oncemq://127.0.0.1:5554"]
    assert settings().credentials is NO_CREDENTIALS


def test_addresses_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMQ_URL", "ipc:///tmp/here")
    assert settings().urls == ["ipc:///tmp/here"]
    assert settings(["tcp://a:1", "tcp://b:2"]).urls == ["tcp://a:1", "tcp://b:2"]
    with pytest.raises(SettingInvalid, match="address is empty"):
        settings("")


def test_each_option_is_a_part_of_the_credentials(tmp_path: Path) -> None:
    found = settings(
        URL,
        token_file=tmp_path / "token",
        tls=tmp_path / "ca.pem",
        tls_certificate=tmp_path / "me.pem",
        tls_key="~/me-key.pem",
        tls_server_name="broker",
    ).credentials
    key = str(Path("~/me-key.pem").expanduser())
    expected = TlsSettings(
        ca=str(tmp_path / "ca.pem"), certificate=str(tmp_path / "me.pem"), key=key, server_name="broker"
    )
    assert found == Credentials(token_file=str(tmp_path / "token"), tls=expected)
    assert settings(URL, token=SECRET, tls=True).credentials == Credentials(token=SECRET, tls=TlsSettings())
    keys = CurveKeys(server="a" * 40, public="b" * 40, secret="s" * 40)
    assert settings("tcp://broker.example:5555", **KEYS).credentials == Credentials(curve=keys)


def test_a_ready_context_of_tls_replaces_the_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMQ_TLS_SERVER_NAME", "broker")
    context = ssl.create_default_context()
    assert settings(URL, tls=context).credentials.tls == TlsSettings(context=context)


def test_a_certificate_or_a_server_name_implies_tls() -> None:
    assert settings(URL, tls_server_name="b").credentials.tls == TlsSettings(server_name="b")
    assert settings("oncemq://127.0.0.1", tls=False, tls_server_name="b").credentials is NO_CREDENTIALS


def test_a_context_has_an_address_and_credentials(contexts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(contexts, f'current = "prod"\n[context.prod]\nurl = "{URL},{URL}1"\ntoken = "{SECRET}"\ntls = true\n')
    expected = Credentials(token=SECRET, tls=TlsSettings())
    for found in (settings(), settings(context="prod")):
        assert (found.urls, found.credentials) == ([URL, f"{URL}1"], expected)
    monkeypatch.setenv("ONCEMQ_URL", "oncemq://127.0.0.1:1")
    assert settings().credentials is NO_CREDENTIALS
    assert settings(context="prod").credentials == expected


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("oncemq://broker.example", {"token": SECRET}, "not encrypted.*use tls"),
        ("oncemq://127.0.0.1:1,oncemq://10.0.0.1:1", {"token": SECRET}, "10.0.0.1:1 is not encrypted"),
        (URL, {"token": SECRET, "tls": False}, "not encrypted"),
        ("tcp://[2001:db8::1]:5555", {"token": SECRET}, "not encrypted.*curve_server"),
        ("tcp://127.0.0.1:5555", {"tls": True}, "ZeroMQ, which has no TLS"),
        (URL, KEYS, "stream transport, which has no CURVE"),
        ("tcp://127.0.0.1:5555", {"curve_server": "a" * 40}, "curve_public is missing"),
        (None, {"context": "none"}, "no context 'none'"),
        (URL, {"context": "none"}, "url and context are both given"),
        (URL, {"token": SECRET, "token_file": "x"}, "token and token_file are both given"),
    ],
)
def test_what_would_not_be_secure_is_refused(url: str | None, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingInvalid, match=expected) as caught:
        oncemq.connect(url, **options)
    assert SECRET not in str(caught.value)
    with pytest.raises(SettingInvalid, match=expected):
        oncemq.aio.connect(url, **options)


@pytest.mark.parametrize("url", ["oncemq://127.0.0.1:1", "oncemq://[::1]", "oncemq+unix:///run/x", "memory:"])
def test_a_token_may_be_sent_inside_this_machine(url: str) -> None:
    assert settings(url, token=SECRET).credentials == Credentials(token=SECRET)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"token": SECRET.encode()}, "token must be a text, not bytes"),
        ({"tls": 1}, "tls must be True, False, a file or an ssl.SSLContext, not int"),
        ({"context": 5}, "context must be a text, not int"),
    ],
)
def test_a_wrong_type_is_refused_without_showing_the_value(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(TypeError, match=expected) as caught:
        oncemq.connect(URL, **options)
    assert "sss" not in str(caught.value)


def test_credentials_are_described_without_secrets_and_never_pickled() -> None:
    for found in (settings(URL, token=SECRET, tls=True), settings("tcp://127.0.0.1:1", **KEYS)):
        assert "sss" not in repr(found)
        assert "sss" not in repr(found.credentials)
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(found.credentials)
    without_secrets = settings(URL, token_file="x", tls="ca.pem").credentials
    assert pickle.loads(pickle.dumps(without_secrets)) == without_secrets


def test_the_token_of_a_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    credentials = settings("oncemq://127.0.0.1:1", token_file=file).credentials
    assert credentials.current_token() == "one"
    file.write_text("two")
    assert credentials.current_token() == "two"
    file.unlink()
    with pytest.raises(SettingInvalid, match="can't be read"):
        credentials.current_token()


def test_clients_of_a_context_reach_its_broker(oncemq_broker: BrokerProcess, contexts: Path, tmp_path: Path) -> None:
    write(contexts, f'current = "here"\n[context.here]\nurl = "{oncemq_broker.url}"\n')
    with oncemq.connect() as client:
        client.create_topic("orders")
    with oncemq.connect(context="here", outbox=tmp_path / "outbox") as client:
        client.put("orders", "one pizza")
        client.flush()

    async def look() -> list[str]:
        async with oncemq.aio.connect(context="here") as client:
            return [topic.name for topic in await client.topics()]

    assert asyncio.run(look()) == ["orders"]


def test_a_broker_for_tests_does_not_see_the_credentials_of_the_environment(
    oncemq_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ONCEMQ_TOKEN": SECRET, "ONCEMQ_TLS": "true", "ONCEMQ_CURVE_PUBLIC": "b" * 40}.items():
        monkeypatch.setenv(name, value)
    with oncemq_broker.connect() as client:
        assert client.topics() == []


def test_the_token_of_a_context_never_leaves_for_another_address(contexts: Path, tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")
    with secure_broker(tmp_path, keys, gate := FakeGate()) as broker:
        write(contexts, f'current = "prod"\n[context.prod]\nurl = "{URL}"\ntoken = "omq-kitchen"\ntls = true\n')
        with pytest.raises(Unauthenticated):
            oncemq.connect(broker.url, tls=keys / "ca.pem")
        assert {credential for _, credential, _ in gate.asked} == {""}
        oncemq.connect(broker.url, tls=keys / "ca.pem", token="omq-kitchen").close()
